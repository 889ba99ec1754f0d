"""Draws panels of the dashboard about as Grafana shows them, from what Prometheus answered. Needs the extra `plot`.

Takes place, title, unit, colours, bands and names of values from the dashboard's own JSON, so that a picture in the
docs shows what the dashboard shows.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from grafana.answers import GRAY, Curve, Shown, formatted
from grafana.panel import WIDTH, Kind

PAGE, SURFACE, EDGE, TEXT = "#111217", "#181b1f", "#2c3235", "#d8d9da"
COLUMN_INCHES, LINE_INCHES, GAP_INCHES = 0.6, 0.34, 0.05
# Within a panel: what its title, its time axis and each line of its legend take.
TITLE_INCHES, AXIS_INCHES, LEGEND_INCHES, SIDE_INCHES = 0.3, 0.24, 0.17, 0.55
MARK_INCHES = 0.14
LEGEND_COLUMNS = 3
DPI = 100
PALETTE_SIZE = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class Period:
    """The time a picture covers, and when what began in it, by name."""

    start: float
    end: float
    marks: Mapping[str, float] = field(default_factory=dict)


def draw(shown: Sequence[Shown], period: Period, file: Path) -> None:
    """Write a picture of these panels, each in its place on the page, without the gaps of panels left out."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot
    from PIL import Image

    tops = _tops(shown)
    lines = max(tops[s.panel["gridPos"]["y"]] + s.panel["gridPos"]["h"] for s in shown)
    with pyplot.rc_context(_STYLE):
        figure = pyplot.figure(figsize=(WIDTH * COLUMN_INCHES, lines * LINE_INCHES), facecolor=PAGE)
        for each in shown:
            place = each.panel["gridPos"]
            # Of a panel for each of its values there is one here, which then has the width for itself.
            width = WIDTH if "repeat" in each.panel else place["w"]
            box = _Box(figure, x=place["x"], y=tops[place["y"]], w=width, h=place["h"], lines=lines)
            _panel(box, each, period)
        figure.savefig(drawn := io.BytesIO(), dpi=DPI, facecolor=PAGE, format="png")
        pyplot.close(figure)
    # 256 colours are enough, and half the bytes; the octree keeps those of thin lines apart.
    picture = Image.open(drawn).convert("RGB").quantize(PALETTE_SIZE, method=Image.Quantize.FASTOCTREE)
    picture.save(file, format="png", optimize=True)


