"""How long answers really are: output lengths learned per cap, old ones forgotten, nothing assumed.

Clients ask for far more than they use. Lengths fall into buckets that grow by an eighth; each class of caps (powers of
two) has a histogram of its own, because a cap cuts what can be seen. The answer to "how long will this one get" is a
quantile of the lengths beyond what it has already produced. Memory is bounded: classes x buckets.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

LONGEST = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthPolicy:
    """The share of answers that end within what is forecast, and how much must be seen before anything is said.

    An answer counts half as much once `half_life_answers` more have ended in its class.
    """

    quantile: float = 0.7
    min_answers: int = 30
    half_life_answers: int = 500


class OutputLengths:
    """The lengths seen by one backend. `version` changes with every answer."""

    def __init__(self, policy: LengthPolicy) -> None:
        self._policy = policy
        self._classes: dict[int, _Lengths] = {}
        self.version = 0

    def follow(self, policy: LengthPolicy) -> None:
        """Go by another policy from now on; what was learned stays."""
        if policy == self._policy:
            return
        self._policy = policy
        for lengths in self._classes.values():
            lengths.follow(policy)
        self.version += 1

    def observe(self, length: int, *, cap: int | None) -> None:
        """Note that an answer under `cap` ended after `length` tokens."""
        lengths = self._classes.setdefault(_class_of(cap), _Lengths(self._policy))
        lengths.add(min(max(length, 1), LONGEST))
        self.version += 1

    def expected(self, *, cap: int | None, produced: int) -> int | None:
        """Total tokens of an answer under `cap` that has `produced` so far; None while too little is known.

        What is not known of a class is taken from the next class above: a lower cap only cuts the same answers shorter.
        """
        for number in range(_class_of(cap), _UNCAPPED + 1):
            lengths = self._classes.get(number)
            if lengths is not None and lengths.known:
                return lengths.expected(produced)
        return None


_UNCAPPED = LONGEST.bit_length() + 1


def _class_of(cap: int | None) -> int:
    return _UNCAPPED if cap is None else min(cap, LONGEST).bit_length()


def _bounds() -> Iterator[int]:
    bound = 1
    while bound < LONGEST:
        yield bound
        bound += max(bound // 8, 1)
    yield LONGEST


_BOUNDS = tuple(_bounds())


class _Lengths:
    """One histogram; bucket i holds lengths up to _BOUNDS[i]."""

    def __init__(self, policy: LengthPolicy) -> None:
        self._policy = policy
        self._growth = 2.0 ** (1.0 / policy.half_life_answers)
        self._weights = [0.0] * len(_BOUNDS)
        # Instead of fading every bucket, each new answer weighs a little more than the last.
        self._next = 1.0
        self._seen = 0
        self._table: list[int] | None = None

    def follow(self, policy: LengthPolicy) -> None:
        self._policy = policy
        self._growth = 2.0 ** (1.0 / policy.half_life_answers)
        self._table = None

    def add(self, length: int) -> None:
        self._weights[bisect_left(_BOUNDS, length)] += self._next
        self._next *= self._growth
        self._seen += 1
        self._table = None
        if self._next > 1e12:
            self._weights = [weight / self._next for weight in self._weights]
            self._next = 1.0

    @property
    def known(self) -> bool:
        return self._seen >= self._policy.min_answers

    def expected(self, produced: int) -> int | None:
        if self._table is None:
            self._table = self._quantiles()
        total = self._table[bisect_left(_BOUNDS, produced + 1)] if produced < LONGEST else 0
        return total if total > produced else None

    def _quantiles(self) -> list[int]:
        """For each bucket: the length within which the policy's share of the answers at or beyond it end; 0 if none."""
        everything = beyond = sum(self._weights)
        table: list[int] = []
        end, within = 0, self._weights[0]
        for start, weight in enumerate(self._weights):
            # `within` is the weight of buckets start..end, `beyond` that of all buckets from start on.
            while within < self._policy.quantile * beyond and end < len(_BOUNDS) - 1:
                end += 1
                within += self._weights[end]
            table.append(_BOUNDS[end] if beyond > 1e-9 * everything else 0)
            beyond -= weight
            within -= weight
            if end == start and end < len(_BOUNDS) - 1:
                end += 1
                within = self._weights[end]
        return table
