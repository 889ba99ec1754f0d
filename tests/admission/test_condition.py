"""The engine's condition, page by page: when it is believed to stand still, to sleep, or to show a false gauge."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvguard.admission.condition import Condition, EngineState, EngineWatch, Passage, SignalPolicy
from kvguard.admission.usage import EngineUsage, UsageSample
from tests.kit.properties import deterministic

UNKNOWN, IDLE, WORKING, STALLED, SLEEPING, CONTRADICTION = EngineState
OPEN, SHUT, TRICKLE, DOUBT = Passage


def engine(
    running: int | None = 1, tokens: float | None = 100, *, name: str = "0", gauge: float | None = 0.5, **fields: object
) -> EngineUsage:
    """An engine that generated so many tokens."""
    known = {"prompt_tokens_total": 10.0, "generation_tokens_total": tokens, "used_ratio": gauge}
    return EngineUsage(engine=name, running=running, **{**known, **fields})


def fed(
    watch: EngineWatch, at: float, *engines: EngineUsage, live: int = 0, awaited: int = 0, observed: float | None = 0.5
) -> EngineState:
    """The state after one page."""
    sample = UsageSample(engines=engines)
    watch.observe(sample, asked_at=at, observed_ratio=observed, live=live, awaited=awaited)
    return watch.condition.state


def stalled_at(moment: float, **policy: float) -> EngineWatch:
    """A watch on an engine that has been found stalled at this moment."""
    watch = EngineWatch(SignalPolicy(stall_seconds=5, **policy))
    states = [fed(watch, moment - 5, engine()), fed(watch, moment, engine())]
    assert states == [WORKING, STALLED]
    return watch


# Stalls


BUSY, MORE, QUEUED, QUIET = engine(3), engine(3, 101), engine(0, waiting=2), engine(0)
MUTE = engine(3, None)


@pytest.mark.parametrize(
    "pages",
    [
        # A step below the limit, at it, and moving again by a single token.
        [(0, BUSY, WORKING), (20, BUSY, WORKING), (29.9, BUSY, WORKING), (30, BUSY, STALLED), (31, MORE, WORKING)],
        # One page that shows another number starts the time anew.
        [(0, BUSY, WORKING), (20, MORE, WORKING), (49.9, MORE, WORKING), (50, MORE, STALLED)],
        # A queue with nothing running is the same.
        [(0, QUEUED, WORKING), (15, QUEUED, WORKING), (30, QUEUED, STALLED), (31, engine(0, 101), IDLE)],
        # Work that came a moment ago has not stood still for long.
        [(0, QUIET, IDLE), (29, QUIET, IDLE), (30, BUSY, WORKING), (59.9, BUSY, WORKING), (60, BUSY, STALLED)],
        [(0, BUSY, WORKING), (29, QUIET, IDLE), (30, BUSY, WORKING), (59, BUSY, WORKING), (60, BUSY, STALLED)],
        # Idle is no stall, however long.
        [(0, QUIET, IDLE), (30, QUIET, IDLE), (60, QUIET, IDLE), (90, QUIET, IDLE)],
        # More or fewer requests are no progress of those that are there.
        [(0, engine(3), WORKING), (15, engine(5, waiting=1), WORKING), (30, engine(2), STALLED)],
        # Once stalled it stays so: that clients give up is no progress, and neither is a pause between pages.
        [(0, BUSY, WORKING), (30, BUSY, STALLED), (31, QUIET, STALLED), (99, QUIET, STALLED), (100, MORE, WORKING)],
        # Two pages further apart than the limit prove nothing about the time between.
        [(0, BUSY, WORKING), (30.1, BUSY, WORKING), (60, BUSY, WORKING), (60.1, BUSY, STALLED)],
        # A page that lacks a counter, or names no engine, says nothing and ends what was believed.
        [(0, BUSY, WORKING), (30, BUSY, STALLED), (31, MUTE, UNKNOWN), (32, BUSY, WORKING), (61, BUSY, WORKING)],
    ],
)  # fmt: skip
def test_work_that_makes_no_token_for_long_enough_is_a_stall(
    pages: list[tuple[float, EngineUsage, EngineState]],
) -> None:
    """Every page of the sequence leads to the state beside it, the limit being 30 s."""
    watch = EngineWatch()
    assert [fed(watch, at, page) for at, page, _ in pages] == [state for *_, state in pages]


@pytest.mark.parametrize(
    ("moved", "state"),
    [
        ({"tokens": 101.0}, WORKING),
        ({"tokens": 1.0}, WORKING),  # a restarted engine counts from 0
        ({"prompt_tokens_total": 11.0}, WORKING),
        # A long prompt is counted with its first token; until then only its blocks tell.
        ({"gauge": 0.51}, WORKING),
        ({"running": 2}, STALLED),
        ({"waiting": 1}, STALLED),
        ({"preemptions_total": 1.0}, STALLED),
    ],
)
def test_tokens_and_blocks_are_progress_and_nothing_else_is(moved: dict[str, float], state: EngineState) -> None:
    """Each on its own, at the moment the stall would be found."""
    watch = EngineWatch(SignalPolicy(stall_seconds=5))
    fed(watch, 0, engine())
    assert fed(watch, 5, engine(**moved)) is state


@pytest.mark.parametrize(("steps", "state"), [(50.0, STALLED), (51.0, WORKING)])
def test_steps_are_progress_where_tokens_are_not_counted(steps: float, state: EngineState) -> None:
    """An engine that counts the tokens of ended requests only says what it computed."""
    silent = {"prompt_tokens_total": None, "steps_total": 50.0}
    watch = EngineWatch(SignalPolicy(stall_seconds=5))
    assert fed(watch, 0, engine(tokens=None, **silent)) is WORKING
    assert fed(watch, 5, engine(tokens=None, **{**silent, "steps_total": steps})) is state


@pytest.mark.parametrize("missing", ["running", "prompt_tokens_total", "generation_tokens_total"])
def test_what_a_page_does_not_say_is_unknown_and_never_a_stall(missing: str) -> None:
    """An engine without one of the numbers, alone or beside one that has them all."""
    watch = EngineWatch(SignalPolicy(stall_seconds=5))
    silent = replace(engine(3, waiting=2), **{missing: None})
    for at in range(0, 60, 3):
        assert fed(watch, at, silent, live=2, awaited=2) is UNKNOWN
        assert fed(watch, at + 1, engine(3), silent, live=2, awaited=2) is UNKNOWN
        assert fed(watch, at + 2, live=2, awaited=2) is UNKNOWN
    assert watch.passage(60, live=2) is OPEN


def test_a_backend_moves_while_any_of_its_engines_does() -> None:
    """The server places requests itself, so one engine that stands still beside one that works is no stall."""
    watch = EngineWatch(SignalPolicy(stall_seconds=5))
    for at in range(20):
        assert fed(watch, at, engine(3), engine(1, 100 + at, name="1")) is WORKING
    # The last movement was seen at 19.
    both = engine(3), engine(1, 119, name="1")
    assert [fed(watch, at, *both) for at in (20, 23.9, 24)] == [WORKING, WORKING, STALLED]


def test_an_engine_that_froze_before_it_said_anything_of_its_work_is_stalled_too() -> None:
    """Its page still shows it idle, but streams of kvguard's own wait there for their first token."""
    watch = EngineWatch(SignalPolicy(stall_seconds=5))
    assert [fed(watch, at, QUIET, live=1, awaited=1) for at in (0, 4.9, 5)] == [WORKING, WORKING, STALLED]
    watch = EngineWatch(SignalPolicy(stall_seconds=5))
    # A client that reads its answer slowly is no work of the engine's.
    assert [fed(watch, at, QUIET, live=1) for at in (0, 5, 10)] == [WORKING] * 3


