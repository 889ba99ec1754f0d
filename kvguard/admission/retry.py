"""When a refused client should come back: from how fast blocks come free, spread so that not all return at once."""

import math
import random
from dataclasses import dataclass


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
    """Bounds of `Retry-After` in seconds, and the share by which it is spread upwards."""

    min_seconds: float = 1.0
    max_seconds: float = 30.0
    spread: float = 0.5


def retry_after_seconds(
    needed_blocks: float, *, blocks_per_second: float, policy: RetryPolicy, rng: random.Random
) -> float:
    """Seconds until `needed_blocks` are likely free, within bounds, spread by up to `spread` of itself."""
    wait = policy.max_seconds if blocks_per_second <= 0 else needed_blocks / blocks_per_second
    wait = min(max(wait, policy.min_seconds), policy.max_seconds)
    return wait * (1 + policy.spread * rng.random())
