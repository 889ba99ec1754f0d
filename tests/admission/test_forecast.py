"""The future peak against a step-by-step simulation, and how long an answer may still get."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvguard.admission.forecast import Course, expected_remaining, peak_blocks
from tests.kit.properties import deterministic

courses = st.lists(st.builds(Course, st.integers(0, 150), st.integers(0, 80), st.integers(1, 4)), max_size=12)


def grown(course: Course, step: int, block_size: int) -> int:
    """Blocks of a course after `step` steps; nothing once it has ended."""
    if step > course.remaining:
        return 0
    return course.copies * len(range(0, course.tokens + step, block_size))


def simulated_peak(running: list[Course], block_size: int) -> int:
    """Let every sequence grow a token a step and free everything after its last; the most ever held."""
    last = max((course.remaining for course in running), default=0)
    return max(sum(grown(course, step, block_size) for course in running) for step in range(last + 1))


@pytest.mark.parametrize(
    ("running", "peak"),
    [
        ([], 0),
        ([Course(0, 0)], 0),
        ([Course(1, 0)], 1),
        ([Course(16, 0)], 1),
        ([Course(16, 1)], 2),
        ([Course(15, 1)], 1),
        ([Course(15, 2)], 2),
        ([Course(16, 16)], 2),
        ([Course(16, 17)], 3),
        # The short one ends before the long one needs its blocks.
        ([Course(160, 0), Course(16, 160)], 11),
        ([Course(160, 16), Course(16, 160)], 13),
        ([Course(1600, 1), Course(16, 160)], 103),
        ([Course(16, 16, 3)], 6),
        ([Course(16, 16, 3), Course(16, 16)], 8),
    ],
)
def test_peaks_of_blocks_of_sixteen(running: list[Course], peak: int) -> None:
    """The peak is what is held at the worst moment, with what ends before it gone."""
    assert peak_blocks(running, 16) == peak


@deterministic
@given(running=courses, block_size=st.integers(1, 40))
def test_the_peak_is_that_of_the_simulation(running: list[Course], block_size: int) -> None:
    """The formula gives exactly what growing every sequence step by step gives, for any block size."""
    assert peak_blocks(running, block_size) == simulated_peak(running, block_size)


@deterministic
@given(running=courses, more=courses, block_size=st.integers(1, 40))
def test_more_sequences_never_lower_the_peak(running: list[Course], more: list[Course], block_size: int) -> None:
    """The peak of a set is at least the peak of any part, and at most the sum of the parts' peaks."""
    together = peak_blocks([*running, *more], block_size)
    assert together >= peak_blocks(running, block_size)
    assert together <= peak_blocks(running, block_size) + peak_blocks(more, block_size)


@deterministic
@given(running=courses, index=st.integers(0, 11), extra=st.integers(0, 50), block_size=st.integers(1, 40))
def test_a_longer_answer_never_lowers_the_peak(running: list[Course], index: int, extra: int, block_size: int) -> None:
    """Letting one sequence run longer holds its blocks at least as long."""
    longer = [
        Course(course.tokens, course.remaining + extra, course.copies) if number == index else course
        for number, course in enumerate(running)
    ]
    assert peak_blocks(longer, block_size) >= peak_blocks(running, block_size)


@deterministic
@given(running=courses, block_size=st.integers(1, 40))
def test_copies_count_like_sequences_of_their_own(running: list[Course], block_size: int) -> None:
    """Equal sequences as one course or as many give the same peak."""
    spread = [Course(course.tokens, course.remaining) for course in running for _ in range(course.copies)]
    assert peak_blocks(spread, block_size) == peak_blocks(running, block_size)


def test_the_copies_of_a_request_cost_nothing_to_forecast() -> None:
    """A thousand prompts with the most copies a request may ask for are one course each, not seventeen million."""
    assert peak_blocks([Course(1, 1, 16384)] * 1024, 16) == 1024 * 16384


@pytest.mark.parametrize(
    ("produced", "expected", "cap", "remaining"),
    [
        (0, 512, None, 512),
        (0, 512, 512, 512),
        (0, 512, 511, 511),
        (0, 512, 513, 512),
        (511, 512, None, 1),
        (511, 512, 512, 1),
        # Outlived what was expected: taken to be half done, as far as the cap allows.
        (512, 512, None, 512),
        (512, 512, 512, 0),
        (512, 512, 513, 1),
        (512, 512, 1023, 511),
        (512, 512, 1024, 512),
        (512, 512, 1025, 512),
        (600, 512, None, 600),
        (1024, 512, 1024, 0),
        # More than the cap cannot happen; it is not held against the others.
        (1025, 512, 1024, 0),
        (0, 0, None, 0),
    ],
)
def test_what_a_sequence_may_still_generate(produced: int, expected: int, cap: int | None, remaining: int) -> None:
    """The rest of the expectation, then as much again as was produced, never beyond the cap and never negative."""
    assert expected_remaining(produced=produced, expected=expected, cap=cap) == remaining
