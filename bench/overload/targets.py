"""What kvguard is held to, and whether it got there: computed from the slices, never typed."""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from bench.overload.pairs import ANSWERS, TOKENS, WHOLE, Pairs
from bench.overload.slices import BUDGET, CEILING, COLD_ARMS, RIVALS, Slice, in_order, spread

OVERLOAD = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A bound on a number: at least so much, or less than so much as a share of requests."""

    name: str
    bound: float
    at_least: bool = True

    @property
    def text(self) -> str:
        return f"{self.name}: {f'at least {self.bound:g}' if self.at_least else f'below {self.bound:.0%}'}"


KEPT = Target(name="goodput over its own best", bound=0.95)
OVER_RIVAL = {
    measure: Target(name=f"{measure.name} over the best rival's", bound=1.2) for measure in (ANSWERS, WHOLE, TOKENS)
}
OVER_CEILING = {
    measure: Target(name=f"{measure.name} over the clairvoyant's", bound=0.9) for measure in (ANSWERS, TOKENS)
}
COLD_START = Target(name="answers over the budget gate's", bound=1.0)
PREEMPTIONS = Target(name="preemptions, of requests sent", bound=0.01, at_least=False)
TIME_OUTS = Target(name="client time-outs, of requests sent", bound=0.01, at_least=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A target under one load of one shape. `values` are one a round, or one for all of them."""

    target: Target
    arm: str
    shape: str
    load: float
    values: list[float]
    against: str | None = None

    @property
    def typical(self) -> float:
        return statistics.median(self.values)

    @property
    def margin(self) -> float:
        """How much better than the bound; below 0 it is missed."""
        return self.typical - self.target.bound if self.target.at_least else self.target.bound - self.typical

    @property
    def met(self) -> bool:
        return self.margin >= 0 if self.target.at_least else self.margin > 0

    @property
    def text(self) -> str:
        """What was measured, and how far from the bound it is."""
        by = f"{'met' if self.met else 'missed'} by "
        if not self.target.at_least:
            return f"{self.typical:.1%}: {by}{abs(self.margin):.1%}"
        against = f" `{self.against}`" if self.against else ""
        return f"{spread(self.values)}{against}: {by}{abs(self.margin):.2f}"


def verdicts(slices: list[Slice]) -> list[Verdict]:
    """Every target, for every warm kvguard, shape and overload; those that lack a slice are left out."""
    pairs = Pairs(slices)
    loads = sorted({s.load for s in slices})
    overloads = [load for load in loads if load >= OVERLOAD] or loads[-1:]
    found = []
    for shape in dict.fromkeys(s.shape for s in slices):
        for arm in warm_kvguards(slices):
            for load in overloads:
                if pairs.group(shape, arm, load):
                    found += [v for v in _of(pairs, arm, shape, load) if v.values]
        for load in loads:
            found += [v for v in _cold(pairs, shape, load) if v.values]
    return found


def warm_kvguards(slices: list[Slice]) -> list[str]:
    """kvguard and its variants, as far as they were visited."""
    return [arm for arm in in_order(slices) if arm not in (*RIVALS, CEILING, *COLD_ARMS)]


def _of(pairs: Pairs, arm: str, shape: str, load: float) -> Iterator[Verdict]:
    def verdict(target: Target, values: list[float], against: str | None = None) -> Verdict:
        return Verdict(target=target, arm=arm, shape=shape, load=load, values=values, against=against)

    if len(pairs.loads(shape, arm)) > 1:
        yield verdict(KEPT, pairs.kept(shape, arm, load))
    for measure, target in OVER_RIVAL.items():
        rival = pairs.best(measure, shape, load, RIVALS)
        if rival is not None:
            yield verdict(target, pairs.over(measure, shape, load, arm, rival), rival)
    for measure, target in OVER_CEILING.items():
        yield verdict(target, pairs.over(measure, shape, load, arm, CEILING))
    group = pairs.group(shape, arm, load)
    yield verdict(PREEMPTIONS, [sum(s.preemptions for s in group) / max(sum(s.sent_in_all for s in group), 1)])
    yield verdict(TIME_OUTS, [sum(s.timed_out for s in group) / max(sum(s.sent for s in group), 1)])


def _cold(pairs: Pairs, shape: str, load: float) -> Iterator[Verdict]:
    for arm in COLD_ARMS:
        values = pairs.over(ANSWERS, shape, load, arm, BUDGET)
        yield Verdict(target=COLD_START, arm=arm, shape=shape, load=load, values=values)


def summary(found: list[Verdict]) -> str:
    """One line for each arm and target: how often it is met, and the worst of all."""
    lines = []
    for arm, target in dict.fromkeys((v.arm, v.target) for v in found):
        group = [v for v in found if (v.arm, v.target) == (arm, target)]
        worst = min(group, key=lambda v: v.margin)
        lines.append(
            f"- `{arm}`, {target.text}: met in {sum(v.met for v in group)} of {len(group)}; "
            f"worst in {worst.shape} at {worst.load:g}x, {worst.text}."
        )
    return "\n".join(lines)
