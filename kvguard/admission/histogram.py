"""A histogram of output lengths that forgets, and the length within which most of those that got so far end."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from copy import copy
from itertools import accumulate

LONGEST = 1 << 20


def _bounds() -> Iterator[int]:
    bound = 1
    while bound < LONGEST:
        yield bound
        bound += max(1 << bound.bit_length() >> 5, 1)
    yield LONGEST


BOUNDS = tuple(_bounds())


class Histogram:
    """Lengths in sixteen buckets from one power of two, where most caps are, to the next; bucket i ends at BOUNDS[i].

    An answer counts half as much once `half_life_answers` more were added. `answers` is how many there ever were.
    """

    def __init__(self, *, quantile: float, half_life_answers: int) -> None:
        self.answers = 0
        self._quantile = quantile
        self._growth = 2.0 ** (1.0 / half_life_answers)
        self._weights = [0.0] * len(BOUNDS)
        # Instead of fading every bucket, each new answer weighs a little more than the last.
        self._next = 1.0
        self._sums: list[float] | None = None

    def follow(self, *, quantile: float, half_life_answers: int) -> None:
        """Forecast and forget by these from now on; what was added weighs what it weighed."""
        self._quantile = quantile
        self._growth = 2.0 ** (1.0 / half_life_answers)

    def add(self, length: int) -> None:
        """Count one answer."""
        self._weights[bisect_left(BOUNDS, min(max(length, 1), LONGEST))] += self._next
        self._next *= self._growth
        self.answers += 1
        self._sums = None
        if self._next > 1e12:
            self._weights = [weight / self._next for weight in self._weights]
            self._next = 1.0

    def pour(self, weights: Iterable[tuple[int, float]], *, answers: int) -> None:
        """Count lengths by weight, where the next answer weighs 1, as so many answers."""
        for length, weight in weights:
            self._weights[bisect_left(BOUNDS, min(max(length, 1), LONGEST))] += weight * self._next
        self.answers += answers
        self._sums = None

    def weights(self) -> tuple[tuple[int, float], ...]:
        """Lengths and their weights, where the next answer weighs 1; what has faded away is left out."""
        least = 0.001 * self._next
        present = ((bound, weight) for bound, weight in zip(BOUNDS, self._weights, strict=True) if weight >= least)
        return tuple((bound, round(weight / self._next, 3)) for bound, weight in present)

    def copy(self) -> "Histogram":
        """One that stays as this one is now."""
        twin = copy(self)
        twin._weights = self._weights.copy()
        return twin

    def expected(self, produced: int) -> int | None:
        """Total tokens within which the wanted share of the answers beyond `produced` end; None if none got there."""
        if produced >= LONGEST:
            return None
        if self._sums is None:
            self._sums = list(accumulate(self._weights))
        first, everything = bisect_left(BOUNDS, produced + 1), self._sums[-1]
        ended = self._sums[first - 1] if first else 0.0
        beyond = everything - ended
        if beyond <= 1e-9 * everything:
            return None
        return BOUNDS[bisect_left(self._sums, ended + self._quantile * beyond, first)]
