"""The picture: goodput over offered load, in answers and in tokens, one column of panels a shape."""

import statistics
from pathlib import Path
from typing import Any

from bench.overload.slices import (
    BARE,
    BUDGET,
    CEILING,
    COLD,
    COLD_ARMS,
    KVGUARD,
    LIMITED,
    SATURATION,
    UNLEARNED,
    Slice,
    in_order,
)

COLOURS = {
    BARE: "#b3261e",
    LIMITED: "#b7791f",
    SATURATION: "#7b5ea7",
    BUDGET: "#3b6ea5",
    CEILING: "#8a8a8a",
    KVGUARD: "#1a6b4a",
    COLD: "#6fb98f",
    UNLEARNED: "#a9d6bd",
}
OTHERS = ("#0f3d2b", "#2aa876", "#134e6f")
ROWS = (("answers", "goodput"), ("tokens", "token_goodput"))


def plot(slices: list[Slice], file: Path) -> None:
    """One line an arm, with the spread over rounds of kvguard's own."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "kvguard"
    from matplotlib import pyplot

    shapes = list(dict.fromkeys(s.shape for s in slices))
    size = (1.2 + 3.4 * len(shapes), 6.6)
    figure, panels = pyplot.subplots(len(ROWS), len(shapes), figsize=size, sharex=True, sharey="row", squeeze=False)
    for (counted, attribute), row in zip(ROWS, panels, strict=True):
        for shape, axes in zip(shapes, row, strict=True):
            _draw(axes, [s for s in slices if s.shape == shape], attribute)
        row[0].set_ylim(bottom=0)
        row[0].set_ylabel(f"good {counted}, share of capacity")
    for shape, top, bottom in zip(shapes, panels[0], panels[-1], strict=True):
        top.set_title(shape, fontsize=10)
        bottom.set_xlabel("offered load, in capacities", fontsize=9)
    lines, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(lines, labels, frameon=False, ncols=4, loc="lower center", fontsize=9)
    figure.tight_layout(rect=(0, 0.09, 1, 1))
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
    pyplot.close(figure)


def _draw(axes: Any, slices: list[Slice], attribute: str) -> None:
    arms = in_order(slices)
    others = dict(zip((arm for arm in arms if arm not in COLOURS), OTHERS, strict=False))
    for arm in arms:
        loads = sorted({s.load for s in slices if s.arm == arm})
        groups = [[getattr(s, attribute) for s in slices if s.arm == arm and s.load == load] for load in loads]
        colour = COLOURS.get(arm) or others.get(arm, "#000000")
        style = "--" if arm in (CEILING, *COLD_ARMS) else "-"
        middle = [statistics.median(group) for group in groups]
        axes.plot(loads, middle, style, marker="o", markersize=3, color=colour, label=arm)
        if arm == KVGUARD:
            axes.fill_between(loads, [min(g) for g in groups], [max(g) for g in groups], color=colour, alpha=0.12)
        axes.set_xscale("log", base=2)
        axes.set_xticks(loads, [f"{load:g}x" for load in loads])
    axes.grid(alpha=0.25)
