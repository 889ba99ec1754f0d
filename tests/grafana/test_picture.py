"""Pictures of panels, from answers written down here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from PIL import Image

from grafana.answers import Shown, formatted
from grafana.asking import ask, panels_of
from grafana.generate import dashboard
from grafana.picture import COLUMN_INCHES, DPI, LINE_INCHES, WIDTH, Period, draw

BOARD = dashboard()
ROWS = [panel["title"] for panel in BOARD["panels"] if panel["type"] == "row"]
PERIOD = Period(start=1000.0, end=1120.0, marks={"calm": 1000.0, "overload": 1060.0})


@dataclass(frozen=True)
class Sample:
    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]


@dataclass
class Recorded:
    """A Prometheus that answers everything alike, and remembers what it was asked."""

    labels: Mapping[str, str]
    values: Sequence[float]
    asked: list[str] = field(default_factory=list)

    def query(self, expression: str, *, at: float) -> list[Sample]:
        self.asked.append(expression)
        return [Sample(self.labels, [(at, self.values[-1])])]

    def query_range(self, expression: str, *, seconds: float, step: float, end: float) -> list[Sample]:
        self.asked.append(expression)
        times = [end - seconds + number * step for number in range(len(self.values))]
        return [Sample(self.labels, list(zip(times, self.values, strict=True)))]


def only(title: str) -> dict:
    (found,) = [panel for panel in panels_of(BOARD, ROWS) if panel["title"] == title]
    return found


@pytest.mark.parametrize("row", ROWS)
def test_every_row_can_be_drawn(row: str, tmp_path: Path) -> None:
    """Whatever its panels show, numbers that are missing in between too."""
    labels = {"backend": "vllm", "kind": "peak", "finding": "Full", "turn": "Add servers", "outcome": "rejected"}
    shown = ask(Recorded(labels, (0.0, 1.0, float("nan"), 3.0)), BOARD, rows=[row], start=PERIOD.start, end=PERIOD.end)
    assert drawn(shown, tmp_path / "row.png").height >= 8 * LINE_INCHES * DPI - 1


def test_a_panel_without_numbers_says_so(tmp_path: Path) -> None:
    """Its words stand where the lines would."""
    row = ["Latency"]
    nothing = drawn(
        ask(Recorded({}, (float("nan"),)), BOARD, rows=row, start=PERIOD.start, end=PERIOD.end),
        tmp_path / "nothing.png",
    )
    something = drawn(
        ask(Recorded({}, (1.0, 2.0)), BOARD, rows=row, start=PERIOD.start, end=PERIOD.end), tmp_path / "something.png"
    )
    assert nothing.size == something.size
    assert nothing.tobytes() != something.tobytes()


def drawn(shown: Sequence[Shown], file: Path) -> Image.Image:
    draw(shown, PERIOD, file)
    with Image.open(file) as opened:
        picture = opened.copy()
    assert picture.width == pytest.approx(WIDTH * COLUMN_INCHES * DPI)
    return picture


def test_only_the_rows_asked_for_are_put_to_prometheus() -> None:
    """With every variable put in, and the last value where a panel shows no more."""
    source = Recorded({}, (1.0,))
    shown = ask(source, BOARD, rows=["Latency"], start=PERIOD.start, end=PERIOD.end)
    assert [each.panel["title"] for each in shown] == [panel["title"] for panel in panels_of(BOARD, ["Latency"])]
    assert len(source.asked) == sum(len(each.panel["targets"]) for each in shown)
    assert not [expression for expression in source.asked if "$" in expression]


def test_thresholds_are_drawn_as_bands() -> None:
    """Each tier has a dashed line where it begins and a band in its colour up to the next."""
    panel = only("Pressure of $backend")
    starts = [
        Sample({"tier": tier}, [(1000.0, at)]) for tier, at in (("trim", 0.7), ("restrict", 0.85), ("reject", 0.95))
    ]
    ends = [[Sample({}, [(1000.0, at)])] for at in (0.85, 0.95, 1.0)]
    usage = [Sample({"kind": "projected"}, [(1000.0, 0.4)])]
    curves = {curve.name: curve for curve in Shown(panel=panel, answers=(usage, starts, *ends)).curves()}
    for tier, top in (("trim", 0.85), ("restrict", 0.95), ("reject", 1.0)):
        line, band = curves[f"{tier} from"], curves[f"{tier} to"]
        assert (line.dashed, band.band_from) == (True, line.name)
        assert (band.colour, band.last) == (line.colour, top)
    assert len({curve.colour for curve in curves.values()}) == 4


@pytest.mark.parametrize(
    ("title", "value", "words"),
    [
        ("Overload or fault?", 0, "Calm"),
        ("Overload or fault?", 3, "Overload: refuses"),
        ("Overload or fault?", 16, "Fault: unreachable"),
        ("Tier in force", 2, "Restrict"),
        ("What comes next", 0.957, "96 %"),
        ("When refused come back", float("nan"), "None refused"),
    ],
)
def test_a_value_is_said_in_the_words_of_its_panel(title: str, value: float, words: str) -> None:
    """As the dashboard says it."""
    assert Shown(panel=only(title), answers=()).meaning(value)[0] == words


def test_a_step_changes_the_colour_from_its_value_on() -> None:
    """Demand that fits is another colour than demand that does not."""
    shown = Shown(panel=only("What comes next"), answers=())
    below, at, above = (shown.meaning(value)[1] for value in (0.99, 1.0, 2.0))
    assert below != at
    assert at == above


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.123, "percentunit", "12 %"),
        (2.5, "s", "2.5 s"),
        (0.0125, "s", "12.5 ms"),
        (0.00002, "s", "20 µs"),
        (0.0, "s", "0 s"),
        (3 * 2.0**30, "bytes", "3 GiB"),
        (4.21, "reqps", "4.21 req/s"),
        (7.0, "ops", "7 /s"),
        (1500.0, "short", "1.5 K"),
        (0.0, "short", "0"),
        (12.0, "none", "12"),
    ],
)
def test_units_are_written_short(value: float, unit: str, text: str) -> None:
    """As Grafana writes them."""
    assert formatted(value, unit) == text
