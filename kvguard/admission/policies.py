"""Which policy a request is decided by: the first row that covers its model and route, then its priority class.

Every combination is made once, when the settings are read. Clients choose models freely, so nothing is kept per model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, Self

from kvguard.admission.decision import AdmissionPolicy
from kvguard.admission.tiers import TierPolicy

NORMAL: Final = "normal"


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityClass:
    """A kind of traffic. Those of lower `rank` go first where requests wait; in `shadow` nothing is done to it."""

    name: str = NORMAL
    rank: int = 0
    shadow: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRow:
    """Requests for models of a pattern on some routes (none named: on all), and their policy by class."""

    by_class: Mapping[str, AdmissionPolicy]
    models: str = "*"
    routes: frozenset[str] = frozenset()

    def on(self, route: str) -> bool:
        """Whether requests on this route can be meant."""
        return not self.routes or route in self.routes

    def covers(self, model: str | None, route: str) -> bool:
        """Whether this request is meant; one that names no model only by the pattern of all."""
        return self.on(route) and (self.models == "*" or (model is not None and fnmatchcase(model, self.models)))


class PolicyTable:
    """Rows, first match first; the last covers everything. Each has a policy for every class, NORMAL among them."""

    def __init__(self, rows: Sequence[PolicyRow], classes: Sequence[PriorityClass]) -> None:
        self._rows = tuple(rows)
        self.classes = {each.name: each for each in classes}
        self.default = self._rows[-1].by_class[NORMAL]
        self._possible: dict[tuple[str, str], tuple[AdmissionPolicy, ...]] = {}
        tiers = [policy.tiers for row in self._rows for policy in row.by_class.values()]
        self.other_tiers: tuple[TierPolicy, ...] = tuple(
            policy for policy in dict.fromkeys(tiers) if policy != self.default.tiers
        )

    @classmethod
    def plain(cls, policy: AdmissionPolicy) -> Self:
        """One policy for everything."""
        return cls((PolicyRow(by_class={NORMAL: policy}),), (PriorityClass(),))

    def class_of(self, name: str) -> PriorityClass:
        """The class of this name; NORMAL where there is none."""
        return self.classes.get(name) or self.classes[NORMAL]

    def of(self, model: str | None, route: str, priority: str) -> AdmissionPolicy:
        """The policy of one request."""
        row = next(row for row in self._rows if row.covers(model, route))
        return row.by_class[self.class_of(priority).name]

    def possible(self, route: str, priority: str) -> tuple[AdmissionPolicy, ...]:
        """Every policy a request may turn out to have while its model is not known; routes are those served here."""
        name = self.class_of(priority).name
        found = self._possible.get((route, name))
        if found is None:
            rows = [row for row in self._rows if row.on(route)]
            last = next(number for number, row in enumerate(rows) if row.models == "*")
            found = tuple(dict.fromkeys(row.by_class[name] for row in rows[: last + 1]))
            self._possible[route, name] = found
        return found
