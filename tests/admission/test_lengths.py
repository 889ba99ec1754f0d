"""Learned lengths: a quantile of what was seen, conditional on what has passed, forgetting, bounded."""

import random

import pytest

from kvguard.admission.lengths import LengthPolicy, OutputLengths

POLICY = LengthPolicy(quantile=0.8, min_answers=10, half_life_answers=1_000_000)


def learned(values: list[int], cap: int | None = 1024, policy: LengthPolicy = POLICY) -> OutputLengths:
    lengths = OutputLengths(policy)
    for value in values:
        lengths.observe(value, cap=cap)
    return lengths


def test_nothing_is_said_before_enough_is_known() -> None:
    """One answer short of the least number there is no forecast; with it there is."""
    assert learned([100] * 9).expected(cap=1024, produced=0) is None
    assert learned([100] * 10).expected(cap=1024, produced=0) is not None


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("produced", [0, 1, 50, 100, 200, 300])
def test_the_forecast_is_the_quantile_of_those_that_got_this_far(seed: int, produced: int) -> None:
    """At least the wanted share of the longer answers ends within it, and it overshoots by a bucket at most."""
    rng = random.Random(seed)
    values = [max(1, round(100 * rng.lognormvariate(0, 0.7))) for _ in range(3000)]
    longer = sorted(value for value in values if value > produced)
    forecast = learned(values).expected(cap=1024, produced=produced)
    assert forecast is not None
    exact = longer[int(0.8 * len(longer))]
    assert exact * 0.93 <= forecast <= exact * 1.13 + 1


def test_an_answer_longer_than_any_seen_has_no_forecast() -> None:
    """Beyond all experience nothing is said, and the caller falls back on the cap."""
    lengths = learned([10] * 100)
    assert lengths.expected(cap=1024, produced=9) == 10
    assert lengths.expected(cap=1024, produced=5000) is None
    assert lengths.expected(cap=1024, produced=1 << 30) is None


def test_a_forecast_is_always_beyond_what_has_been_produced() -> None:
    """Whatever has passed, more is to come."""
    lengths = learned(list(range(1, 400)))
    for produced in range(500):
        forecast = lengths.expected(cap=1024, produced=produced)
        assert forecast is None or forecast > produced


def test_classes_of_caps_are_apart_and_lower_ones_borrow_from_above() -> None:
    """A class that knows speaks for itself; one that does not takes what a higher class knows, never a lower one."""
    lengths = learned([20] * 50, cap=64)
    for value in [300] * 50:
        lengths.observe(value, cap=1024)
    assert lengths.expected(cap=100, produced=0) == 20
    assert lengths.expected(cap=512, produced=0) == lengths.expected(cap=1500, produced=0)
    assert lengths.expected(cap=4096, produced=0) is None
    assert lengths.expected(cap=None, produced=0) is None
    assert learned([7] * 50, cap=None).expected(cap=16, produced=0) == 7


def test_old_answers_are_forgotten() -> None:
    """After a change of traffic the forecast follows within a few half-lives."""
    policy = LengthPolicy(quantile=0.8, min_answers=10, half_life_answers=20)
    lengths = learned([500] * 200 + [20] * 100, policy=policy)
    assert lengths.expected(cap=1024, produced=0) == 20


def test_weights_stay_finite_for_ever() -> None:
    """A million answers with a short half-life neither overflow nor lose what was just seen."""
    policy = LengthPolicy(quantile=0.5, min_answers=10, half_life_answers=1)
    lengths = learned([30] * 3000, policy=policy)
    assert lengths.expected(cap=1024, produced=0) == 30


def test_absurd_lengths_are_bounded() -> None:
    """Zero and astronomic lengths land in the first and last bucket."""
    lengths = learned([0] * 20 + [1 << 40], cap=None)
    assert lengths.expected(cap=None, produced=0) == 1
    assert lengths.expected(cap=None, produced=1000) == 1 << 20


def test_another_policy_asks_other_things_of_the_same_answers() -> None:
    """What was learned stays, and what was said of it is forgotten; the same policy changes nothing."""
    lengths = learned([10] * 10 + [500] * 10)
    before = lengths.version
    lengths.follow(POLICY)
    assert (lengths.version, lengths.expected(cap=1024, produced=0)) == (before, pytest.approx(500, rel=0.13))
    lengths.follow(LengthPolicy(quantile=0.4, min_answers=10, half_life_answers=1_000_000))
    assert lengths.version > before
    assert lengths.expected(cap=1024, produced=0) == 10