@deterministic
@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 3), st.integers(0, 3), st.integers(0, 2)), max_size=30))
def test_an_engine_whose_counters_move_is_never_stalled(pages: list[tuple[float, int, int, int]]) -> None:
    """However pages and requests come."""
    watch, now = EngineWatch(SignalPolicy(stall_seconds=1)), 0.0
    for number, (pause, running, waiting, live) in enumerate(pages):
        now += pause
        state = fed(watch, now, engine(running, float(number), waiting=waiting), live=live, awaited=live)
        assert state in (WORKING, IDLE)
        assert watch.passage(now, live=live) is OPEN


@deterministic
@given(st.lists(st.floats(0, 100), max_size=30), st.floats(0, 1))
def test_an_engine_nothing_is_sent_to_is_never_stalled(pauses: list[float], gauge: float) -> None:
    """Refusing everybody leaves it idle, and idle is all it is."""
    watch, now = EngineWatch(SignalPolicy(stall_seconds=1)), 0.0
    for pause in pauses:
        now += pause
        assert fed(watch, now, engine(0, gauge=gauge), observed=gauge) in (IDLE, CONTRADICTION)


# Sleep


def test_a_sleeping_engine_is_known_at_once_and_so_is_its_waking() -> None:
    """One engine of several that sleeps is enough; what it left standing when it went to sleep is no stall after."""
    watch = EngineWatch(SignalPolicy(stall_seconds=5))
    assert fed(watch, 0, engine(3, awake=True)) is WORKING
    assert fed(watch, 4, engine(3, awake=True), engine(3, awake=False, name="1")) is SLEEPING
    assert (watch.passage(4, live=3), watch.passage(1e6, live=0)) == (SHUT, SHUT)
    assert fed(watch, 8, engine(3, awake=False)) is SLEEPING
    assert [fed(watch, at, engine(3, awake=True)) for at in (10, 14.9, 15)] == [WORKING, WORKING, STALLED]
    assert fed(watch, 16, engine(3, awake=False)) is SLEEPING
    assert fed(watch, 17, engine(3, awake=True)) is WORKING


