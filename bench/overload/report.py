"""Slices -> the table and the picture in docs/. Medians over rounds of ratios taken within each round.

`python -m bench.overload.report` writes them again from the last run's results.
"""

import dataclasses
import json
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from bench.page import write_section

FIRST_TOKEN_SECONDS = 2.0
PROMPT_FIRST_TOKEN_SECONDS = 0.5
PER_TOKEN_SECONDS = 0.25
ARMS = ("vllm", "vllm-queue-limit", "kvguard")
COLOURS = ("#b3261e", "#b7791f", "#1a6b4a")


@dataclass(frozen=True, slots=True)
class Slice:
    """One visit: one arm under one load for some seconds. `capacity` is what the engine finished a second."""

    round: int
    arm: str
    load: float
    capacity: float
    seconds: float
    offered: int
    good: int
    prompt_good: int
    good_tokens: int
    refused: int
    timed_out: int
    failed: int
    degraded: int
    cut: int
    first_tokens: list[float]
    preemptions: float

    @property
    def goodput(self) -> float:
        """Good answers a second, as a share of what the engine could finish in this round."""
        return self.good / self.seconds / self.capacity

    def first_token(self, quantile: float) -> float | None:
        """Seconds to the first token among those who got one."""
        seen = self.first_tokens
        return seen[min(int(quantile * len(seen)), len(seen) - 1)] if seen else None

    def as_dict(self) -> dict[str, object]:
        return dataclasses.asdict(self)

    def line(self) -> str:
        """One line for who watches the run."""
        return (
            f"{self.load:>4}x {self.arm:<17} goodput {self.goodput:5.2f}  good {self.good:>3}/{self.offered:<3} "
            f"refused {self.refused:>3}  time-outs {self.timed_out:>3}  failed {self.failed}  degraded {self.degraded} "
            f"cut {self.cut}  p50/p99 first token {self.first_token(0.5)}/{self.first_token(0.99)}  "
            f"preemptions {self.preemptions:.0f}"
        )


def read(file: Path) -> list[Slice]:
    return [Slice(**json.loads(line)) for line in file.read_text().splitlines()]


def median(slices: Iterable[Slice], value: Callable[[Slice], float | None]) -> float | None:
    known = [v for v in map(value, slices) if v is not None]
    return statistics.median(known) if known else None


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def table(slices: list[Slice]) -> str:
    lines = [
        "| offered load | arm | goodput, share of capacity: median (least to most) "
        f"| with first token in {PROMPT_FIRST_TOKEN_SECONDS:g} s | good tokens/s | refused "
        "| client time-outs | shortened, of good | first token p50 / p99, s | preemptions |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for load in sorted({s.load for s in slices}):
        for arm in ARMS:
            group = [s for s in slices if s.load == load and s.arm == arm]
            if group:
                lines.append(_row(load, arm, group))
    return "\n".join(lines)


def _row(load: float, arm: str, group: list[Slice]) -> str:
    def share(value: Callable[[Slice], int]) -> str:
        return f"{median(group, lambda s: value(s) / max(s.offered, 1)) or 0:.0%}"

    tokens = median(group, lambda s: s.good_tokens / s.seconds) or 0
    prompt = median(group, lambda s: s.prompt_good / s.seconds / s.capacity)
    cut = median(group, lambda s: s.cut / max(s.good, 1)) or 0
    p50, p99 = (median(group, lambda s, q=q: s.first_token(q)) for q in (0.5, 0.99))
    preemptions = median(group, lambda s: s.preemptions) or 0
    return (
        f"| {load:g}x | {arm} | {spread([s.goodput for s in group])} | {prompt or 0:.2f} | {tokens:.0f} "
        f"| {share(lambda s: s.refused)} "
        f"| {share(lambda s: s.timed_out)} | {cut:.0%} | {p50 or 0:.2f} / {p99 or 0:.2f} | {preemptions:.0f} |"
    )


def ratios(slices: list[Slice]) -> str:
    """The claims: each arm against itself at its best, and kvguard against the others, paired within rounds."""
    by_key = {(s.round, s.arm, s.load): s for s in slices}
    rounds = sorted({s.round for s in slices})
    top = max(s.load for s in slices)
    lines = []
    for arm in ARMS:
        kept = []
        for number in rounds:
            loads = [s.goodput for key, s in by_key.items() if key[0] == number and key[1] == arm]
            kept.append(by_key[number, arm, top].goodput / max(loads) if loads and max(loads) else 0.0)
        lines.append(f"- `{arm}` at {top:g}x keeps {spread(kept)} of its own best goodput.")
    for rival in ARMS[:-1]:
        for load in sorted({s.load for s in slices}):
            paired = [by_key[n, "kvguard", load].goodput / max(by_key[n, rival, load].goodput, 0.01) for n in rounds]
            lines.append(f"- kvguard over `{rival}` at {load:g}x: {spread(paired)}.")
        prompt = [by_key[n, "kvguard", top].prompt_good / max(by_key[n, rival, top].prompt_good, 1) for n in rounds]
        target = f"{top:g}x, first token within {PROMPT_FIRST_TOKEN_SECONDS:g} s"
        lines.append(f"- kvguard over `{rival}` at {target}: {spread(prompt)}.")
    return "\n".join(lines)


def write_report(results: Path, docs: Path, *, native_limit: int) -> None:
    """Put table, ratios and picture into docs/benchmarks.md between its markers."""
    slices = read(results)
    rounds = len({s.round for s in slices})
    capacity = [s.capacity for s in slices]
    note = (
        f"{rounds} rounds; the engine finished {min(capacity):.1f} to {max(capacity):.1f} requests/s in them. "
        f"`vllm-queue-limit` runs with `--max-num-queued-reqs {native_limit}`. Good: the whole answer, first token "
        f"within {FIRST_TOKEN_SECONDS:g} s, at most {PER_TOKEN_SECONDS:g} s a token."
    )
    write_section("overload", "\n".join([note, "", table(slices), "", ratios(slices)]), docs / "benchmarks.md")
    plot(slices, docs / "overload.svg")


def plot(slices: list[Slice], file: Path) -> None:
    """Goodput over offered load, one line an arm, with the spread over rounds; once for each first-token target."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "kvguard"
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(9, 3.8), sharey=True)
    targets = ((FIRST_TOKEN_SECONDS, "good"), (PROMPT_FIRST_TOKEN_SECONDS, "prompt_good"))
    for axes, (seconds, counted) in zip(panels, targets, strict=True):
        for arm, colour in zip(ARMS, COLOURS, strict=True):
            loads = sorted({s.load for s in slices if s.arm == arm})
            groups = [
                [getattr(s, counted) / s.seconds / s.capacity for s in slices if s.arm == arm and s.load == load]
                for load in loads
            ]
            axes.plot(loads, [statistics.median(g) for g in groups], marker="o", color=colour, label=arm)
            axes.fill_between(loads, [min(g) for g in groups], [max(g) for g in groups], color=colour, alpha=0.1)
        axes.set_xscale("log", base=2)
        axes.set_xticks(loads, [f"{load:g}x" for load in loads])
        axes.set_title(f"first token within {seconds:g} s", fontsize=10)
        axes.set_xlabel("offered load, in what the engine can finish")
        axes.grid(alpha=0.25)
    panels[0].set_ylim(bottom=0)
    panels[0].set_ylabel("goodput, share of capacity")
    panels[0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)


if __name__ == "__main__":
    root = Path(__file__).parents[2]
    write_report(root / "bench" / "results" / "overload.jsonl", root / "docs", native_limit=16)
