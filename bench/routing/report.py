"""Visits -> the tables in docs/. Medians over seeds; shares of requests and of tokens are over all seeds."""

from collections.abc import Callable, Iterator, Sequence

from bench.overload.slices import FIRST_TOKEN_SECONDS, PER_TOKEN_SECONDS, Slice, median, spread
from bench.page import quantile
from bench.routing.results import ARMS, KVGUARD, RIVALS, Routed

COLUMNS = (
    "offered load",
    "arm",
    "good answers, share of capacity",
    "of those offered",
    "of full length",
    "shortened, of good",
    "good tokens, share of capacity",
    "refused",
    "client time-outs",
    "first token p99, s",
    "preemptions, of sent",
    "prefix hits, of tokens asked for",
    "fullest engine over mean",
)


def report(results: Sequence[Routed]) -> str:
    """How kvguard's routing compares, then every figure."""
    seeds, by_engines = len({r.seen.round for r in results}), {r.engines: r.seen.seconds for r in results}
    seconds = ", ".join(f"{value:g} on {engines} engines" for engines, value in sorted(by_engines.items()))
    parts = [
        f"{seeds} seeds; simulated seconds a slice: {seconds}. Good: the whole answer, first token within "
        f"{FIRST_TOKEN_SECONDS:g} s, at most {PER_TOKEN_SECONDS:g} s a token. Figures are medians over seeds, with the "
        "least and the most of them in brackets; shares are over all seeds.",
        "Good answers and good tokens of `kvguard` over those of the others, all seeds together:",
        _table(("shape", "engines", "offered load", *(f"over `{arm}`" for arm in RIVALS)), _compared(results)),
    ]
    for shape, engines in dict.fromkeys((r.seen.shape, r.engines) for r in results):
        group = [r for r in results if (r.seen.shape, r.engines) == (shape, engines)]
        parts += [
            f"### {shape} on {engines} engines",
            f"They finish {group[0].seen.capacity:.1f} requests/s.",
            _table(COLUMNS, _rows(group)),
        ]
    return "\n\n".join(parts)


def groups(results: Sequence[Routed]) -> Iterator[tuple[float, str, list[Routed]]]:
    """The visits of each load and arm, in that order."""
    for load in sorted({r.seen.load for r in results}):
        for arm in ARMS:
            group = [r for r in results if (r.seen.load, r.seen.arm) == (load, arm)]
            if group:
                yield load, arm, group


def hit_rate(group: Sequence[Routed]) -> float:
    """Tokens found cached, of those asked for, over all visits."""
    asked = sum(r.watched.queried_tokens for r in group)
    return sum(r.watched.hit_tokens for r in group) / asked if asked else 0.0


def _rows(results: Sequence[Routed]) -> Iterator[tuple[str, ...]]:
    for load, arm, group in groups(results):
        seen = [r.seen for r in group]
        first_tokens = [seconds for s in seen for seconds in s.first_tokens]
        yield (
            f"{load:g}x",
            arm,
            spread([s.goodput for s in seen]),
            f"{_share(seen, lambda s: s.good, lambda s: s.offered):.0%}",
            f"{median(seen, lambda s: s.whole_good / s.seconds / s.capacity):.2f}",
            f"{_share(seen, lambda s: s.shortened, lambda s: s.good):.0%}",
            spread([s.token_goodput for s in seen]),
            f"{_share(seen, lambda s: s.refused, lambda s: s.offered):.0%}",
            f"{_share(seen, lambda s: s.timed_out, lambda s: s.offered):.0%}",
            f"{quantile(first_tokens, 0.99):.2f}" if first_tokens else "-",
            f"{_share(seen, lambda s: s.preemptions, lambda s: s.sent_in_all):.1%}",
            f"{hit_rate(group):.0%}",
            f"{median(group, lambda r: r.watched.imbalance):.2f}",
        )


def _compared(results: Sequence[Routed]) -> Iterator[tuple[str, ...]]:
    for shape, engines in dict.fromkeys((r.seen.shape, r.engines) for r in results):
        part = [r for r in results if (r.seen.shape, r.engines) == (shape, engines)]
        found = {(load, arm): [r.seen for r in group] for load, arm, group in groups(part)}
        for load in dict.fromkeys(load for load, _ in found):
            ours = found.get((load, KVGUARD), [])
            yield shape, str(engines), f"{load:g}x", *(_over(ours, found.get((load, arm), [])) for arm in RIVALS)


def _over(ours: Sequence[Slice], theirs: Sequence[Slice]) -> str:
    """Answers, then tokens."""
    return ", ".join(_ratio(_sum(ours, value), _sum(theirs, value)) for value in (_answers, _tokens))


def _ratio(ours: float, theirs: float) -> str:
    """Not a number anybody would quote where the others have next to nothing."""
    return f"{ours / theirs:.2f}" if theirs * _MOST_QUOTED > ours else f"over {_MOST_QUOTED}"


_MOST_QUOTED = 10


def _answers(seen: Slice) -> float:
    return seen.good


def _tokens(seen: Slice) -> float:
    return seen.good_tokens


def _sum(seen: Sequence[Slice], value: Callable[[Slice], float]) -> float:
    return sum(map(value, seen))


def _share(seen: Sequence[Slice], part: Callable[[Slice], float], whole: Callable[[Slice], float]) -> float:
    return _sum(seen, part) / max(_sum(seen, whole), 1)


def _table(columns: Sequence[str], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