def test_a_page_without_counters_can_still_say_that_the_engine_sleeps() -> None:
    """Sleep needs no other number."""
    assert fed(EngineWatch(), 0, EngineUsage(engine="0", awake=False)) is SLEEPING


# Contradictions


FULL = engine(0, gauge=0.93)


@pytest.mark.parametrize(
    ("before", "page", "live", "observed", "state"),
    [
        (FULL, FULL, 0, 0.93, CONTRADICTION),
        (FULL, FULL, 0, 0.929, IDLE),
        (FULL, FULL, 0, None, IDLE),
        # One page is not enough, and what fills the cache may be kvguard's own, run, or wait.
        (engine(1, gauge=0.93), FULL, 0, 0.93, IDLE),
        (FULL, FULL, 1, 0.93, WORKING),
        (FULL, engine(1, gauge=0.93), 0, 0.93, WORKING),
        (FULL, engine(0, gauge=0.93, waiting=1), 0, 0.93, WORKING),
        # It takes no token counters, but the gauge and what runs must be on the page.
        (replace(FULL, prompt_tokens_total=None), replace(FULL, prompt_tokens_total=None), 0, 0.93, CONTRADICTION),
        (FULL, replace(FULL, used_ratio=None), 0, 0.93, IDLE),
        (FULL, replace(FULL, running=None), 0, 0.93, UNKNOWN),
    ],
)
def test_a_full_cache_with_nothing_to_fill_it_is_a_contradiction(
    before: EngineUsage, page: EngineUsage, live: int, observed: float | None, state: EngineState
) -> None:
    """On two pages in a row, from the ratio on that keeps everybody out."""
    watch = EngineWatch()
    fed(watch, 0, before, observed=0.93)
    assert fed(watch, 1, page, live=live, observed=observed) is state


def test_a_page_that_names_no_engine_contradicts_nothing() -> None:
    """The gauge of an earlier page is not this one's."""
    watch = EngineWatch()
    assert [fed(watch, at, observed=0.97) for at in (0, 1)] == [UNKNOWN, UNKNOWN]


# Probes


def test_a_stalled_engine_gets_a_probe_every_so_often() -> None:
    """None until the first is due; each puts the next one off; none once it moves."""
    watch = stalled_at(20, probe_seconds=10)
    assert [watch.passage(now, live=3) for now in (20, 29.9, 30, 35)] == [SHUT, SHUT, TRICKLE, TRICKLE]
    watch.probed(35)
    assert fed(watch, 36, engine()) is STALLED
    assert [watch.passage(now, live=4) for now in (36, 44.9, 45)] == [SHUT, SHUT, TRICKLE]
    assert watch.probes == {STALLED: 1}
    fed(watch, 46, engine(tokens=101))
    assert watch.passage(46, live=4) is OPEN


