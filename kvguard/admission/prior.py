"""The engine's own histogram of output lengths, for as long as kvguard has seen too few answers itself.

It counts the answers of every client, model and cap since the engine's start, in buckets that double or more.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from kvguard.admission.histogram import BOUNDS, LONGEST, Histogram
from kvguard.admission.usage import LengthBuckets, UsageSample

_ENDS: Final = tuple(pairwise((0, *BOUNDS)))


def prior_of(sample: UsageSample, *, quantile: float, half_life_answers: int) -> Histogram:
    """What all engines of one backend have counted."""
    prior = Histogram(quantile=careful(quantile), half_life_answers=half_life_answers)
    for engine in sample.engines:
        buckets = engine.generation_lengths
        if buckets is not None:
            prior.pour(spread(buckets), answers=int(buckets[-1][1]))
    return prior


def careful(quantile: float) -> float:
    """The share of those answers that a forecast covers, half-way between what is wanted and all of them: nobody knows
    whether the next request is like those.
    """
    return (1 + quantile) / 2


def spread(buckets: LengthBuckets) -> Iterator[tuple[int, float]]:
    """Lengths and weights: answers lie evenly over the tokens of their bucket, or at the longest in an open one."""
    low, below = 0, 0.0
    for bound, count in buckets:
        high, weight = int(min(max(bound, 1.0), float(LONGEST))), count - below
        if weight and (high <= low or bound > LONGEST):
            yield high, weight
        elif weight:
            yield from _evenly(low, high, weight)
        low, below = high, count


def _evenly(low: int, high: int, weight: float) -> Iterator[tuple[int, float]]:
    for start, end in _ENDS:
        tokens = min(end, high) - max(start, low)
        if tokens > 0:
            yield end, weight * tokens / (high - low)
