"""The picture: good answers over offered load on few and on many engines, and what the prefix caches served."""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.routing.report import groups, hit_rate
from bench.routing.results import (
    GUARDED_LEAST,
    GUARDED_ROUND_ROBIN,
    KVGUARD,
    LEAST,
    ROUND_ROBIN,
    Routed,
)

STYLES = {
    ROUND_ROBIN: ("#b3261e", "-"),
    LEAST: ("#b7791f", "-"),
    GUARDED_ROUND_ROBIN: ("#7b5ea7", "--"),
    GUARDED_LEAST: ("#3b6ea5", "--"),
    KVGUARD: ("#1a6b4a", "-"),
}

Measure = Callable[[Sequence[Routed]], float]


def plot(results: list[Routed], file: Path) -> None:
    """A column a shape; good answers for each number of engines, then prefix hits on the most."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "kvguard"
    from matplotlib import pyplot

    shapes, numbers = list(dict.fromkeys(r.seen.shape for r in results)), sorted({r.engines for r in results})
    rows = [(f"good answers, share of\ncapacity, {number} engines", number, _goodput) for number in numbers]
    rows.append((f"prefix hits, share of\ntokens, {numbers[-1]} engines", numbers[-1], hit_rate))
    size = (1.2 + 3.4 * len(shapes), 0.6 + 2.6 * len(rows))
    figure, panels = pyplot.subplots(len(rows), len(shapes), figsize=size, sharex=True, sharey="row", squeeze=False)
    for (label, number, measure), row in zip(rows, panels, strict=True):
        for shape, axes in zip(shapes, row, strict=True):
            _draw(axes, [r for r in results if (r.seen.shape, r.engines) == (shape, number)], measure)
        row[0].set_ylim(bottom=0)
        row[0].set_ylabel(label, fontsize=9)
    for shape, top, bottom in zip(shapes, panels[0], panels[-1], strict=True):
        top.set_title(shape, fontsize=10)
        bottom.set_xlabel("offered load, in capacities", fontsize=9)
    lines, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(lines, labels, frameon=False, ncols=len(labels), loc="lower center", fontsize=9)
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
    pyplot.close(figure)


def _goodput(group: Sequence[Routed]) -> float:
    return statistics.median(r.seen.goodput for r in group)


def _draw(axes: Any, results: list[Routed], measure: Measure) -> None:
    lines: dict[str, list[tuple[float, float]]] = {}
    for load, arm, group in groups(results):
        lines.setdefault(arm, []).append((load, measure(group)))
    for arm, points in lines.items():
        colour, style = STYLES[arm]
        axes.plot(*zip(*points, strict=True), style, marker="o", markersize=3, color=colour, label=arm)
    loads = sorted({r.seen.load for r in results})
    axes.set_xscale("log", base=2)
    axes.set_xticks(loads, [f"{load:g}x" for load in loads])
    axes.minorticks_off()
    axes.grid(alpha=0.25)
