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
from kvguard.admission.reasons import RejectReason
from kvguard.admission.retry import RetryPolicy, retry_after_seconds
from kvguard.admission.tiers import Tier
from kvguard.pool.backend import Backend, TierChange

# Which refusal speaks for all when every backend refuses: the one that may pass soonest.
_HOPE = (
    RejectReason.SATURATED,
    RejectReason.STALE_METRICS,
    RejectReason.NO_METRICS,
    RejectReason.BACKEND_STALLED,
    RejectReason.BACKEND_UNREACHABLE,
    RejectReason.TOO_LARGE,
)

DemandOf = Callable[[Backend], Demand]
TierOn = Callable[[Backend], Tier]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """What one backend would do with a request while `base` is the tier in force there."""

    backend: Backend
    base: Tier
    demand: Demand
    decision: Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """A request that goes to `backend`, with its entry in the ledger there and the length forecast of its answer."""

    backend: Backend
    reservation: Reservation
    decision: Admit
    forecast: LengthForecast


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


class Controller:
    """Decides for one pool. `on_tier_change` hears of every change of a tier."""

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
        self.policy = policy
        self._retry = retry
        self._rng = rng
        self._on_tier_change = on_tier_change

    def retier(self, now: float) -> None:
        """Bring every backend's tier up to date."""
        for backend in self.backends:
            change = backend.retier(self.policy.tiers, now)
            if change is not None:
                self._on_tier_change(change)

    def refuse_early(self, now: float) -> Refusal | None:
        """A refusal that holds for any request, before its body is read; None when it depends on the request."""
        self.retier(now)
        early = self.early(now)
        return None if early is None else self._refusal(*early, now)

    def early(self, now: float, tier_on: TierOn | None = None) -> tuple[Backend | None, Reject] | None:
        """Why any request at all is refused now, and by which backend; None when it depends. Changes nothing."""
        tier_on = tier_on or _in_force
        if self.draining:
            tier = min(tier_on(backend) for backend in self.backends)
            return None, Reject(tier=tier, reason=RejectReason.DRAINING, ratios=None)
        rejects: list[tuple[Backend, Reject]] = []
        for backend in self._answering(self.backends, now):
            tier = tier_on(backend)
            reason = refuse_any(backend.occupancy, tier, self.policy, now, backend.passage(now))
            if reason is None:
                return None
            ratios = backend.occupancy.ratios(now)
            needed = blocks_until_open(backend.occupancy, self.policy, now)
            rejects.append((backend, Reject(tier=tier, reason=reason, ratios=ratios, needed_blocks=needed)))
        return min(rejects, key=lambda pair: _hope(pair[1]))

    def weigh(
        self, demand_of: DemandOf, model: str | None, now: float, tier_on: TierOn | None = None
    ) -> tuple[Weighed, ...]:
        """What each backend that is asked would do with the request. Changes nothing."""
        return tuple(
            self._weighed(backend, demand_of(backend), (tier_on or _in_force)(backend), now)
            for backend in self._answering(self._serving(model), now)
        )

    def _weighed(self, backend: Backend, demand: Demand, base: Tier, now: float) -> Weighed:
        decision = decide(demand, base, backend.occupancy, self.policy, now, backend.passage(now))
        return Weighed(backend=backend, base=base, demand=demand, decision=decision)

    def choose(self, weighed: Sequence[Weighed], now: float) -> Weighed:
        """The backend the request fills least, a probe only where no other takes it, or the most hopeful refusal."""
        admits = [(each, each.decision) for each in weighed if isinstance(each.decision, Admit)]
        if not admits:
            rejects = [(each, each.decision) for each in weighed if isinstance(each.decision, Reject)]
            return min(rejects, key=lambda pair: _hope(pair[1]))[0]
        if len(admits) == 1:
            return admits[0][0]
        return min(admits, key=lambda pair: self._load(pair[0].backend, pair[1], now))[0]

    def admit(self, demand_of: DemandOf, model: str | None, now: float) -> Admission | Refusal:
        """Reserve on the backend the request fills least, or say why none takes it."""
        self.retier(now)
        chosen = self.choose(self.weigh(demand_of, model, now), now)
        backend, decision = chosen.backend, chosen.decision
        backend.note(chosen.demand)
        if isinstance(decision, Reject):
            blocks = _blocks(chosen.demand, backend)
            backend.refused_blocks.add(blocks, now)
            return replace(self._refusal(backend, decision, now), predicted_blocks=blocks)
        if decision.probe:
            backend.watch.probed(now)
        forecast = forecast_of(decision.demand, backend.occupancy.lengths)
        reservation = backend.reserve(decision.demand, now)
        return Admission(backend=backend, reservation=reservation, decision=decision, forecast=forecast)

    def recount(self, admission: Admission, counted: Demand) -> None:
        """Correct a live reservation by an exact count of its prompts."""
        reservation = admission.reservation
        admission.backend.ledger.amend(reservation, reservation.demand.with_prompts_of(counted))

    def settle(self, admission: Admission, *, completion_tokens: int, now: float) -> None:
        """End a reservation whose answer is whole, and learn from its length (summed over its sequences)."""
        admission.backend.learn(admission.decision.demand, completion_tokens, admission.forecast)
        admission.backend.end(admission.reservation, ReservationState.SETTLED, now)

    def release(self, admission: Admission, *, now: float) -> None:
        """End a reservation on any other path; does nothing after `settle`."""
        admission.backend.end(admission.reservation, ReservationState.RELEASED, now)

    def parents(self) -> dict[str, str]:
        """The base model of every adapter that a backend lists, and of no name at all where there is only one."""
        parents = {adapter: base for backend in self.backends for adapter, base in backend.parents.items()}
        bases = frozenset().union(*(backend.models for backend in self.backends)) - parents.keys()
        return parents | {"": next(iter(bases))} if len(bases) == 1 else parents

    @property
    def tier(self) -> Tier:
        """The mildest tier in force: what a new request meets at best."""
        return min(backend.tier.tier for backend in self.backends)

    def reachable(self, model: str | None, now: float) -> Backend:
        """A backend for requests that take no KV: the least loaded of those that serve the model and answer."""
        return min(self._answering(self._serving(model), now), key=lambda backend: backend.ledger.live)

    def _serving(self, model: str | None) -> tuple[Backend, ...]:
        """The backends that list the model; all of them when none does, and the engine says 404."""
        named = tuple(backend for backend in self.backends if model in backend.models)
        return named or self.backends

    def _answering(self, backends: tuple[Backend, ...], now: float) -> tuple[Backend, ...]:
        """Those that can be reached; all of them when none can, and the attempt tells."""
        answering = (b for b in backends if b.occupancy.telemetry(now) is not TelemetryState.UNREACHABLE)
        return tuple(answering) or backends

    def _load(self, backend: Backend, admit: Admit, now: float) -> tuple[bool, int, float]:
        ratios = backend.occupancy.ratios(now, admit.demand)
        return admit.probe, admit.tier, 0.0 if ratios is None else self.policy.tiers.reject.ratio(ratios)

    def retry_bounds(self, backend: Backend | None, reject: Reject, now: float) -> tuple[float, float] | None:
        """Least and most seconds of the `Retry-After` such a refusal is given; None: never."""
        least = self._wait(backend, reject, now, replace(self._retry, spread=0.0), random.Random(0))
        return None if least is None else (least, least * (1 + self._retry.spread))

    def _wait(
        self, backend: Backend | None, reject: Reject, now: float, policy: RetryPolicy, rng: random.Random
    ) -> float | None:
        if reject.reason is RejectReason.SATURATED and backend is not None:
            return retry_after_seconds(backend.drain_seconds(reject.needed_blocks, now), policy=policy, rng=rng)
        if reject.reason is RejectReason.BACKEND_STALLED:
            return retry_after_seconds(None, policy=policy, rng=rng)
        # Nothing has to drain: whatever is wrong may be over at any time.
        return retry_after_seconds(0.0, policy=policy, rng=rng) if reject.reason.retryable else None

    def _refusal(self, backend: Backend | None, reject: Reject, now: float) -> Refusal:
        return Refusal(
            reason=reject.reason,
            tier=reject.tier,
            message=MESSAGES[reject.reason],
            backend=backend.name if backend else "",
            ratios=reject.ratios,
            retry_after_seconds=self._wait(backend, reject, now, self._retry, self._rng),
        )


MESSAGES = {
    RejectReason.SATURATED: "The model server's KV cache is full; retry after the time given in Retry-After.",
    RejectReason.QUEUE_TIMEOUT: "No connection to the model server came free in time.",
    RejectReason.TOO_LARGE: "The prompt is larger than the model server's whole KV cache; it can never be served.",
    RejectReason.STALE_METRICS: "The model server's load is not known: its metrics are stale.",
    RejectReason.NO_METRICS: "The model server's load is not known: it publishes no KV cache metrics.",
    RejectReason.BACKEND_UNREACHABLE: "The model server cannot be reached.",
    RejectReason.BACKEND_STALLED: "The model server answers but makes no progress.",
    RejectReason.DRAINING: "This proxy is shutting down.",
}


def _blocks(demand: Demand, backend: Backend) -> int:
    capacity = backend.occupancy.capacity
    return demand.reserved_blocks(capacity.rule) if capacity else 0


def _in_force(backend: Backend) -> Tier:
    return backend.tier.tier


def _hope(reject: Reject) -> tuple[int, float]:
    """Sorts refusals by how soon they may pass."""
    return _HOPE.index(reject.reason), reject.needed_blocks
