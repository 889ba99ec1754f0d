"""Slices -> the tables and the picture in docs/. Medians over rounds of ratios taken within each round.

`python -m bench.overload.report` writes them again from the last run's results.
"""

from collections.abc import Callable
from pathlib import Path

from bench.overload.pairs import MEASURES, Pairs
from bench.overload.plot import plot
from bench.overload.slices import (
    CEILING,
    FIRST_TOKEN_SECONDS,
    KVGUARD,
    LIMITED,
    PER_TOKEN_SECONDS,
    PROMPT_FIRST_TOKEN_SECONDS,
    RIVALS,
    Slice,
    in_order,
    median,
    read,
    spread,
)
from bench.overload.targets import OVERLOAD, Verdict, summary, verdicts, warm_kvguards
from bench.page import write_section

COLUMNS = (
    "offered load",
    "arm",
    "good answers, share of capacity",
    "of those offered",
    "full-length only",
    f"first token in {PROMPT_FIRST_TOKEN_SECONDS:g} s",
    "good tokens, share of capacity",
    "good tokens/s, of full-length answers",
    "shortened, of good",
    "refused",
    "client time-outs",
    "first token p50 / p99, s",
    "preemptions, of sent",
)

CAPACITY = 1.0
SUMS: tuple[Callable[[Slice], float], ...] = (
    lambda s: s.good,
    lambda s: s.whole_good,
    lambda s: s.prompt_good,
    lambda s: s.good_tokens,
    lambda s: s.timed_out,
    lambda s: s.preemptions,
)
TOGETHER = (
    "arm",
    "good answers",
    "of full length",
    f"first token in {PROMPT_FIRST_TOKEN_SECONDS:g} s",
    "good tokens",
    "client time-outs",
    "preemptions",
)


def report(slices: list[Slice]) -> str:
    """The whole section: what was met, then each shape."""
    found = verdicts(slices)
    good = (
        f"Good: the whole answer, first token within {FIRST_TOKEN_SECONDS:g} s, at most {PER_TOKEN_SECONDS:g} s a "
        "token. Figures are medians over rounds, with the least and the most of them in brackets."
    )
    parts = [good, *together(slices), "### Targets", summary(found)]
    for shape in dict.fromkeys(s.shape for s in slices):
        part = [s for s in slices if s.shape == shape]
        parts += [f"### {shape}", note(part), table(part), ratios(part), judged([v for v in found if v.shape == shape])]
    return "\n\n".join(part for part in parts if part)


def together(slices: list[Slice]) -> list[str]:
    """Every arm over all shapes and rounds, on the same arrivals: a slice alone has few answers."""
    parts = ([s for s in slices if s.load >= OVERLOAD], [s for s in slices if s.load == CAPACITY])
    return [_summed(part) for part in parts if part]


def _summed(slices: list[Slice]) -> str:
    loads = " and ".join(f"{load:g}x" for load in sorted({s.load for s in slices}))
    lines = [f"All shapes at {loads} together:", "", _line(TOGETHER), _line(["---"] * len(TOGETHER))]
    for arm in in_order(slices):
        group = [s for s in slices if s.arm == arm]
        sums = [sum(measure(s) for s in group) for measure in SUMS]
        lines.append(_line([f"`{arm}`", *(f"{total:g}" for total in sums)]))
    return "\n".join(lines)


def note(slices: list[Slice]) -> str:
    """How often one shape was visited, how fast the engine was, and how its own limit was set."""
    rounds, capacity = {s.round for s in slices}, [s.capacity for s in slices]
    limits = sorted({s.native_limit for s in slices if s.native_limit is not None})
    limited = f" `{LIMITED}` runs with `--max-num-queued-reqs {', '.join(map(str, limits))}`." if limits else ""
    return (
        f"{len(rounds)} round{'s' if len(rounds) > 1 else ''} of {slices[0].seconds:g} s a slice; the engine finished "
        f"{min(capacity):.1f} to {max(capacity):.1f} requests/s in them.{limited}"
    )


