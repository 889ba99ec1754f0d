"""Draws one sequence's memory over its context: solid as held, dashed without windows. Needs matplotlib."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvguard.errors import SettingsError
from kvguard.estimate.model import Model
from kvguard.estimate.sizes import format_size

_LEFT: Final = 256
_RIGHT: Final = 131072
_PER_OCTAVE: Final = 8
_COLORS: Final = ("#0072b2", "#d55e00", "#009e73", "#b0578d", "#56b4e9", "#c98a00", "#000000", "#7a5195")
_INK: Final = "#444444"
_LABEL_GAP: Final = 0.042  # of the axes' height, between labels beside each other
_COLUMN: Final = _RIGHT * 1.25
_ROUNDS: Final = 200


def draw(models: Sequence[Model], path: Path) -> None:
    """Write a PNG or SVG, by the path's ending. Raise SettingsError without matplotlib or for a path that fails."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SettingsError(["--plot needs matplotlib: pip install 'kvguard[plot]'"]) from error
    # A fixed salt and no date make equal pictures equal files; text stays text.
    with mpl.rc_context({"svg.hashsalt": "kvguard", "svg.fonttype": "none", "font.size": 10}):
        figure = Figure(figsize=(9, 5.6), layout="constrained")
        _fill(figure, models)
        metadata = {"Date": None} if path.suffix.lower() == ".svg" else {"Software": None}
        try:
            figure.savefig(path, dpi=144, metadata=metadata)
        except OSError as error:
            raise SettingsError([f"--plot: {path} cannot be written: {error.strerror or error}"]) from error


def _fill(figure: Any, models: Sequence[Model]) -> None:
    axes = figure.add_subplot()
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    ends = []
    for index, model in enumerate(models):
        color = _COLORS[index % len(_COLORS)]
        tokens = _tokens(model)
        if model.placed.windowed:
            axes.plot(tokens, [_full(model, count) for count in tokens], "--", color=color, linewidth=1.1, alpha=0.75)
        held = [_held(model, count) for count in tokens]
        axes.plot(tokens, held, color=color, linewidth=2.2, solid_capstyle="round")
        axes.plot(tokens[-1:], held[-1:], "o", color=color, markersize=4)
        ends.append(_End(name=model.name, color=color, tokens=tokens[-1], size=max(1, held[-1])))
    _dress(axes, models)
    _label(axes, ends)


def _tokens(model: Model) -> list[int]:
    """Even steps on the logarithmic axis, to the end of the model's context."""
    right = min(_RIGHT, model.max_position_embeddings or _RIGHT)
    left = min(_LEFT, right)
    steps = range(int(_PER_OCTAVE * math.log2(right / left)))
    return [*(round(left * 2 ** (step / _PER_OCTAVE)) for step in steps), right]


def _held(model: Model, tokens: int) -> int:
    stage = model.placed.fullest(tokens)
    return stage.bytes_for(tokens) + stage.state_bytes()


def _full(model: Model, tokens: int) -> int:
    return max(stage.bytes_for(tokens) + stage.state_bytes() for stage in model.placed.without_windows())


def _dress(axes: Any, models: Sequence[Model]) -> None:
    low, high = axes.get_ylim()
    sizes = [1 << power for power in range(0, 60, 2) if low <= 1 << power <= high]
    contexts = [1 << power for power in range(8, 18)]
    axes.set_xticks(contexts, [f"{count:,}" for count in contexts])
    axes.set_yticks(sizes, [format_size(size) for size in sizes])
    axes.minorticks_off()
    axes.set_xlim(_LEFT, _RIGHT * 6)  # the labels stand to the right of the lines
    axes.set_ylim(low, high)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(colors=_INK, length=0)
    where = " on each GPU" if any(model.placed.gpus > 1 for model in models) else ""
    axes.set_xlabel("tokens with KV", color=_INK)
    axes.set_title(f"KV cache and state of one sequence{where}", loc="left", color=_INK)
    if any(model.placed.windowed for model in models):
        axes.plot([], [], color=_INK, linewidth=2.2, label="as held")
        axes.plot([], [], "--", color=_INK, linewidth=1.1, label="if no layer had a window")
        axes.legend(loc="upper left", frameon=False, labelcolor=_INK)


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """Where a line ends and what stands there."""

    name: str
    color: str
    tokens: int
    size: int


def _label(axes: Any, ends: Sequence[_End]) -> None:
    """Names in one column right of the lines, a thin line leading to each from where its own ends."""
    low, high = (math.log2(limit) for limit in axes.get_ylim())
    ordered = sorted(ends, key=lambda end: (end.size, end.name))
    heights = _spread([(math.log2(end.size) - low) / (high - low) for end in ordered])
    for end, height in zip(ordered, heights, strict=True):
        level = 2 ** (low + height * (high - low))
        path = ([end.tokens, _RIGHT, _COLUMN], [end.size, end.size, level])
        axes.plot(*path, ":", color=end.color, linewidth=1)
        axes.text(_COLUMN * 1.06, level, end.name, va="center", color=end.color, fontweight="bold")


def _spread(heights: Sequence[float]) -> list[float]:
    """Push sorted heights apart until each has room, both ways alike."""
    spread = list(heights)
    for _ in range(_ROUNDS):
        for index in range(len(spread) - 1):
            lacking = _LABEL_GAP - (spread[index + 1] - spread[index])
            if lacking > 0:
                spread[index] -= lacking / 2
                spread[index + 1] += lacking / 2
    return spread
