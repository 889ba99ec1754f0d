"""Histograms of lengths: quantiles of what lies beyond, forgetting, and what weights do to them."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvguard.admission.histogram import BOUNDS, LONGEST, Histogram
from tests.kit.properties import deterministic

NEVER = 10**18  # nothing is forgotten, to the last bit
values = st.lists(st.integers(1, 3000), min_size=1, max_size=40)


def histogram(lengths: list[int], *, quantile: float = 0.7, half_life: int = NEVER) -> Histogram:
    made = Histogram(quantile=quantile, half_life_answers=half_life)
    for length in lengths:
        made.add(length)
    return made


def test_buckets_are_narrow_and_end_at_powers_of_two() -> None:
    """Each length up to 32 has a bucket of its own, no bucket is wider than a sixteenth, and caps are bounds."""
    assert BOUNDS[:33] == (*range(1, 33), 34)
    assert all(after - before <= max(1, before / 16) for before, after in pairwise(BOUNDS))
    assert {1 << power for power in range(21)} <= set(BOUNDS)
    assert BOUNDS[-1] == LONGEST


@pytest.mark.parametrize(
    ("lengths", "quantile", "produced", "expected"),
    [
        ([], 0.7, 0, None),
        ([5], 0.7, 0, 5),
        ([5], 0.7, 4, 5),
        ([5], 0.7, 5, None),
        ([1, 2, 3, 4], 0.5, 0, 2),
        ([1, 2, 3, 4], 0.51, 0, 3),
        # Of those beyond two half end at three, beyond three all at four.
        ([1, 2, 3, 4], 0.5, 2, 3),
        ([1, 2, 3, 4], 0.51, 2, 4),
        ([1, 2, 3, 4], 0.5, 3, 4),
        ([1, 2, 3, 4], 0.5, 4, None),
        # A bucket of two lengths is known by its longer one.
        ([33], 0.5, 0, 34),
        ([33], 0.5, 33, 34),
        ([33], 0.5, 34, None),
        ([0, 0, 1 << 40], 0.5, 0, 1),
        ([0, 0, 1 << 40], 0.5, 1, LONGEST),
        ([1 << 40], 0.5, LONGEST - 1, LONGEST),
        ([1 << 40], 0.5, LONGEST, None),
    ],
)
def test_the_length_within_which_most_of_those_beyond_end(
    lengths: list[int], quantile: float, produced: int, expected: int | None
) -> None:
    """The quantile of the answers that got further than that, or nothing where none did."""
    assert histogram(lengths, quantile=quantile).expected(produced) == expected


@deterministic
@given(lengths=values, produced=st.integers(0, 3100), quantile=st.sampled_from((0.3, 0.5, 0.7, 0.95)))
def test_a_forecast_covers_its_share_of_those_beyond(lengths: list[int], produced: int, quantile: float) -> None:
    """It lies beyond what is produced, and the wanted share of the answers from that bucket on end by it."""
    expected = histogram(lengths, quantile=quantile).expected(produced)
    start = max((bound for bound in (0, *BOUNDS) if bound <= produced), default=0)
    beyond = [length for length in lengths if length > start]
    assert (expected is None) == (not beyond)
    if expected is not None:
        assert expected > produced
        assert sum(length <= expected for length in beyond) >= quantile * len(beyond) - 1e-6


@deterministic
@given(
    lengths=values,
    longer=st.lists(st.integers(0, 2000), min_size=1, max_size=10),
    produced=st.integers(0, 1000),
    half_life=st.sampled_from((1, 7, 500)),
)
def test_more_weight_on_long_answers_never_shortens_a_forecast(
    lengths: list[int], longer: list[int], produced: int, half_life: int
) -> None:
    """Answers at least as long as the forecast leave it or lengthen it, at any pace of forgetting."""
    made = histogram(lengths, half_life=half_life)
    before = made.expected(produced)
    for more in longer:
        made.add((before or produced + 1) + more)
    after = made.expected(produced)
    assert before is None or (after is not None and after >= before)


@deterministic
@given(lengths=values, produced=st.tuples(st.integers(0, 3000), st.integers(0, 3000)))
def test_an_answer_that_got_further_is_expected_to_get_at_least_as_far(
    lengths: list[int], produced: tuple[int, int]
) -> None:
    """The total only rises with what is produced."""
    made = histogram(lengths)
    early, late = (made.expected(each) for each in sorted(produced))
    assert late is None or (early is not None and early <= late)


@pytest.mark.parametrize("answers", [499, 500, 501])
def test_an_answer_counts_half_after_a_half_life(answers: int) -> None:
    """Old ones against new ones weigh as many half-lives have passed."""
    made = histogram([100] * 1000 + [10] * answers, half_life=500)
    old, new = (dict(made.weights())[length] for length in (100, 10))
    faded = 0.5 ** (answers / 500)
    assert old / (old + new) == pytest.approx(faded * (1 - 0.25) / (faded * (1 - 0.25) + (1 - faded)), abs=1e-3)


def test_weights_stay_finite_for_ever() -> None:
    """Thousands of answers with the shortest half-life neither overflow nor lose what was just seen."""
    made = histogram([30] * 3000, half_life=1)
    assert made.expected(0) == 30
    assert dict(made.weights())[30] == pytest.approx(1.0)


def test_weights_poured_into_another_make_the_same_forecasts() -> None:
    """Lengths and weights are all there is to a histogram, whatever was seen before and after."""
    rng = random.Random(3)
    made = histogram([round(rng.lognormvariate(5, 0.8)) for _ in range(500)], half_life=100)
    other = Histogram(quantile=0.7, half_life_answers=100)
    other.pour(made.weights(), answers=7)
    assert (other.answers, other.weights()) == (7, made.weights())
    for produced in (0, 50, 150, 400):
        assert other.expected(produced) == made.expected(produced)
    for each in (made, other):
        each.add(1000)
    assert dict(other.weights()) == pytest.approx(dict(made.weights()), abs=0.01)


def test_a_copy_stays_as_it_was() -> None:
    """What is learned later does not reach it."""
    made = histogram([10] * 5)
    twin = made.copy()
    made.add(20)
    assert (twin.answers, twin.weights()) == (5, histogram([10] * 5).weights())
    twin.add(30)
    assert made.expected(20) is None


def test_another_quantile_and_half_life_hold_from_now_on() -> None:
    """Both for what was added before and what comes; how much each answer weighs stays."""
    made = histogram([10, 20, 30, 40], quantile=0.5)
    before = made.weights()
    assert made.expected(0) == 20
    made.follow(quantile=0.75, half_life_answers=1)
    assert (made.weights(), made.answers, made.expected(0)) == (before, 4, 30)
    made.add(50)
    made.add(60)
    assert made.weights() == ((10, 0.25), (20, 0.25), (30, 0.25), (40, 0.25), (50, 0.25), (60, 0.5))