def test_a_stall_soon_after_another_does_not_bring_its_probe_forward() -> None:
    """A probe of the last stall still counts."""
    watch = stalled_at(20, probe_seconds=60)
    watch.probed(80)
    fed(watch, 81, engine(tokens=101))
    assert [fed(watch, at, engine(tokens=101)) for at in (82, 86)] == [WORKING, STALLED]
    assert [watch.passage(now, live=3) for now in (145.9, 146)] == [SHUT, TRICKLE]


def test_a_false_gauge_lets_one_request_at_a_time_try() -> None:
    """The first at once, the next when the last is over and the time has passed."""
    watch = EngineWatch(SignalPolicy(probe_seconds=10))
    assert [fed(watch, at, FULL, observed=0.97) for at in (0, 1)] == [IDLE, CONTRADICTION]
    assert (watch.passage(1, live=0), watch.passage(1, live=1)) == (DOUBT, OPEN)
    watch.probed(2)
    assert [watch.passage(now, live=0) for now in (2, 11.9, 12)] == [OPEN, OPEN, DOUBT]
    assert watch.probes == {CONTRADICTION: 1}


# Preemptions


@pytest.mark.parametrize(
    ("totals", "counted"),
    [
        ([], None),
        ([None, None], None),
        ([7], 0),  # what happened before kvguard looked is not counted
        ([7, 7, 9], 2),
        ([7, 9, 3, 4], 2 + 3 + 1),  # restarted in between
        ([7, None, 9], 0),  # nothing known of the time between
    ],
)
def test_preemptions_are_counted_over_restarts(totals: list[float | None], counted: float | None) -> None:
    """By engine, from the first page on."""
    watch = EngineWatch()
    for at, total in enumerate(totals):
        fed(watch, at, engine(preemptions_total=total), engine(preemptions_total=total, name="1"))
    assert watch.preemptions == (None if counted is None else 2 * counted)


def test_the_rate_of_preemptions_is_that_of_late() -> None:
    """One a second reads as one; it halves in ten seconds without any; unknown before any page said."""
    watch = EngineWatch()
    assert watch.condition == Condition()
    for at in range(300):
        fed(watch, at, engine(preemptions_total=at))
    assert watch.condition.preemptions_per_second == pytest.approx(1, rel=0.05)
    before = watch.condition.preemptions_per_second
    fed(watch, 309, engine(preemptions_total=299))
    assert watch.condition.preemptions_per_second == pytest.approx(before / 2)


ONE_NOW = math.log(2) / 10  # a single preemption, at the moment of it


@pytest.mark.parametrize(
    ("limit", "overcommitted"), [(None, False), (0, True), (ONE_NOW - 1e-9, True), (ONE_NOW, False)]
)
def test_more_preemptions_than_the_limit_mean_overcommitted(limit: float | None, overcommitted: bool) -> None:
    """At the limit not yet; without one never."""
    watch = EngineWatch(SignalPolicy(max_preemptions_per_second=limit))
    fed(watch, 0, engine(preemptions_total=0))
    assert not watch.condition.overcommitted
    fed(watch, 1, engine(preemptions_total=1))
    assert watch.condition.preemptions_per_second == pytest.approx(ONE_NOW)
    assert watch.condition.overcommitted is overcommitted


def test_the_queue_is_that_of_the_page() -> None:
    """Requests that wait for blocks, and none where no engine says."""
    watch = EngineWatch()
    fed(watch, 0, engine(waiting=5, waiting_for_capacity=2), engine(waiting=1, name="1"))
    assert watch.condition.queue == 3
    fed(watch, 1, engine())
    assert watch.condition.queue is None


def test_what_needs_looking_at() -> None:
    """A stall, sleep and a false gauge."""
    assert [state for state in EngineState if state.alarming] == [STALLED, SLEEPING, CONTRADICTION]
