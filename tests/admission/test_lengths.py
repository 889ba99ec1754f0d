"""Learned output lengths: what is forecast from what was seen."""

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvguard.admission.lengths import LONGEST, LengthPolicy, OutputLengths
from tests.kit.properties import deterministic

# No ties: no number of answers up to ninety-nine has a whole share at this quantile.
QUANTILE = 0.77


def learned(*lengths: int, cap: int | None = None, **policy: object) -> OutputLengths:
    seen = OutputLengths(LengthPolicy(**{"min_answers": 1, **policy}))
    for length in lengths:
        seen.observe(length, cap=cap)
    return seen


def bounds() -> list[int]:
    """Upper bounds of the buckets: each an eighth above the last, whole tokens, up to the longest."""
    found = [1]
    while found[-1] + max(found[-1] // 8, 1) < LONGEST:
        found.append(found[-1] + max(found[-1] // 8, 1))
    return [*found, LONGEST]


BOUNDS = bounds()


def bucket(length: int) -> int:
    return BOUNDS[bisect_left(BOUNDS, length)]


def test_nothing_seen_is_nothing_known() -> None:
    """Without an answer of its class there is no forecast."""
    assert learned().expected(cap=None, produced=0) is None
    assert learned(10, cap=100).expected(cap=1000, produced=0) is None


@pytest.mark.parametrize(("answers", "expected"), [(0, None), (29, None), (30, 8), (31, 8)])
def test_a_few_answers_are_not_enough(answers: int, expected: int | None) -> None:
    """Nothing is said until the least number of answers has ended."""
    assert learned(*[8] * answers, min_answers=30).expected(cap=None, produced=0) == expected


@pytest.mark.parametrize(
    ("length", "forecast"),
    [(-5, 1), (0, 1), (1, 1), (15, 15), (16, 16), (17, 18), (18, 18), (19, 20), (100, 102), (LONGEST, LONGEST)],
)
def test_lengths_are_known_to_an_eighth(length: int, forecast: int) -> None:
    """Up to sixteen exactly, then by buckets whose upper bound is said; no answer is shorter than one token."""
    assert learned(length).expected(cap=None, produced=0) == forecast


def test_longer_than_the_longest_counts_as_the_longest() -> None:
    """Memory is bounded whatever an engine says, and beyond it nothing is known."""
    seen = learned(10 * LONGEST)
    assert seen.expected(cap=None, produced=LONGEST - 1) == LONGEST
    assert seen.expected(cap=None, produced=LONGEST) is None


@pytest.mark.parametrize(
    ("seen_under", "asked_under", "known"),
    [
        (512, 512, True),
        (512, 1023, True),
        (512, 511, False),
        (512, 1024, False),
        (512, None, False),
        (None, None, True),
        (None, 512, False),
        (LONGEST, 5 * LONGEST, True),
    ],
)
def test_answers_count_for_caps_of_their_class(seen_under: int | None, asked_under: int | None, known: bool) -> None:
    """Caps between one power of two and the next learn together, no cap by itself."""
    assert (learned(8, cap=seen_under).expected(cap=asked_under, produced=0) is not None) is known


@pytest.mark.parametrize(
    ("produced", "expected"),
    [(0, 8), (7, 8), (8, 16), (9, 16), (15, 16), (16, None), (17, None)],
)
def test_what_an_answer_has_produced_narrows_what_is_expected(produced: int, expected: int | None) -> None:
    """Of answers that got so far the share that ends is forecast; beyond all that was seen nothing is."""
    assert learned(*[8] * 9, 16).expected(cap=None, produced=produced) == expected


@pytest.mark.parametrize(("quantile", "expected"), [(0.1, 2), (0.49, 2), (0.51, 4), (0.79, 4), (0.81, 8), (1.0, 8)])
def test_the_share_that_ends_within_the_forecast(quantile: float, expected: int) -> None:
    """Five, three and two answers of ten."""
    assert learned(*[2] * 5, *[4] * 3, *[8] * 2, quantile=quantile).expected(cap=None, produced=0) == expected


def test_old_answers_fade() -> None:
    """After one half-life of new answers they outweigh as many old ones, and are all that counts after many."""
    seen = learned(*[1000] * 100, half_life_answers=100, quantile=0.5)
    for _ in range(100):
        seen.observe(8, cap=None)
    assert seen.expected(cap=None, produced=0) == 8
    # Forty half-lives: weights have been brought back into range on the way, and the old ones are nothing.
    for _ in range(4000):
        seen.observe(8, cap=None)
    assert seen.expected(cap=None, produced=0) == 8
    assert seen.expected(cap=None, produced=100) is None


@deterministic
@given(
    lengths=st.lists(st.integers(1, 3000), min_size=1, max_size=60),
    produced=st.lists(st.integers(0, 3000), min_size=1, max_size=5),
)
def test_the_forecast_is_the_quantile_of_what_was_seen(lengths: list[int], produced: list[int]) -> None:
    """It equals a count over all answers at or beyond the bucket the answer has reached."""
    seen = learned(*lengths, quantile=QUANTILE, half_life_answers=10**9)
    for so_far in produced:
        beyond = sorted(bucket(length) for length in lengths if bucket(length) >= bucket(so_far + 1))
        within = next((end for n, end in enumerate(beyond, 1) if n >= QUANTILE * len(beyond)), None)
        # All answers of one bucket end within it.
        assert seen.expected(cap=None, produced=so_far) == within


@deterministic
@given(
    lengths=st.lists(st.integers(1, 3000), min_size=1, max_size=40),
    produced=st.integers(0, 3000),
    half_life=st.integers(1, 50),
)
def test_a_forecast_is_ahead_and_was_seen(lengths: list[int], produced: int, half_life: int) -> None:
    """However fast answers fade: more than was produced, and no more than the longest seen."""
    expected = learned(*lengths, half_life_answers=half_life).expected(cap=None, produced=produced)
    assert expected is None or produced < expected <= bucket(max(lengths))
