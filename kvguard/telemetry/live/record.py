"""What has happened lately, kept for whoever looks next. Bounded: so many happenings, so many seconds."""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from kvguard.pool.backend import Backend, ConditionChange, StandingChange, TierChange
from kvguard.telemetry.events import DecisionEvent, Mode, Outcome
from kvguard.telemetry.live.view import Happening, Moment, Traffic
from kvguard.telemetry.live.words import condition_words, decision_words, standing_words, tier_words

OTHER: Final = "other"
HAPPENINGS: Final = 60
HISTORY_SECONDS: Final = 300
TRAFFIC_SECONDS: Final = 60
# Of more backends than that only the first have a history on the page.
SERVERS_WITH_HISTORY: Final = 32


@dataclass(slots=True)
class _Second:
    """The requests of one second."""

    at: int
    outcomes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    tenants: Counter[str] = field(default_factory=Counter)
    classes: Counter[str] = field(default_factory=Counter)


class Record:
    """Hears of everything that is reported. `now` is monotonic, `wall` is for people, `tenants` may be named."""

    def __init__(
        self, now: Callable[[], float], wall: Callable[[], float], tenants: Callable[[], frozenset[str]] = frozenset
    ) -> None:
        self._now = now
        self._wall = wall
        self._tenants = tenants
        self._happenings: OrderedDict[tuple[object, ...], Happening] = OrderedDict()
        self._seconds: deque[_Second] = deque()
        self._moments: deque[Moment] = deque(maxlen=HISTORY_SECONDS)
        self._entered = 0

    @property
    def happenings(self) -> tuple[Happening, ...]:
        """The latest first."""
        return tuple(reversed(self._happenings.values()))

    @property
    def moments(self) -> tuple[Moment, ...]:
        """The latest last."""
        return tuple(self._moments)

    def decision(self, event: DecisionEvent) -> None:
        """Count a decision; one that did something to a request is a happening."""
        if event.moved:
            return
        second = self._second()
        second.outcomes[event.outcome.value] += 1
        if event.reason is not None:
            second.reasons[event.reason.value] += 1
        if event.outcome is Outcome.ADMITTED:
            return
        if event.mode is Mode.ENFORCE and event.outcome is not Outcome.FAILED:
            second.tenants[event.tenant if event.tenant in self._tenants() else OTHER] += 1
            second.classes[event.priority] += 1
        alike = (event.outcome, event.reason, event.backend, event.mode)
        self._happened("decision", int(event.tier), event.backend, decision_words(event), event.request_id, alike)

    def tier_change(self, change: TierChange) -> None:
        """A backend's tier changed."""
        self._happened("tier", int(change.after), change.backend, tier_words(change))

    def condition_change(self, change: ConditionChange) -> None:
        """A backend's engine is in another condition; only those that need looking at, and their ends, are told."""
        if change.after.alarming or change.before.alarming:
            self._happened("condition", 3 if change.after.alarming else 0, change.backend, condition_words(change))

    def standing(self, change: StandingChange) -> None:
        """A backend is in for something else than before."""
        self._happened("standing", 0, change.backend, standing_words(change))

    def sample(self, backends: Iterable[Backend]) -> None:
        """Keep how full the backends are now, and what this second brought."""
        now, second = self._now(), self._second()
        servers = {backend.name: _numbers(backend, now) for backend in islice(backends, SERVERS_WITH_HISTORY)}
        counts = self._since(now - 1.0)
        refused = counts[Outcome.REJECTED.value] + counts[Outcome.FAILED.value]
        self._moments.append(
            Moment(
                at=round(self._wall(), 1),
                servers=servers,
                admitted=counts[Outcome.ADMITTED.value],
                degraded=counts[Outcome.DEGRADED.value],
                refused=refused,
            )
        )
        self._forget(second.at)

    def traffic(self) -> Traffic:
        """The requests of the last minute."""
        self._forget(int(self._now()))
        sums = _Second(0)
        for second in self._seconds:
            sums.outcomes.update(second.outcomes)
            sums.reasons.update(second.reasons)
            sums.tenants.update(second.tenants)
            sums.classes.update(second.classes)
        return Traffic(
            seconds=TRAFFIC_SECONDS,
            outcomes={outcome.value: sums.outcomes[outcome.value] for outcome in Outcome},
            reasons=dict(sums.reasons.most_common()),
            tenants=dict(sums.tenants.most_common()),
            classes=dict(sums.classes.most_common()),
        )

    def _since(self, moment: float) -> Counter[str]:
        """Outcomes of the second before this one, which is over."""
        return next((second.outcomes for second in self._seconds if second.at == int(moment)), Counter())

    def _second(self) -> _Second:
        at = int(self._now())
        if not self._seconds or self._seconds[-1].at != at:
            self._seconds.append(_Second(at))
        return self._seconds[-1]

    def _forget(self, now: int) -> None:
        while self._seconds and self._seconds[0].at <= now - TRAFFIC_SECONDS:
            self._seconds.popleft()

    def _happened(
        self,
        kind: str,
        tier: int,
        backend: str,
        words: str,
        request_id: str = "",
        alike: tuple[object, ...] | None = None,
    ) -> None:
        """Note it; of what is `alike` within a second the last is kept, with their number."""
        at = self._wall()
        self._entered += 1
        key = (alike, int(at)) if alike else (self._entered,)
        before = self._happenings.pop(key, None)
        count = before.count + 1 if before else 1
        self._happenings[key] = Happening(
            at=round(at, 2), tier=tier, kind=kind, backend=backend, words=words, request_id=request_id, count=count
        )
        if len(self._happenings) > HAPPENINGS:
            self._happenings.popitem(last=False)


def _numbers(backend: Backend, now: float) -> tuple[float | None, float | None, float | None, int]:
    ratios, tier = backend.occupancy.ratios(now), int(backend.tier.tier)
    if ratios is None:
        return None, None, None, tier
    observed = None if ratios.observed is None else round(ratios.observed, 4)
    return observed, round(ratios.projected, 4), round(ratios.peak, 4), tier
