"""The report: a section a shape, nothing in it that was not measured."""

from pathlib import Path

import pytest

from bench.overload.plot import plot
from bench.overload.report import judged, note, ratios, report, table, write_report
from bench.overload.slices import Slice, append
from bench.overload.targets import verdicts
from tests.bench.build import visited


def a_run() -> list[Slice]:
    """Two rounds of two shapes, one of them with a variant."""
    arms = {"vllm": 5, "vllm-queue-limit": 10, "clairvoyant": 16, "kvguard": 15}
    slices = [
        visited(
            arm,
            load=load,
            number=number,
            shape=shape,
            good=good + number,
            native_limit=None if arm != "vllm-queue-limit" else 18,
        )
        for number in range(2)
        for shape in ("chat", "rag")
        for load in (1.0, 4.0)
        for arm, good in arms.items()
    ]
    return [*slices, visited("wait", shape="rag", good=20, whole_good=15, timed_out=4, refused=20)]


def test_a_table_has_a_row_for_each_arm_under_each_load() -> None:
    """In the order of loads, then of arms."""
    rows = table([s for s in a_run() if s.shape == "rag"]).splitlines()[2:]
    assert [tuple(row.split(" | ")[:2]) for row in rows] == [
        *(
            (f"| {load}", arm)
            for load in ("1x", "4x")
            for arm in ("vllm", "vllm-queue-limit", "clairvoyant", "kvguard")
        ),
        ("| 4x", "wait"),
    ]
    assert rows[-1] == (
        "| 4x | wait | 2.00 | 50% | 1.50 | 2.00 | 2.00 | 200, 150 | 25% | 50% | 10% | 0.20 / 0.30 | 0.0% |"
    )


def test_ratios_compare_kvguards_with_rivals_ceiling_and_the_default() -> None:
    """By each measure, under each load; a load without both has none."""
    rows = ratios([s for s in a_run() if s.shape == "rag"]).splitlines()
    assert rows[0] == "|  | in | 1x | 4x |"
    assert "| `kvguard` over `vllm` | answers | 2.83 (2.67 to 3.00) | 2.83 (2.67 to 3.00) |" in rows
    assert "| `wait` over `kvguard` | full-length answers | - | 1.00 |" in rows
    assert not any("over `wait`" in row for row in rows)
    assert ratios([visited("vllm")]) == ""


def test_the_note_tells_rounds_speed_and_the_limit_that_won() -> None:
    """One value of vLLM's limit a shape."""
    assert note([s for s in a_run() if s.shape == "chat"]) == (
        "2 rounds of 10 s a slice; the engine finished 1.0 to 1.0 requests/s in them. "
        "`vllm-queue-limit` runs with `--max-num-queued-reqs 18`."
    )
    assert note([visited("vllm")]) == "1 round of 10 s a slice; the engine finished 1.0 to 1.0 requests/s in them."


def test_verdicts_stand_under_the_load_they_are_for() -> None:
    """A cell for each overload, a row for each target and variant."""
    rows = judged(verdicts([s for s in a_run() if s.shape == "rag"])).splitlines()
    assert rows[0] == "| target | 4x |"
    assert "| preemptions, of requests sent: below 1% | 0.0%: met by 1.0% |" in rows
    assert "| `wait`, client time-outs, of requests sent: below 1% | 20.0%: missed by 19.0% |" in rows
    assert judged([]) == ""


def test_the_report_has_targets_first_and_then_each_shape() -> None:
    """Headings in this order."""
    headings = [line for line in report(a_run()).splitlines() if line.startswith("#")]
    assert headings == ["### Targets", "### chat", "### rag"]


def test_the_picture_is_the_same_for_the_same_slices(tmp_path: Path) -> None:
    """Panels for every shape, drawn without a date."""
    for name in ("a.svg", "b.svg"):
        plot(a_run(), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_the_report_goes_between_its_markers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rest of the page stays; without docs the report is printed and nothing written."""
    results, page = tmp_path / "overload.jsonl", tmp_path / "benchmarks.md"
    for one in a_run():
        append(results, one)
    page.write_text("before\n<!-- overload: begin -->\nold\n<!-- overload: end -->\nafter\n")
    write_report(results, None)
    assert capsys.readouterr().out == report(a_run()) + "\n"
    assert "old" in page.read_text()
    write_report(results, tmp_path)
    assert page.read_text() == f"before\n<!-- overload: begin -->\n{report(a_run())}\n<!-- overload: end -->\nafter\n"
    assert (tmp_path / "overload.svg").exists()