def table(slices: list[Slice]) -> str:
    """Every arm under every load of one shape."""
    lines = [_line(COLUMNS), _line(["---"] * len(COLUMNS))]
    for load in sorted({s.load for s in slices}):
        for arm in in_order(slices):
            group = [s for s in slices if s.load == load and s.arm == arm]
            if group:
                lines.append(_line([f"{load:g}x", arm, *_cells(group)]))
    return "\n".join(lines)


def _cells(group: list[Slice]) -> list[str]:
    def share(part: Callable[[Slice], float], whole: Callable[[Slice], int], places: int = 0) -> str:
        return f"{median(group, lambda s: part(s) / max(whole(s), 1)):.{places}%}"

    p50, p99 = median(group, lambda s: s.first_token(0.5)), median(group, lambda s: s.first_token(0.99))
    tokens, whole_tokens = (
        median(group, lambda s: s.good_tokens / s.seconds),
        median(group, lambda s: s.whole_good_tokens / s.seconds),
    )
    return [
        spread([s.goodput for s in group]),
        share(lambda s: s.good, lambda s: s.offered),
        f"{median(group, lambda s: s.whole_good / s.seconds / s.capacity):.2f}",
        f"{median(group, lambda s: s.prompt_good / s.seconds / s.capacity):.2f}",
        f"{median(group, lambda s: s.token_goodput):.2f}",
        f"{tokens:.0f}, {whole_tokens:.0f}",
        share(lambda s: s.shortened, lambda s: s.good),
        share(lambda s: s.refused, lambda s: s.offered),
        share(lambda s: s.timed_out, lambda s: s.offered),
        f"{p50:.2f} / {p99:.2f}",
        share(lambda s: s.preemptions, lambda s: s.sent_in_all, 1),
    ]


def ratios(slices: list[Slice]) -> str:
    """Every kvguard over every rival and the ceiling, by each measure and under each load, of one shape."""
    pairs, shape = Pairs(slices), slices[0].shape
    loads, arms = sorted({s.load for s in slices}), in_order(slices)
    rows = []
    for arm in warm_kvguards(slices):
        for rival in arms:
            if rival in (*RIVALS, CEILING) or (rival == KVGUARD != arm):
                for measure in MEASURES:
                    cells = [spread(pairs.over(measure, shape, load, arm, rival)) for load in loads]
                    rows.append(_line([f"`{arm}` over `{rival}`", measure.name, *cells]))
    if not rows:
        return ""
    head = ["", "in", *(f"{load:g}x" for load in loads)]
    return "\n".join([_line(head), _line(["---"] * len(head)), *rows])


def judged(found: list[Verdict]) -> str:
    """The targets of one shape, met or missed, under each load they are for."""
    if not found:
        return ""
    loads = sorted({v.load for v in found})
    head = ["target", *(f"{load:g}x" for load in loads)]
    lines = [_line(head), _line(["---"] * len(head))]
    for arm, target in dict.fromkeys((v.arm, v.target) for v in found):
        cells = {v.load: v.text for v in found if (v.arm, v.target) == (arm, target)}
        named = target.text if arm == KVGUARD else f"`{arm}`, {target.text}"
        lines.append(_line([named, *(cells.get(load, "") for load in loads)]))
    return "\n".join(lines)


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def write_report(results: Path, docs: Path | None) -> None:
    """Print what was met, and put tables and picture into docs/benchmarks.md unless there are no docs to write."""
    slices = read(results)
    if docs is None:
        print(report(slices))
        return
    print(summary(verdicts(slices)))
    write_section("overload", report(slices), docs / "benchmarks.md")
    plot(slices, docs / "overload.svg")


if __name__ == "__main__":
    root = Path(__file__).parents[2]
    write_report(root / "bench" / "results" / "overload.jsonl", root / "docs")
