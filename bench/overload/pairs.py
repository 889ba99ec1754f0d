"""Arms against each other: ratios are taken within a round, where both met the same arrivals on the same engine."""

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bench.overload.slices import PROMPT_FIRST_TOKEN_SECONDS, Slice


@dataclass(frozen=True, slots=True)
class Measure:
    """Something of a slice that more of is better."""

    name: str
    of: Callable[[Slice], float]


ANSWERS = Measure("answers", lambda s: s.good)
WHOLE = Measure("full-length answers", lambda s: s.whole_good)
PROMPT = Measure(f"answers begun within {PROMPT_FIRST_TOKEN_SECONDS:g} s", lambda s: s.prompt_good)
TOKENS = Measure("tokens", lambda s: s.good_tokens)
MEASURES = (ANSWERS, WHOLE, PROMPT, TOKENS)


class Pairs:
    """The slices of a run, to be asked for by shape, arm and load."""

    def __init__(self, slices: Iterable[Slice]) -> None:
        self._by_place: dict[tuple[str, str, float], dict[int, Slice]] = {}
        for one in slices:
            self._by_place.setdefault((one.shape, one.arm, one.load), {})[one.round] = one

    def group(self, shape: str, arm: str, load: float) -> list[Slice]:
        """One slice a round."""
        return list(self._by_place.get((shape, arm, load), {}).values())

    def loads(self, shape: str, arm: str) -> list[float]:
        return sorted(load for s, a, load in self._by_place if (s, a) == (shape, arm))

    def over(self, measure: Measure, shape: str, load: float, arm: str, rival: str) -> list[float]:
        """How many times the rival's, in each round that has both."""
        ours, theirs = (self._by_place.get((shape, name, load), {}) for name in (arm, rival))
        return [ratio(measure.of(ours[n]), measure.of(theirs[n])) for n in sorted(ours.keys() & theirs.keys())]

    def best(self, measure: Measure, shape: str, load: float, arms: Iterable[str]) -> str | None:
        """The arm with the most of it in the median over rounds; None where none of them was visited."""
        found = {arm: group for arm in arms if (group := self.group(shape, arm, load))}

        def typical(arm: str) -> float:
            return statistics.median(measure.of(s) / s.seconds / s.capacity for s in found[arm])

        return max(found, key=typical, default=None)

    def kept(self, shape: str, arm: str, load: float) -> list[float]:
        """Goodput there over that under the load where it is best in the median, in each round that has both."""
        best = max(
            self.loads(shape, arm), key=lambda at: statistics.median(s.goodput for s in self.group(shape, arm, at))
        )
        here, there = (self._by_place[shape, arm, at] for at in (load, best))
        return [ratio(here[n].goodput, there[n].goodput) for n in sorted(here.keys() & there.keys())]


def ratio(ours: float, theirs: float) -> float:
    """1 where there is nothing on either side."""
    if theirs:
        return ours / theirs
    return math.inf if ours else 1.0
