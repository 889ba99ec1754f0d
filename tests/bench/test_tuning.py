"""The worked example: its decision log is a real one, and its tables count what happened."""

import pytest

from bench.overload.workload import SHAPES, arrivals
from bench.simulated.run import engine, words
from bench.tuning.run import Evening, refused, replayed

SHADOW = {"mode": "shadow"}


@pytest.fixture(scope="module")
def evening() -> Evening:
    """Ten seconds of twice what a small engine can do."""
    shape = SHAPES["chat"]
    schedule = [arrivals(shape, rate=rate, seconds=10, seed=f"{rate}", count=words) for rate in (2, 16)]
    return Evening(shape=shape, config=engine(1), warm=schedule[0], busy=schedule[1])


def test_replaying_under_the_settings_in_force_changes_nothing(evening: Evening) -> None:
    """Every request has a line, and each is decided as it was; what is refused there was refused."""
    came = evening.under({})
    replay = replayed(came.door.lines, {})
    assert (replay.decisions, replay.unreadable, replay.differing) == (len(evening.busy), 0, 0)
    assert 0 < refused(replay) == int(came.cells[2].replace(",", "")) < len(evening.busy)


def test_shadow_mode_refuses_nobody_and_says_whom_it_would_have(evening: Evening) -> None:
    """More than are refused in force, for nothing has made room."""
    shadow = evening.under(SHADOW)
    assert shadow.cells[2] == "0"
    assert refused(replayed(shadow.door.lines, {})) > refused(replayed(evening.under({}).door.lines, {}))


def test_later_thresholds_would_trim_less(evening: Evening) -> None:
    """The sign of a replay is that of what happens then."""
    log = evening.under({}).door.lines
    later = {"tiers": {"trim_at": 0.9, "restrict_at": 0.93, "reject_at": 0.97}}
    assert replayed(log, later).after.trimmed_tokens < replayed(log, {}).after.trimmed_tokens


def test_the_same_evening_comes_out_the_same(evening: Evening) -> None:
    """Nothing in it hangs on the machine, or on what was done before."""
    assert evening.under({}).cells == evening.under({}).cells
