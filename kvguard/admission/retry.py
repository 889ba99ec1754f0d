"""When a refused client should come back: from how fast blocks come free, spread so that not all return at once."""

import math
from dataclasses import dataclass
from typing import Final


class FadingSum:
    """A sum whose parts lose half their weight every `half_life_seconds`: what happened lately, and how fast."""

    def __init__(self, *, half_life_seconds: float = 10.0) -> None:
        self._decay = math.log(2) / half_life_seconds
        self._sum = 0.0
        self._at = 0.0

    def add(self, amount: float, now: float) -> None:
        """Note that `amount` came about at `now`."""
        self._sum = self.value(now) + amount
        self._at = now

    def value(self, now: float) -> float:
        """The faded sum."""
        return self._sum * math.exp(-self._decay * (now - self._at)) if self._sum else 0.0

    def per_second(self, now: float) -> float:
        """The rate as of `now`: what a steady stream of this strength would bring each second."""
        return self.value(now) * self._decay


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Bounds of `Retry-After` in seconds, what to say while nothing is known, and the share it is spread upwards by."""

    min_seconds: float = 1.0
    max_seconds: float = 30.0
    unknown_seconds: float = 5.0
    spread: float = 0.1


class Appointments:
    """Times at which refused clients are told to come back, one after another, so that each finds room.

    Blocks come free for those who were told to wait and for those who come anew; half is kept for each. Nothing is
    held for an appointment: who does not come leaves more to the others.
    """

    def __init__(self) -> None:
        self._next = 0.0

    def next(self, *, earliest: float, latest: float) -> float:
        """The first time that is left, between these two."""
        return min(max(earliest, self._next), latest)

    def take(self, at: float, *, blocks: float, blocks_per_second: float) -> None:
        """Give that time to a request of so many blocks, while so many a second come free."""
        self._next = max(self._next, at + blocks / (_SHARE_OF_RETURNERS * blocks_per_second))


_SHARE_OF_RETURNERS: Final = 0.5


def retry_after_seconds(wait: float | None, policy: RetryPolicy) -> tuple[float, float]:
    """Least and most of the `Retry-After` for an expected wait (None: not known): within bounds, spread upwards."""
    wait = policy.unknown_seconds if wait is None else wait
    wait = min(max(wait, policy.min_seconds), policy.max_seconds)
    return wait, wait * (1 + policy.spread)
