"""The future peak against a step-by-step simulation, and how long an answer may still get."""

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvguard.admission.blocks import BlockRule
from kvguard.admission.footprint import Demand
from kvguard.admission.forecast import Course, Forecast, cell_end, cell_of, remaining_output
from tests.admission.build import RULE, answers, block_rules, demand, demands, learned, learned_from
from tests.kit.properties import deterministic


@dataclass(frozen=True)
class Run:
    """Sequences alike from now on: tokens each has and may still generate, and how many they are."""

    tokens: int
    remaining: int
    copies: int = 1

    def course(self, forecast: Forecast) -> Course:
        asked = demand(self.tokens, copies=self.copies)
        return forecast.course(asked, produced=0, remaining=self.remaining)


runs = st.lists(st.builds(Run, st.integers(1, 150), st.integers(0, 400), st.integers(1, 4)), max_size=12)
short_runs = st.lists(st.builds(Run, st.integers(1, 150), st.integers(0, 31), st.integers(1, 4)), max_size=12)


def forecast_of(running: Iterable[Run], rule: BlockRule = RULE) -> Forecast:
    forecast = Forecast(rule)
    for run in running:
        forecast.add(run.course(forecast))
    return forecast


def peak(running: Iterable[Run], rule: BlockRule = RULE) -> int:
    return forecast_of(running, rule).profile.peak


def held_at(running: list[Run], step: int, rule: BlockRule) -> int:
    """Blocks after `step` steps; those that have ended hold nothing."""
    alive = [run for run in running if run.remaining >= step]
    return sum(run.copies * rule.reached_blocks(run.tokens + step) for run in alive)


def simulated_peak(running: list[Run], rule: BlockRule = RULE) -> int:
    """Let every sequence grow a token a step and free everything after its last; the most ever held."""
    last = max((run.remaining for run in running), default=0)
    return max(held_at(running, step, rule) for step in range(last + 1))


def ended_with_their_cells(running: list[Run]) -> list[Run]:
    """The same, each running as long as the longest its cell may hold."""
    return [replace(run, remaining=cell_end(cell_of(run.remaining))) for run in running]


@pytest.mark.parametrize(
    ("remaining", "cell", "end"),
    [
        (0, 0, 0),
        (1, 1, 1),
        (31, 31, 31),
        (32, 32, 33),
        (33, 32, 33),
        (34, 33, 35),
        (63, 47, 63),
        (64, 48, 67),
        (67, 48, 67),
        (68, 49, 71),
        (1024, 112, 1087),
        (2**53, 800, 2**53 + 2**49 - 1),
    ],
)
def test_cells_are_narrow_near_the_end_and_a_sixteenth_further_off(remaining: int, cell: int, end: int) -> None:
    """A cell of its own for each of the last tokens, then sixteen for every doubling."""
    assert (cell_of(remaining), cell_end(cell)) == (cell, end)


@deterministic
@given(remaining=st.integers(0, 2**60))
def test_a_cell_ends_before_the_next_begins(remaining: int) -> None:
    """Every number lies in one cell, no more than a sixteenth before its end."""
    end = cell_end(cell_of(remaining))
    assert remaining <= end <= remaining + remaining / 16
    assert (cell_of(end), cell_of(end + 1)) == (cell_of(remaining), cell_of(remaining) + 1)


@pytest.mark.parametrize(
    ("running", "blocks"),
    [
        ([], 0),
        ([Run(0, 0)], 0),
        ([Run(1, 0)], 1),
        ([Run(16, 0)], 1),
        ([Run(16, 1)], 2),
        ([Run(15, 1)], 1),
        ([Run(15, 2)], 2),
        ([Run(16, 16)], 2),
        ([Run(16, 17)], 3),
        # The short one ends before the long one needs its blocks.
        ([Run(160, 0), Run(16, 160)], 11),
        ([Run(160, 16), Run(16, 160)], 13),
        ([Run(1600, 1), Run(16, 160)], 103),
        ([Run(16, 16, 3)], 6),
        ([Run(16, 16, 3), Run(16, 16)], 8),
        # However long they run, what ends together counts as what it then holds.
        ([Run(10, 1000), Run(30, 1000, 2)], 64 + 2 * 65),
        # 70 and 71 share a cell, each with what it holds at its own end; 72 is in the next.
        ([Run(0, 70), Run(0, 71)], 10),
        ([Run(10, 70), Run(9, 72)], 5 + 5),
    ],
)
def test_peaks_of_blocks_of_sixteen(running: list[Run], blocks: int) -> None:
    """The peak is what is held at the worst moment, with what ends before it gone."""
    assert peak(running) == blocks


@deterministic
@given(running=short_runs, rule=block_rules(windows=False))
def test_near_the_end_the_peak_is_that_of_the_simulation(running: list[Run], rule: BlockRule) -> None:
    """Where every token has a cell of its own and nothing slides, the forecast is the rule itself."""
    assert peak(running, rule) == simulated_peak(running, rule)


