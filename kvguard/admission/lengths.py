"""How long answers really are: output lengths learned by population and cap, old ones forgotten, nothing assumed.

Clients ask for far more than they use. Each population and each class of caps (powers of two) has a histogram of its
own, because a cap cuts what can be seen. The answer to "how long will this one get" is a quantile of the lengths beyond
what it has already produced, from the most specific histogram that has seen enough (`Population.asked`); a whole
model's answers under the class itself come before those under the classes above, because a lower cap only cuts the same
answers shorter. The engine's own histogram comes last of all. Memory is bounded: MAX_HISTOGRAMS of so many buckets.
"""

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kvguard.admission.histogram import LONGEST, Histogram
from kvguard.admission.population import ANYBODY, Key, Population
from kvguard.admission.prior import careful, prior_of
from kvguard.admission.saved import SavedHistogram
from kvguard.admission.usage import UsageSample

MAX_HISTOGRAMS: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthPolicy:
    """The share of answers that end within what is forecast, and how much must be seen before anything is said.

    An answer counts half as much once `half_life_answers` more have ended in its population.
    """

    quantile: float = 0.5
    min_answers: int = 30
    half_life_answers: int = 500


class LengthSource(enum.Enum):
    """Where a forecast comes from: answers seen here, the engine's own histogram, or what the request itself asks."""

    LEARNED = "learned"
    PRIOR = "prior"
    CAP = "cap"


class OutputLengths:
    """The lengths seen by one backend. `version` changes with everything that may change a forecast."""

    def __init__(self, policy: LengthPolicy) -> None:
        self._policy = policy
        # The least recently taught first.
        self._histograms: dict[tuple[Key, int], Histogram] = {}
        # Those of each population and class that have seen enough; found anew when one more has, one is dropped, or
        # another number is enough.
        self._found: dict[tuple[Population, int], tuple[Histogram, ...]] = {}
        self._prior: Histogram | None = None
        self._answers = 0
        self.version = 0

    def __len__(self) -> int:
        """Histograms kept."""
        return len(self._histograms)

    def follow(self, policy: LengthPolicy) -> None:
        """Go by another policy from now on; what was learned stays."""
        if policy == self._policy:
            return
        self._policy = policy
        for histogram in self._histograms.values():
            histogram.follow(quantile=policy.quantile, half_life_answers=policy.half_life_answers)
        if self._prior is not None:
            self._prior.follow(quantile=careful(policy.quantile), half_life_answers=policy.half_life_answers)
        self._found.clear()
        self.version += 1

    def observe(self, length: int, population: Population = ANYBODY, *, cap: int | None) -> None:
        """Note that an answer of `population` under `cap` ended after `length` tokens."""
        number = _class_of(cap)
        for key in population.taught():
            histogram = self._histograms.pop((key, number), None) or self._new()
            histogram.add(length)
            self._keep((key, number), histogram)
            if histogram.answers == self._policy.min_answers:
                self._found.clear()
        self._answers += 1
        self.version += 1

    def observe_engine(self, sample: UsageSample) -> None:
        """Take in what the engine has counted, while too little is known here.

        One that has counted too few, as after a restart, says nothing: what an earlier page said stays.
        """
        if self._answers >= self._policy.min_answers:
            return
        policy = self._policy
        prior = prior_of(sample, quantile=policy.quantile, half_life_answers=policy.half_life_answers)
        if prior.answers >= policy.min_answers and (self._prior is None or prior.answers != self._prior.answers):
            self._prior = prior
            self.version += 1

    def expected(self, population: Population = ANYBODY, *, cap: int | None, produced: int) -> int | None:
        """Total tokens of an answer that has `produced` so far; None while too little is known."""
        known = self.known(population, cap=cap, produced=produced)
        return None if known is None else known[0]

    def known(self, population: Population, *, cap: int | None, produced: int) -> tuple[int, LengthSource] | None:
        """The same, and where it comes from."""
        learned, anything = self._learned(population, cap, produced)
        if learned is not None:
            return learned, LengthSource.LEARNED
        if anything or self._prior is None or self._prior.answers < self._policy.min_answers:
            return None
        total = self._prior.expected(produced)
        return None if total is None else (total, LengthSource.PRIOR)

    def learned(self, population: Population, *, cap: int | None, produced: int) -> int | None:
        """The same by the answers seen here alone."""
        return self._learned(population, cap, produced)[0]

    def _learned(self, population: Population, cap: int | None, produced: int) -> tuple[int | None, bool]:
        """Total tokens, and whether anything at all is known of such answers: one may outlive all of them."""
        histograms = self._enough(population, _class_of(cap))
        for histogram in histograms:
            total = histogram.expected(produced)
            if total is not None:
                return total, True
        return None, bool(histograms)

    def _enough(self, population: Population, number: int) -> tuple[Histogram, ...]:
        """Histograms that have seen enough, the most specific first."""
        found = self._found.get((population, number))
        if found is None:
            if len(self._found) >= MAX_HISTOGRAMS:
                self._found.clear()
            found = self._found[population, number] = tuple(self._search(population, number))
        return found

    def _search(self, population: Population, number: int) -> Iterator[Histogram]:
        for key in population.asked():
            _, route, caller, _ = key
            highest = number if route or caller else _UNCAPPED
            for above in range(number, highest + 1):
                histogram = self._histograms.get((key, above))
                if histogram is not None and histogram.answers >= self._policy.min_answers:
                    yield histogram

    def copy(self) -> "OutputLengths":
        """What is learned by now, to be saved while more is learned."""
        twin = OutputLengths(self._policy)
        twin._histograms = {key: histogram.copy() for key, histogram in self._histograms.items()}
        return twin

    def saved(self) -> tuple[SavedHistogram, ...]:
        """Everything learned here, the least recently taught first."""
        return tuple(
            SavedHistogram(
                model=model,
                route=route,
                caller=caller,
                stops=stops,
                cap_class=number,
                answers=histogram.answers,
                weights=histogram.weights(),
            )
            for ((model, route, caller, stops), number), histogram in self._histograms.items()
        )

    def restore(self, saved: Sequence[SavedHistogram]) -> None:
        """Start from what an earlier run has learned; within a half-life new answers weigh more than all of it."""
        for each in saved:
            histogram = self._new()
            histogram.pour(each.faded(self._policy.half_life_answers / 2), answers=each.answers)
            self._keep(((each.model, each.route, each.caller, each.stops), each.cap_class), histogram)
        self._found.clear()
        self.version += 1

    def _new(self) -> Histogram:
        return Histogram(quantile=self._policy.quantile, half_life_answers=self._policy.half_life_answers)

    def _keep(self, key: tuple[Key, int], histogram: Histogram) -> None:
        self._histograms[key] = histogram
        if len(self._histograms) > MAX_HISTOGRAMS:
            del self._histograms[next(iter(self._histograms))]
            self._found.clear()


_UNCAPPED: Final = LONGEST.bit_length() + 1


def _class_of(cap: int | None) -> int:
    return _UNCAPPED if cap is None else min(cap, LONGEST).bit_length()