_STYLE: Any = {
    "text.color": TEXT,
    "axes.facecolor": SURFACE,
    "axes.edgecolor": EDGE,
    "axes.labelcolor": TEXT,
    "xtick.color": TEXT,
    "ytick.color": TEXT,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "font.size": 8,
    "font.family": "DejaVu Sans",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def _tops(shown: Sequence[Shown]) -> dict[int, int]:
    """Where each line of panels begins, had the page none but these."""
    heights: dict[int, int] = {}
    for each in shown:
        place = each.panel["gridPos"]
        heights[place["y"]] = max(heights.get(place["y"], 0), place["h"])
    tops, top = {}, 0
    for y, height in sorted(heights.items()):
        tops[y] = top
        top += height
    return tops


@dataclass(frozen=True, slots=True)
class _Box:
    """A panel's place on a figure, in columns and lines of the page."""

    figure: Any
    x: int
    y: int
    w: int
    h: int
    lines: int

    @property
    def inches(self) -> tuple[float, float]:
        return self.w * COLUMN_INCHES, self.h * LINE_INCHES

    def axes(self, *, left: float = 0.0, right: float = 0.0, top: float = 0.0, bottom: float = 0.0) -> Any:
        """Axes in the box, so many inches from each side."""
        width, height = WIDTH * COLUMN_INCHES, self.lines * LINE_INCHES
        x, y = self.x * COLUMN_INCHES + left, height - (self.y + self.h) * LINE_INCHES + bottom
        inner = (self.inches[0] - left - right, self.inches[1] - top - bottom)
        return self.figure.add_axes((x / width, y / height, inner[0] / width, inner[1] / height))


def _panel(box: _Box, shown: Shown, period: Period) -> None:
    from matplotlib.patches import Rectangle

    frame = box.axes(left=GAP_INCHES, right=GAP_INCHES, top=GAP_INCHES, bottom=GAP_INCHES)
    frame.set_axis_off()
    frame.add_patch(Rectangle((0, 0), 1, 1, facecolor=SURFACE, edgecolor=EDGE, transform=frame.transAxes))
    title = shown.panel["title"].replace("$backend", "the backend").replace("${slo_first_byte}", "2.56")
    line = 0.16 / box.inches[1]
    frame.text(
        0.1 / box.inches[0], 1 - line, title, fontsize=8.5, weight="bold", va="center", transform=frame.transAxes
    )
    curves = shown.curves()
    if not curves:
        frame.text(
            0.5, 0.45, shown.defaults["noValue"], ha="center", color=GRAY, fontsize=11, transform=frame.transAxes
        )
        return
    match Kind(shown.panel["type"]):
        case Kind.LINES:
            _lines(box, shown, curves, period)
        case Kind.STATES:
            _states(box, shown, curves, period)
        case Kind.NUMBERS:
            _numbers(box, shown, curves)
        case Kind.BARS:
            _bars(box, shown, curves)
        case Kind.TABLE:
            _table(box, shown, curves)


def _lines(box: _Box, shown: Shown, curves: Sequence[Curve], period: Period) -> None:
    rows = -(-sum(not curve.band_from for curve in curves) // LEGEND_COLUMNS)
    bottom = AXIS_INCHES + 0.1 + rows * LEGEND_INCHES
    axes = box.axes(left=SIDE_INCHES, right=0.15, top=TITLE_INCHES + MARK_INCHES, bottom=bottom)
    if shown.defaults["custom"]["stacking"]["mode"] == "normal":
        times = sorted({at for curve in curves for at, _ in curve.points})
        values = [[dict(curve.points).get(at, 0.0) for at in times] for curve in curves]
        axes.stackplot(times, values, colors=[c.colour for c in curves], alpha=0.75, labels=[c.name for c in curves])
    else:
        by_name = {curve.name: curve for curve in curves}
        for curve in curves:
            if not curve.band_from:
                _line(axes, curve)
            elif curve.band_from in by_name:
                _band(axes, curve, by_name[curve.band_from])
    _time(axes, period)
    low, high = shown.defaults.get("min"), shown.defaults.get("max")
    axes.set_ylim(bottom=low, top=None if high is None else high * 1.02)
    if low == 0 and not any(value for curve in curves for _, value in curve.points):
        axes.set_ylim(top=1)
    axes.yaxis.set_major_locator(_ticker().MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(lambda value, _: formatted(value, shown.defaults["unit"]))
    axes.grid(axis="y", color=EDGE, linewidth=0.6)
    under = -(AXIS_INCHES + 0.02) / (box.inches[1] - TITLE_INCHES - MARK_INCHES - bottom)
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(-0.02, under),
        ncols=LEGEND_COLUMNS,
        frameon=False,
        fontsize=7.5,
        borderaxespad=0,
        handlelength=1.2,
        labelspacing=0.25,
        columnspacing=1.2,
    )


def _ticker() -> Any:
    from matplotlib import ticker

    return ticker


def _line(axes: Any, curve: Curve) -> None:
    times, values = zip(*curve.points, strict=True)
    style = (0, (5, 3)) if curve.dashed else "-"
    order = 2 if curve.dashed else 3
    width = 0.8 + 0.7 * curve.width - (0.4 if curve.dashed else 0)
    axes.plot(times, values, linestyle=style, color=curve.colour, linewidth=width, label=curve.name, zorder=order)


def _band(axes: Any, curve: Curve, lower: Curve) -> None:
    below = dict(lower.points)
    times, values = zip(*curve.points, strict=True)
    floor = [below.get(at, value) for at, value in curve.points]
    axes.fill_between(times, values, floor, color=curve.colour, alpha=0.16, linewidth=0)


def _states(box: _Box, shown: Shown, curves: Sequence[Curve], period: Period) -> None:
    axes = box.axes(left=0.15, right=0.15, top=TITLE_INCHES + 0.25, bottom=AXIS_INCHES + 0.3)
    met: dict[float, tuple[str, str]] = {}
    for number, curve in enumerate(reversed(curves)):
        for (start, value), (end, _) in pairwise((*curve.points, (period.end, curve.last))):
            met[value] = _, colour = shown.meaning(value)
            axes.broken_barh([(start, end - start)], (number + 0.1, 0.8), color=colour, linewidth=0)
        axes.text(
            0.01, number + 0.5, curve.name, va="center", color=PAGE, weight="bold", transform=axes.get_yaxis_transform()
        )
    axes.set_ylim(0, len(curves))
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    _time(axes, period)
    from matplotlib.patches import Patch

    axes.legend(
        handles=[Patch(color=colour, label=text) for _, (text, colour) in sorted(met.items())],
        loc="upper left",
        bbox_to_anchor=(0, -0.26 / (box.inches[1] - TITLE_INCHES - AXIS_INCHES - 0.55)),
        ncols=6,
        frameon=False,
        fontsize=7.5,
        borderaxespad=0,
        handlelength=1,
    )


def _time(axes: Any, period: Period) -> None:
    axes.set_xlim(period.start, period.end)
    axes.xaxis.set_major_locator(_ticker().FixedLocator(list(_minutes(period))))
    axes.xaxis.set_major_formatter(lambda at, _: f"{(at - period.start) // 60:.0f}:{(at - period.start) % 60:02.0f}")
    axes.tick_params(length=2)
    for name, at in period.marks.items():
        axes.axvline(at, color=GRAY, linewidth=0.6, alpha=0.7, zorder=1)
        axes.text(at, 1.01, f" {name}", fontsize=6.5, color=GRAY, va="bottom", transform=axes.get_xaxis_transform())


def _minutes(period: Period) -> Iterator[float]:
    seconds = period.end - period.start
    step = next((each for each in (15, 30, 60, 120, 300, 600) if seconds / each <= 7), 3600)
    return (period.start + n * step for n in range(int(seconds // step) + 1))


def _numbers(box: _Box, shown: Shown, curves: Sequence[Curve]) -> None:
    from matplotlib.patches import Rectangle

    axes = box.axes(left=0.15, right=0.15, top=TITLE_INCHES + 0.05, bottom=0.12)
    axes.set_axis_off()
    axes.set_xlim(0, 1)
    axes.set_ylim(0, len(curves))
    whole = shown.panel["options"]["colorMode"] == "background"
    for number, curve in enumerate(reversed(curves)):
        text, colour = shown.meaning(curve.last)
        colour = curve.colour if curve.fixed else colour
        axes.add_patch(Rectangle((0, number + 0.05), 1, 0.9, facecolor=colour if whole else EDGE, linewidth=0))
        ink = PAGE if whole else colour
        axes.text(0.04, number + 0.5, curve.name, va="center", color=PAGE if whole else TEXT, fontsize=8.5)
        axes.text(0.96, number + 0.5, text, va="center", ha="right", color=ink, fontsize=12, weight="bold")


def _bars(box: _Box, shown: Shown, curves: Sequence[Curve]) -> None:
    axes = box.axes(left=0.15, right=0.15, top=TITLE_INCHES + 0.05, bottom=0.12)
    axes.set_axis_off()
    axes.set_xlim(0, shown.defaults.get("max") or max(curve.last for curve in curves))
    axes.set_ylim(0, max(len(curves), 3))
    for number, curve in enumerate(reversed(curves)):
        text, colour = shown.meaning(curve.last)
        axes.barh(number + 0.35, axes.get_xlim()[1], height=0.4, color=EDGE)
        axes.barh(number + 0.35, curve.last, height=0.4, color=colour)
        axes.text(0, number + 0.62, curve.name, va="bottom", fontsize=8.5)
        axes.text(axes.get_xlim()[1], number + 0.62, text, va="bottom", ha="right", color=colour, weight="bold")


def _table(box: _Box, shown: Shown, curves: Sequence[Curve]) -> None:
    axes = box.axes(left=0.15, right=0.15, top=TITLE_INCHES + 0.05, bottom=0.1)
    axes.set_axis_off()
    columns = next(t["options"]["renameByName"] for t in shown.panel["transformations"] if t["id"] == "organize")
    rows = [tuple(columns.values()), *(tuple(c.labels.get(name, "") for name in columns) for c in curves)]
    lefts = _lefts(rows)
    height = LEGEND_INCHES * 1.4 / (box.inches[1] - TITLE_INCHES - 0.15)
    for number, row in enumerate(rows):
        for left, text in zip(lefts, row, strict=True):
            axes.text(
                left,
                1 - (number + 0.5) * height,
                text,
                va="center",
                color=TEXT if number else "#6e9fff",
                transform=axes.transAxes,
            )
        axes.axhline(1 - (number + 1) * height, color=EDGE, linewidth=0.6)
    axes.set_ylim(0, 1)


def _lefts(rows: Sequence[Sequence[str]]) -> list[float]:
    """Where each column begins, as a share of the width, by the longest text of those before."""
    widths = [max(len(text) for text in column) + 2 for column in zip(*rows, strict=True)]
    return [sum(widths[:number]) / sum(widths) for number in range(len(widths))]
