"""Admission over all backends: one plain call from reading occupancy to reserving, with no await in between."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kvguard.admission.calibration import LengthForecast, forecast_of
from kvguard.admission.decision import (
    AdmissionPolicy,
    Admit,
    Decision,
    Reject,
    blocks_until_open,
    decide,
    refuse_any,
)
from kvguard.admission.footprint import Demand
from kvguard.admission.ledger import Reservation, ReservationState
from kvguard.admission.occupancy import Ratios, TelemetryState
from kvguard.admission.policy import Degradation
from kvguard.admission.reasons import RejectReason
from kvguard.admission.recorded import DecisionRecord
from kvguard.admission.retry import RetryPolicy
from kvguard.admission.shares import within_share
from kvguard.admission.tiers import Tier, TierPolicy
from kvguard.admission.waiting import WaitingPolicy, WaitingRoom
from kvguard.pool.backend import Backend, TierChange
from kvguard.proxy.governance import Governance, Terms
from kvguard.proxy.recording import record_of
from kvguard.proxy.returning import DRAINING_AWAY, Returning

# Which refusal speaks for all when every backend refuses: the one that may pass soonest.
_HOPE = (
    RejectReason.SATURATED,
    RejectReason.TENANT_SHARE,
    RejectReason.STALE_METRICS,
    RejectReason.NO_METRICS,
    RejectReason.BACKEND_STALLED,
    RejectReason.BACKEND_UNREACHABLE,
    RejectReason.TOO_LARGE,
)

DemandOf = Callable[[Backend], Demand]
TierOn = Callable[[Backend, TierPolicy], Tier]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """What one backend would do with a request while `base` is the tier in force there; in `shadow` it only says so."""

    backend: Backend
    base: Tier
    demand: Demand
    decision: Decision
    shadow: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """A request that goes to `backend`, with its entry in the ledger there and the length forecast of its answer.

    In shadow mode `decision` leaves it as it came, and `verdict` is what would have been done to it. `record` is what a
    decision log keeps.
    """

    backend: Backend
    reservation: Reservation
    decision: Admit
    forecast: LengthForecast
    verdict: Decision | None = None
    record: DecisionRecord | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why no backend takes a request, what it would have held, and when to try again (None: never)."""

    reason: RejectReason
    tier: Tier
    message: str
    backend: str = ""
    ratios: Ratios | None = None
    predicted_blocks: int = 0
    retry_after_seconds: float | None = None
    wait_seconds: float | None = None
    param: str | None = None
    record: DecisionRecord | None = None