@deterministic
@given(running=runs, rule=block_rules(largest=800))
def test_the_peak_is_never_below_that_of_the_simulation(running: list[Run], rule: BlockRule) -> None:
    """What is foreseen is enough, whatever the layout."""
    assert peak(running, rule) >= simulated_peak(running, rule)


@deterministic
@given(running=runs, rule=block_rules(windows=False))
def test_the_peak_is_never_above_that_of_answers_as_long_as_their_cells(running: list[Run], rule: BlockRule) -> None:
    """A sixteenth of the time is all that is added."""
    assert peak(running, rule) <= simulated_peak(ended_with_their_cells(running), rule)


@deterministic
@given(
    running=runs,
    more=st.builds(Run, st.integers(0, 150), st.integers(0, 400), st.integers(1, 4)),
    rule=block_rules(largest=800),
)
def test_one_more_is_foreseen_as_if_it_ran_already(running: list[Run], more: Run, rule: BlockRule) -> None:
    """The peak with a candidate is what a simulation with it needs, and at most what admitting it forecasts."""
    forecast = forecast_of(running, rule)
    foreseen = forecast.profile.peak_with(more.course(forecast))
    assert simulated_peak([*running, more], rule) <= foreseen <= peak([*running, more], rule)


@deterministic
@given(running=runs, more=runs, rule=block_rules(largest=800))
def test_more_sequences_never_lower_the_peak(running: list[Run], more: list[Run], rule: BlockRule) -> None:
    """Admitting more needs at least as many blocks."""
    assert peak([*running, *more], rule) >= peak(running, rule)


@deterministic
@given(running=runs, more=runs, rule=block_rules(windows=False))
def test_sequences_together_need_no_more_than_apart(running: list[Run], more: list[Run], rule: BlockRule) -> None:
    """Where nothing slides, the peak of both is at most the sum of their peaks."""
    assert peak([*running, *more], rule) <= peak(running, rule) + peak(more, rule)


@deterministic
@given(running=runs, asked=st.builds(Run, st.integers(0, 150), st.integers(0, 399)), rule=block_rules())
def test_a_longer_answer_never_lowers_the_peak(running: list[Run], asked: Run, rule: BlockRule) -> None:
    """Letting a candidate run longer holds its blocks at least as long."""
    forecast = forecast_of(running, rule)
    longer = replace(asked, remaining=asked.remaining + 1)
    profile = forecast.profile
    assert profile.peak_with(longer.course(forecast)) >= profile.peak_with(asked.course(forecast)) >= profile.peak


@deterministic
@given(running=runs, shared=st.integers(0, 40), rule=block_rules(largest=800))
def test_the_peak_is_the_least_that_is_never_exceeded(running: list[Run], shared: int, rule: BlockRule) -> None:
    """Looked for from the soonest end on, or from the latest back, it is the same."""
    forecast = forecast_of(running, rule)
    forecast.share(shared if running else 0)
    profile = forecast.profile
    assert profile.tokens_until(profile.peak) == 0
    assert profile.peak == 0 or profile.tokens_until(profile.peak - 1) in {cell_end(cell) for cell in forecast.cells}


@deterministic
@given(running=runs, rule=block_rules(), seed=st.integers(0, 2**32))
def test_taking_back_is_as_if_it_never_ran(running: list[Run], rule: BlockRule, seed: int) -> None:
    """In whatever order they come and go, what is left decides; nothing left is nothing held."""
    forecast, rng = forecast_of(running, rule), random.Random(seed)
    left = list(running)
    rng.shuffle(left)
    while left:
        forecast.remove(left.pop().course(forecast))
        assert forecast.profile.peak == peak(left, rule)


def test_the_copies_of_a_request_cost_nothing_to_forecast() -> None:
    """A thousand prompts with the most copies a request may ask for are one course, not seventeen million."""
    forecast = Forecast(RULE)
    forecast.add(forecast.course(demand(*[1] * 1024, copies=16384), produced=0, remaining=1))
    assert forecast.profile.peak == 1024 * 16384


@pytest.mark.parametrize(
    ("blocks", "tokens"),
    [(100, 0), (14, 0), (13.9, 20), (7, 20), (6.9, 103), (0, 103), (-0.1, None)],
)
def test_what_is_held_falls_as_answers_end(blocks: float, tokens: int | None) -> None:
    """Twelve blocks after 20 tokens, two beside them, which are seven in their last cell."""
    profile = forecast_of([Run(160, 20), Run(12, 100)]).profile
    assert (profile.peak, profile.tokens_until(blocks)) == (14, tokens)


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
        # What generates nothing.
        (0, 0, 0, 0),
        (1, 0, 0, 0),
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
