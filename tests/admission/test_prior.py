"""The engine's histogram as a first guess: spread within its buckets, careful, and summed over engines."""

import math
import random
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvguard.admission.histogram import LONGEST
from kvguard.admission.prior import prior_of, spread
from kvguard.admission.usage import EngineUsage, LengthBuckets, UsageSample
from tests.kit.properties import deterministic

INF = math.inf
LADDER = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, INF)


def page(*engines: LengthBuckets | None) -> UsageSample:
    return UsageSample(engines=tuple(EngineUsage(engine=str(n), generation_lengths=e) for n, e in enumerate(engines)))


def counted(lengths: list[int]) -> LengthBuckets:
    """The buckets in which vLLM would have counted these."""
    return tuple((bound, float(sum(length <= bound for length in lengths))) for bound in LADDER)


@pytest.mark.parametrize(
    ("buckets", "weights"),
    [
        ((), {}),
        (((10.0, 0.0), (INF, 0.0)), {}),
        (((1.0, 3.0),), {1: 3.0}),
        (((0.0, 2.0), (0.5, 3.0), (1.0, 4.0)), {1: 4.0}),
        # Evenly over the tokens of the bucket.
        (((4.0, 8.0),), {1: 2.0, 2: 2.0, 3: 2.0, 4: 2.0}),
        (((2.0, 2.0), (4.0, 6.0)), {1: 1.0, 2: 1.0, 3: 2.0, 4: 2.0}),
        (((32.0, 0.0), (35.0, 6.0)), {34: 4.0, 36: 2.0}),
        (((2.5, 2.0), (3.5, 3.0)), {1: 1.0, 2: 1.0, 3: 1.0}),
        # How long the longest were nobody says.
        (((2.0, 2.0), (INF, 5.0)), {1: 1.0, 2: 1.0, LONGEST: 3.0}),
        (((1e30, 3.0),), {LONGEST: 3.0}),
    ],
)
def test_where_in_a_bucket_answers_lie(buckets: LengthBuckets, weights: dict[int, float]) -> None:
    """No answer is lost, none leaves its bucket by more than a token's rounding."""
    found: dict[int, float] = {}
    for length, weight in spread(buckets):
        found[length] = found.get(length, 0.0) + weight
    assert found == pytest.approx(weights)


@deterministic
@given(counts=st.lists(st.integers(0, 50), min_size=len(LADDER), max_size=len(LADDER)))
def test_every_answer_is_counted_once(counts: list[int]) -> None:
    """The weights add up to the engine's count."""
    buckets = tuple(zip(LADDER, map(float, accumulate(counts)), strict=True))
    assert sum(weight for _, weight in spread(buckets)) == pytest.approx(sum(counts))


def test_engines_count_together() -> None:
    """The answers of all engines of a backend, whatever their buckets; one that does not say adds none."""
    prior = prior_of(page(((4.0, 8.0),), None, ((2.0, 3.0), (INF, 4.0))), quantile=0.5, half_life_answers=500)
    assert prior.answers == 12
    assert sum(weight for _, weight in prior.weights()) == pytest.approx(12)
    assert prior_of(page(None), quantile=0.5, half_life_answers=500).answers == 0


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("middle", "width"), [(30, 1.2), (200, 0.7), (450, 0.3), (1500, 0.5)])
def test_a_forecast_by_the_prior_is_careful(seed: int, middle: int, width: float) -> None:
    """Whatever the lengths are, at least the wanted share ends within it, from the start and on the way."""
    rng = random.Random(seed)
    lengths = [max(1, round(middle * rng.lognormvariate(0, width))) for _ in range(2000)]
    prior = prior_of(page(counted(lengths)), quantile=0.7, half_life_answers=500)
    for produced in (0, middle // 2, middle):
        beyond = [length for length in lengths if length > produced]
        forecast = prior.expected(produced)
        assert forecast is not None
        assert sum(length <= forecast for length in beyond) >= 0.7 * len(beyond)