class Controller:
    """Decides for one pool. `on_tier_change` hears of every change of a tier.

    `governance` may be exchanged at any time; `policy` is that of requests nothing else is said about. `on_freed` is
    called whenever blocks may have come free; `room` holds those that wait for that. While
    `recording`, every outcome says how it came about.
    """

    def __init__(
        self,
        backends: Sequence[Backend],
        policy: AdmissionPolicy,
        retry: RetryPolicy,
        *,
        rng: random.Random,
        on_tier_change: Callable[[TierChange], None],
    ) -> None:
        self.backends = tuple(backends)
        self.draining = False
        self.recording = False
        self.governance = Governance.plain(policy)
        self.room = WaitingRoom(WaitingPolicy())
        self.returning = Returning(retry, self.room, rng)
        self.on_freed: Callable[[], None] = _nothing
        self._on_tier_change = on_tier_change

    @property
    def policy(self) -> AdmissionPolicy:
        return self.governance.table.default

    def retier(self, now: float) -> None:
        """Bring every backend's tiers up to date."""
        table = self.governance.table
        for backend in self.backends:
            change = backend.retier(table.default.tiers, now, table.other_tiers)
            if change is not None:
                self._on_tier_change(change)

    def refuse_early(
        self, now: float, possible: Sequence[Terms] = (), unless: Callable[[Refusal], bool] | None = None
    ) -> Refusal | None:
        """A refusal that holds for any request on `possible` terms (none: the usual ones), before its body is read;
        None when it depends on the request, or may be done without.
        """
        self.retier(now)
        possible = possible or self.governance.possible()
        early = self.early(now, possible)
        if early is None:
            return None
        backend, reject = early
        if unless is not None and unless(self._plain_refusal(backend, reject, now)):
            return None
        if backend is not None and reject.reason is RejectReason.SATURATED:
            backend.refused_blocks.add(backend.usual_blocks, now)
        record = record_of(backend, reject, possible, now) if self.recording and backend is not None else None
        return replace(self._refusal(backend, reject, now), record=record)

    def early(
        self, now: float, possible: Sequence[Terms], tier_on: TierOn | None = None
    ) -> tuple[Backend | None, Reject] | None:
        """Why a request is refused now on each of the terms it may have, and by which backend; None when it depends.
        Changes nothing.
        """
        tier_on = tier_on or _in_force
        if self.draining:
            tier = min(tier_on(backend, possible[0].policy.tiers) for backend in self.backends)
            return None, Reject(tier=tier, reason=RejectReason.DRAINING, ratios=None)
        found: list[tuple[Backend, Reject]] = []
        for terms in possible:
            rejects = [self._early(backend, terms, tier_on, now) for backend in self._answering(self.backends, now)]
            certain = [each for each in rejects if each is not None]
            if len(certain) < len(rejects):
                return None
            found += certain
        return min(found, key=lambda pair: hope(pair[1]))

    def _early(self, backend: Backend, terms: Terms, tier_on: TierOn, now: float) -> tuple[Backend, Reject] | None:
        policy, occupancy, tier = terms.policy, backend.occupancy, tier_on(backend, terms.policy.tiers)
        reason = refuse_any(occupancy, tier, policy, now, backend.passage(now))
        if reason is None or terms.shadow_on(backend.name):
            return None
        needed = blocks_until_open(occupancy, policy, now)
        return backend, Reject(tier=tier, reason=reason, ratios=occupancy.ratios(now), needed_blocks=needed)

    def weigh(
        self, demand_of: DemandOf, model: str | None, now: float, terms: Terms, tier_on: TierOn | None = None
    ) -> tuple[Weighed, ...]:
        """What each backend that is asked would do with the request. Changes nothing."""
        tier_on = tier_on or _in_force
        return tuple(
            _weighed(backend, demand_of(backend), tier_on(backend, terms.policy.tiers), terms, now)
            for backend in self._answering(self._serving(model), now)
        )

    def choose(self, weighed: Sequence[Weighed], now: float, terms: Terms) -> Weighed:
        """The backend the request fills least, a probe only where no other takes it; or else the most hopeful refusal,
        one in shadow first.
        """
        admits = [(each, each.decision) for each in weighed if isinstance(each.decision, Admit)]
        if not admits:
            rejects = [(each, each.decision) for each in weighed if isinstance(each.decision, Reject)]
            return min(rejects, key=lambda pair: (not pair[0].shadow, hope(pair[1])))[0]
        if len(admits) == 1:
            return admits[0][0]
        return min(admits, key=lambda pair: _load(pair[0].backend, pair[1], terms.policy, now))[0]

    def admit(
        self, demand_of: DemandOf, model: str | None, now: float, terms: Terms | None = None
    ) -> Admission | Refusal:
        """Reserve on the backend the request fills least, or say why none takes it; without `terms` on the usual."""
        terms = terms or self.governance.terms(model=model)
        self.retier(now)
        chosen = self.choose(self.weigh(demand_of, model, now, terms), now, terms)
        backend, decision, verdict = chosen.backend, chosen.decision, None
        record = self._record(chosen, model, now, terms)
        backend.note(chosen.demand)
        if isinstance(decision, Admit) and decision.probe:
            backend.watch.probed(now)
        if chosen.shadow:
            unchanged = Admit(tier=Tier.NORMAL, demand=chosen.demand, degradation=Degradation(), ratios=decision.ratios)
            decision, verdict = unchanged, decision
        if isinstance(decision, Reject):
            return replace(self._refused(chosen, decision, now), record=record)
        forecast = forecast_of(decision.demand, backend.occupancy.lengths)
        reservation = backend.reserve(decision.demand, now, terms.caller.tenant)
        return Admission(
            backend=backend,
            reservation=reservation,
            decision=decision,
            forecast=forecast,
            verdict=verdict,
            record=record,
        )

    def would_refuse(self, demand_of: DemandOf, model: str | None, now: float, terms: Terms) -> Refusal | None:
        """What `admit` would say if it refused; nothing is counted, and nobody told when to come back."""
        self.retier(now)
        chosen = self.choose(self.weigh(demand_of, model, now, terms), now, terms)
        if chosen.shadow or not isinstance(chosen.decision, Reject):
            return None
        return self._plain_refusal(chosen.backend, chosen.decision, now)

    def _refused(self, chosen: Weighed, reject: Reject, now: float) -> Refusal:
        blocks = _blocks(chosen.demand, chosen.backend)
        if reject.reason is not RejectReason.TENANT_SHARE:  # more capacity would not let this one in
            chosen.backend.refused_blocks.add(blocks, now)
        return self._refusal(chosen.backend, reject, now, blocks)

    def turn_away(
        self, demand_of: DemandOf, model: str | None, now: float, terms: Terms, reason: RejectReason
    ) -> Refusal:
        """A refusal for this reason, even if the request would fit: others go first."""
        self.retier(now)
        chosen = self.choose(self.weigh(demand_of, model, now, terms), now, terms)
        record = self._record(chosen, model, now, terms)
        refusal = self._turned_away(chosen, now, reason)
        return replace(refusal, record=record and replace(record, turned_away=refusal.reason))

    def _turned_away(self, chosen: Weighed, now: float, reason: RejectReason) -> Refusal:
        if isinstance(chosen.decision, Reject):
            passing = chosen.decision.reason in DRAINING_AWAY
            reject = replace(chosen.decision, reason=reason) if passing else chosen.decision
            return self._refused(chosen, reject, now)
        needed = float(_blocks(chosen.demand, chosen.backend))
        ratios = chosen.decision.ratios
        return self._refused(chosen, Reject(tier=chosen.base, reason=reason, ratios=ratios, needed_blocks=needed), now)

    def _record(self, chosen: Weighed, model: str | None, now: float, terms: Terms) -> DecisionRecord | None:
        if not self.recording:
            return None
        return record_of(chosen.backend, chosen.decision, (terms,), now, chosen.demand, model)

    def recount(self, admission: Admission, counted: Demand) -> None:
        """Correct a live reservation by an exact count of its prompts."""
        reservation = admission.reservation
        admission.backend.ledger.amend(reservation, reservation.demand.with_prompts_of(counted))

    def settle(self, admission: Admission, *, completion_tokens: int, now: float) -> None:
        """End a reservation whose answer is whole, and learn from its length (summed over its sequences)."""
        admission.backend.learn(admission.decision.demand, completion_tokens, admission.forecast)
        admission.backend.end(admission.reservation, ReservationState.SETTLED, now)
        self.on_freed()

    def release(self, admission: Admission, *, now: float) -> None:
        """End a reservation on any other path; does nothing after `settle`."""
        admission.backend.end(admission.reservation, ReservationState.RELEASED, now)
        self.on_freed()

    def parents(self) -> dict[str, str]:
        """Every name that a backend lists and the model it belongs to: an adapter its parent, a base model itself."""
        own = {name: name for backend in self.backends for name in backend.models}
        return own | {adapter: base for backend in self.backends for adapter, base in backend.parents.items()}

    @property
    def tier(self) -> Tier:
        """The mildest tier in force: what a new request meets at best."""
        return min(backend.tier.tier for backend in self.backends)

    def reachable(self, model: str | None, now: float) -> Backend:
        """A backend for requests that take no KV: the least loaded of those that serve the model and answer."""
        return min(self._answering(self._serving(model), now), key=lambda backend: backend.ledger.live)

    def answering(self, now: float) -> tuple[Backend, ...]:
        """The backends that can be reached; all of them when none can."""
        return self._answering(self.backends, now)

    def _serving(self, model: str | None) -> tuple[Backend, ...]:
        """The backends that list the model; all of them when none does, and the engine says 404."""
        named = tuple(backend for backend in self.backends if model in backend.models)
        return named or self.backends

    def _answering(self, backends: tuple[Backend, ...], now: float) -> tuple[Backend, ...]:
        """Those that can be reached; all of them when none can, and the attempt tells."""
        answering = (b for b in backends if b.occupancy.telemetry(now) is not TelemetryState.UNREACHABLE)
        return tuple(answering) or backends

    def _refusal(self, backend: Backend | None, reject: Reject, now: float, blocks: int = 0) -> Refusal:
        return replace(
            self._plain_refusal(backend, reject, now),
            predicted_blocks=blocks,
            retry_after_seconds=self.returning.retry_after_seconds(backend, reject, blocks, now),
        )

    def _plain_refusal(self, backend: Backend | None, reject: Reject, now: float) -> Refusal:
        return Refusal(
            reason=reject.reason,
            tier=reject.tier,
            message=MESSAGES[reject.reason],
            backend=backend.name if backend else "",
            ratios=reject.ratios,
            wait_seconds=self.returning.wait_seconds(backend, reject, now),
        )


