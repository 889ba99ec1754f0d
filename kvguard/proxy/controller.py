"""Admission over all backends: one plain call from reading occupancy to reserving, with no await in between."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from kvguard.admission.calibration import LengthForecast, forecast_of
from kvguard.admission.decision import (
    AdmissionPolicy,
    Admit,
    Decision,
    Reject,
    blocks_until_open,
    refuse_any,
)
from kvguard.admission.footprint import Demand
from kvguard.admission.ledger import Reservation, ReservationState
from kvguard.admission.occupancy import Ratios
from kvguard.admission.policy import Degradation
from kvguard.admission.reasons import RejectReason
from kvguard.admission.recorded import DecisionRecord
from kvguard.admission.retry import RetryPolicy
from kvguard.admission.tiers import Tier, TierPolicy
from kvguard.admission.waiting import WaitingPolicy, WaitingRoom
from kvguard.pool.backend import Backend, TierChange
from kvguard.pool.bars import Least
from kvguard.pool.pool import FEW, NO_HINTS, Pool, RoutingHints
from kvguard.proxy.governance import Governance, Terms
from kvguard.proxy.placement import Call, DemandOf, TierOn, Weighed, choose, hope
from kvguard.proxy.recording import record_of
from kvguard.proxy.returning import DRAINING_AWAY, Returning


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
        backends: Iterable[Backend],
        policy: AdmissionPolicy,
        retry: RetryPolicy,
        *,
        rng: random.Random,
        on_tier_change: Callable[[TierChange], None],
    ) -> None:
        self.pool = Pool(backends)
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

    @property
    def backends(self) -> tuple[Backend, ...]:
        return self.pool.backends

    def retier(self, now: float, backends: Iterable[Backend] | None = None) -> None:
        """Bring the tiers of these backends up to date, by default of all."""
        table = self.governance.table
        for backend in self.backends if backends is None else backends:
            change = backend.retier(table.default.tiers, now, table.other_tiers)
            if change is not None:
                self._on_tier_change(change)

    def refuse_early(
        self, now: float, possible: Sequence[Terms] = (), unless: Callable[[Refusal], bool] | None = None
    ) -> Refusal | None:
        """A refusal that holds for any request on `possible` terms (none: the usual ones), before its body is read;
        None when it depends on the request, or may be done without.
        """
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
        Changes no more than tiers, and those only without `tier_on`.
        """
        if self.draining:
            return None, Reject(tier=self.tier, reason=RejectReason.DRAINING, ratios=None)
        tier_on, found = tier_on or self._tier_on(now), list[tuple[Backend, Reject]]()
        many = len(self.backends) > FEW
        early = self._early_of_many if many else self._early
        # Mostly the first that is looked at has room.
        if many and any(early(backend, possible[0], tier_on, now) is None for backend in self.pool.open(now)):
            return None
        for backend in self.pool.asked(None, now):
            for terms in possible:
                certain = early(backend, terms, tier_on, now)
                if certain is None:
                    return None
                found.append((backend, certain))
        return min(found, key=lambda pair: hope(pair[1]), default=(None, self.nobody()))

    def nobody(self) -> Reject:
        """Why a request is refused that no backend may be asked about."""
        draining = any(backend.health.drained for backend in self.backends)
        reason = RejectReason.DRAINING if draining else RejectReason.BACKEND_UNREACHABLE
        return Reject(tier=self.tier, reason=reason, ratios=None)

    def _tier_on(self, now: float) -> TierOn:
        """The tier in force on a backend, brought up to date the first time it is asked for."""
        current = set[str]()

        def tier_on(backend: Backend, policy: TierPolicy) -> Tier:
            if backend.name not in current:
                current.add(backend.name)
                self.retier(now, (backend,))
            return backend.tier_under(policy).tier

        return tier_on

    def _early_of_many(self, backend: Backend, terms: Terms, tier_on: TierOn, now: float) -> Reject | None:
        """As below, or as it was found a moment ago and still is."""
        kind, state = f"{id(terms.policy)} any", backend.eased
        reject = backend.bars.find(kind, Least(), state)
        if reject is None:
            reject = self._early(backend, terms, tier_on, now)
            if reject is not None:
                backend.bars.put(kind, terms.policy, Least(), reject, state)
        return reject

    def _early(self, backend: Backend, terms: Terms, tier_on: TierOn, now: float) -> Reject | None:
        policy, occupancy, tier = terms.policy, backend.occupancy, tier_on(backend, terms.policy.tiers)
        reason = refuse_any(occupancy, tier, policy, now, backend.passage(now))
        if reason is None or terms.shadow_on(backend.group):
            return None
        needed = blocks_until_open(occupancy, policy, now)
        return Reject(tier=tier, reason=reason, ratios=occupancy.ratios(now), needed_blocks=needed)

    def choose(self, call: Call, now: float, tier_on: TierOn | None = None) -> Weighed | None:
        """What the backend that is chosen would do with the request; changes no more than tiers, as `early`."""
        return choose(self.pool, call, tier_on or self._tier_on(now), now)

    def call(
        self,
        demand_of: DemandOf,
        *,
        model: str | None = None,
        terms: Terms | None = None,
        hints: RoutingHints = NO_HINTS,
    ) -> Call:
        """A request as it is decided on; without `terms` on the usual."""
        return Call(demand_of=demand_of, model=model, terms=terms or self.governance.terms(model=model), hints=hints)

    def admit(self, call: Call, now: float) -> Admission | Refusal:
        """Reserve on the backend that is chosen, or say why none takes it."""
        chosen = self.choose(call, now)
        if chosen is None:
            return self._refusal(None, self.nobody(), now)
        backend, decision, verdict = chosen.backend, chosen.decision, None
        record = self._record(chosen, call, now)
        backend.note(chosen.demand)
        if isinstance(decision, Admit) and decision.probe:
            backend.watch.probed(now)
        if chosen.shadow:
            unchanged = Admit(tier=Tier.NORMAL, demand=chosen.demand, degradation=Degradation(), ratios=decision.ratios)
            decision, verdict = unchanged, decision
        if isinstance(decision, Reject):
            return replace(self._refused(chosen, decision, now), record=record)
        forecast = forecast_of(decision.demand, backend.occupancy.lengths)
        reservation = backend.reserve(decision.demand, now, call.terms.caller.tenant)
        self.pool.sent(backend, call.hints.trail, now)
        return Admission(
            backend=backend,
            reservation=reservation,
            decision=decision,
            forecast=forecast,
            verdict=verdict,
            record=record,
        )

    def would_refuse(self, call: Call, now: float) -> Refusal | None:
        """What `admit` would say if it refused; nothing is counted, and nobody told when to come back."""
        chosen = self.choose(call, now)
        if chosen is None:
            return self._plain_refusal(None, self.nobody(), now)
        if chosen.shadow or not isinstance(chosen.decision, Reject):
            return None
        return self._plain_refusal(chosen.backend, chosen.decision, now)

    def _refused(self, chosen: Weighed, reject: Reject, now: float) -> Refusal:
        blocks = _blocks(chosen.demand, chosen.backend)
        if reject.reason is not RejectReason.TENANT_SHARE:  # more capacity would not let this one in
            chosen.backend.refused_blocks.add(blocks, now)
        return self._refusal(chosen.backend, reject, now, blocks)

    def turn_away(self, call: Call, now: float, reason: RejectReason) -> Refusal:
        """A refusal for this reason, even if the request would fit: others go first."""
        chosen = self.choose(call, now)
        if chosen is None:
            return self._refusal(None, self.nobody(), now)
        record = self._record(chosen, call, now)
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

    def _record(self, chosen: Weighed, call: Call, now: float) -> DecisionRecord | None:
        if not self.recording:
            return None
        return record_of(chosen.backend, chosen.decision, (call.terms,), now, chosen.demand, call.model)

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
        return min((backend.tier.tier for backend in self.backends), default=Tier.NORMAL)

    def reachable(self, model: str | None, now: float) -> Backend | None:
        """A backend for requests that take no KV: the least loaded of those that serve the model and answer; None when
        there is none.
        """
        return min(self.pool.asked(model, now), key=lambda backend: backend.ledger.live, default=None)

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
            message=_NOT_WANTED
            if reject.reason is RejectReason.DRAINING and not self.draining
            else MESSAGES[reject.reason],
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


_NOT_WANTED = "The servers of this model take no new requests."


def _nothing() -> None:
    """What happens when nobody waits for blocks."""


def _blocks(demand: Demand, backend: Backend) -> int:
    capacity = backend.occupancy.capacity
    return demand.reserved_blocks(capacity.rule) if capacity else 0
