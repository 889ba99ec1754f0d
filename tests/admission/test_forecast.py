"""The future peak against a step-by-step simulation, and how long an answer may still get."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvguard.admission.blocks import BlockRule
from kvguard.admission.footprint import Demand
from kvguard.admission.forecast import Course, courses_of, peak_blocks, remaining_output
from tests.admission.build import RULE, answers, block_rules, demand, demands, learned, learned_from
from tests.kit.properties import deterministic

courses = st.lists(st.builds(Course, st.integers(1, 150), st.integers(0, 80), st.integers(1, 4)), max_size=12)


def grown(course: Course, step: int, rule: BlockRule) -> int:
    """Blocks of a course after `step` steps; nothing once it has ended."""
    if step > course.remaining:
        return 0
    return course.copies * rule.reached_blocks(course.tokens + step)


def simulated_peak(running: list[Course], rule: BlockRule) -> int:
    """Let every sequence grow a token a step and free everything after its last; the most ever held."""
    last = max((course.remaining for course in running), default=0)
    return max(sum(grown(course, step, rule) for course in running) for step in range(last + 1))


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
    assert peak_blocks(running, RULE) == peak


@deterministic
@given(running=courses, rule=block_rules())
def test_the_peak_is_that_of_the_simulation(running: list[Course], rule: BlockRule) -> None:
    """The formula gives exactly what growing every sequence step by step gives, for any layout of groups."""
    assert peak_blocks(running, rule) == simulated_peak(running, rule)


@deterministic
@given(running=courses, more=courses, rule=block_rules())
def test_more_sequences_never_lower_the_peak(running: list[Course], more: list[Course], rule: BlockRule) -> None:
    """The peak of a set is at least the peak of any part, and at most the sum of the parts' peaks."""
    together = peak_blocks([*running, *more], rule)
    assert together >= peak_blocks(running, rule)
    assert together <= peak_blocks(running, rule) + peak_blocks(more, rule)


@deterministic
@given(running=courses, index=st.integers(0, 11), extra=st.integers(0, 50), rule=block_rules())
def test_a_longer_answer_never_lowers_the_peak(running: list[Course], index: int, extra: int, rule: BlockRule) -> None:
    """Letting one sequence run longer holds its blocks at least as long."""
    longer = [
        Course(course.tokens, course.remaining + extra, course.copies) if number == index else course
        for number, course in enumerate(running)
    ]
    assert peak_blocks(longer, rule) >= peak_blocks(running, rule)


@deterministic
@given(running=courses, rule=block_rules())
def test_copies_count_like_sequences_of_their_own(running: list[Course], rule: BlockRule) -> None:
    """Equal sequences as one course or as many give the same peak."""
    spread = [Course(course.tokens, course.remaining) for course in running for _ in range(course.copies)]
    assert peak_blocks(spread, rule) == peak_blocks(running, rule)


def test_the_copies_of_a_request_cost_nothing_to_forecast() -> None:
    """A thousand prompts with the most copies a request may ask for are one course each, not seventeen million."""
    assert peak_blocks([Course(1, 1, 16384)] * 1024, RULE) == 1024 * 16384


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
def test_what_a_sequence_may_still_generate_while_nothing_is_known(
    produced: int, expected: int, cap: int | None, remaining: int
) -> None:
    """The rest of the expectation, then as much again as was produced, never beyond the cap and never negative."""
    assert remaining_output(demand(16, cap=cap, expected=expected), produced, learned()) == remaining


@pytest.mark.parametrize(
    ("asked", "produced", "remaining"),
    [
        (demand(16, cap=1000), 0, 8),
        (demand(16, cap=1000), 7, 1),
        # Longer than most, as long as some, longer than all.
        (demand(16, cap=1000), 8, 8),
        (demand(16, cap=1000), 15, 1),
        (demand(16, cap=1000), 16, 984),
        (demand(16, cap=1000), 999, 1),
        # The cap bounds what was learned, and what was learned is that of requests that ask for as much.
        (demand(16, cap=8, asked_cap=1000), 0, 8),
        (demand(16, cap=7, asked_cap=1000), 0, 7),
        (demand(16, cap=12, asked_cap=1000), 8, 4),
        (demand(16, cap=1000, asked_cap=2000), 0, 1000),
        # The client wants at least so many.
        (demand(16, cap=1000, min_tokens=8), 0, 8),
        (demand(16, cap=1000, min_tokens=9), 0, 9),
        (demand(16, cap=1000, min_tokens=9), 5, 4),
        (demand(16, cap=6, asked_cap=1000, min_tokens=9), 0, 6),
        # An answer that ignores its end runs to its cap whatever others do.
        (demand(16, cap=1000, fixed_length=True), 0, 1000),
        (demand(16, cap=1000, fixed_length=True), 8, 992),
    ],
)
def test_what_a_sequence_may_still_generate_once_lengths_are_known(
    asked: Demand, produced: int, remaining: int
) -> None:
    """Nine answers of eight tokens and one of sixteen under such a cap: what most of those that got so far got to."""
    assert remaining_output(asked, produced, learned(*[8] * 9, 16, cap=1000)) == remaining


def test_the_futures_of_a_request_are_those_of_its_prompts() -> None:
    """Each prompt is one course of its copies, at its tokens and those produced."""
    asked = demand(10, 20, cap=20, copies=2)
    assert list(courses_of(asked, 5, learned())) == [Course(15, 15, 2), Course(25, 15, 2)]
    assert list(courses_of(asked, 5, learned(8))) == [Course(15, 3, 2), Course(25, 3, 2)]


@deterministic
@given(
    asked=demands(),
    produced=st.integers(0, 500),
    seen=answers,
    caps=st.tuples(st.integers(1, 500), st.integers(1, 500)),
)
def test_lowering_a_cap_never_lengthens_the_forecast(
    asked: Demand, produced: int, seen: list[tuple[int, int | None]], caps: tuple[int, int]
) -> None:
    """Whatever was learned under whichever caps: less is expected under a lower cap, and never more than it allows."""
    lengths = learned_from(seen)
    lower, higher = (asked.with_cap(cap) for cap in sorted(caps))
    assert remaining_output(lower, produced, lengths) <= remaining_output(higher, produced, lengths)
    assert remaining_output(higher, produced, lengths) <= max(0, max(caps) - produced)
    if asked.output_cap is None or max(caps) <= asked.output_cap:
        assert remaining_output(higher, produced, lengths) <= remaining_output(asked, produced, lengths)
