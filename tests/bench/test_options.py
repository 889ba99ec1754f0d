"""What a run is asked to do, from its command line."""

from pathlib import Path

import pytest

from bench.overload.options import LOADS, USUAL_SHAPES, Timetable, parse_options
from bench.overload.slices import ARMS


def test_a_usual_run_visits_every_arm_shape_and_load() -> None:
    """With vLLM's limit searched for and kvguard at its defaults."""
    options = parse_options([])
    assert (options.arms, options.loads, options.search) == (ARMS, LOADS, True)
    assert tuple(shape.name for shape in options.shapes) == USUAL_SHAPES
    assert options.configs == {"kvguard": None}


def test_a_quick_run_is_smaller_but_what_is_asked_for_counts() -> None:
    """Flags win over what quick means."""
    options = parse_options(["--quick", "--shapes", "rag", "--variant", "wait=wait.yaml", "--arms", "vllm", "kvguard"])
    assert [shape.name for shape in options.shapes] == ["rag"]
    assert (options.loads, options.rounds, options.search) == ((4.0,), 1, False)
    assert options.arms == ("vllm", "kvguard", "wait")
    assert options.configs == {"kvguard": None, "wait": Path("wait.yaml")}


@pytest.mark.parametrize("arguments", [["--variant", "wait"], ["--arms", "unheard"], ["--shapes", "unheard"]])
def test_what_is_not_understood_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """With the usual message."""
    with pytest.raises(SystemExit):
        parse_options(arguments)
    assert "error" in capsys.readouterr().err


@pytest.mark.parametrize(("now", "fits"), [(0.0, True), (40.0, True), (40.1, False)])
def test_a_part_is_begun_again_only_if_it_would_end_in_time(now: float, fits: bool) -> None:
    """It is taken to last as long as the last time; one that was never done always fits."""
    timetable = Timetable(until=100.0)
    assert timetable.fits("chat", 1e9)
    timetable.note("chat", 60.0)
    assert timetable.fits("chat", now) is fits