MESSAGES = {
    RejectReason.SATURATED: "The model server is full; retry after the time given in Retry-After.",
    RejectReason.QUEUE_TIMEOUT: "Neither KV cache nor a connection came free in time.",
    RejectReason.TOO_LARGE: "The prompt is larger than the model server's whole KV cache; it can never be served.",
    RejectReason.TENANT_SHARE: "Your share of the model server's KV cache is in use; retry after the time given in "
    "Retry-After.",
    RejectReason.STALE_METRICS: "The model server's load is not known: its metrics are stale.",
    RejectReason.NO_METRICS: "The model server's load is not known: it publishes no KV cache metrics.",
    RejectReason.BACKEND_UNREACHABLE: "The model server cannot be reached.",
    RejectReason.BACKEND_STALLED: "The model server answers but makes no progress.",
    RejectReason.DRAINING: "This proxy is shutting down.",
}


def _nothing() -> None:
    """What happens when nobody waits for blocks."""


def _blocks(demand: Demand, backend: Backend) -> int:
    capacity = backend.occupancy.capacity
    return demand.reserved_blocks(capacity.rule) if capacity else 0


def _in_force(backend: Backend, policy: TierPolicy) -> Tier:
    return backend.tier_under(policy).tier


def _weighed(backend: Backend, demand: Demand, base: Tier, terms: Terms, now: float) -> Weighed:
    policy, occupancy = terms.policy, backend.occupancy
    decision = decide(demand, base, occupancy, policy, now, backend.passage(now))
    if isinstance(decision, Admit):
        tenant, max_share = terms.caller.tenant, terms.tenant.max_share
        decision = within_share(decision, occupancy, policy, tenant=tenant, max_share=max_share, now=now)
    return Weighed(backend=backend, base=base, demand=demand, decision=decision, shadow=terms.shadow_on(backend.name))


def _load(backend: Backend, admit: Admit, policy: AdmissionPolicy, now: float) -> tuple[bool, int, float]:
    """Sorts admissions: probes last, then by the milder tier, then by how full the backend gets."""
    ratios = backend.occupancy.ratios(now, admit.demand)
    return admit.probe, admit.tier, 0.0 if ratios is None else policy.tiers.reject.ratio(ratios)


def hope(reject: Reject) -> tuple[int, float]:
    """Sorts refusals by how soon they may pass."""
    return _HOPE.index(reject.reason), reject.needed_blocks
