"""Admit, degrade or refuse one candidate on one backend. A plain function of what is known now; it changes nothing.

The level is the worse of the tier in force and the tier the candidate itself would cause. The candidate is degraded to
that level; if it still crosses REJECT its cap is lowered to whatever fits, down to the floor, before it is refused.
An idle engine takes whatever can run at all, so that a request larger than the REJECT threshold is not starved.
"""

import enum
from dataclasses import dataclass, replace
from typing import Protocol

from kvguard.admission.capacity import Capacity
from kvguard.admission.condition import Passage
from kvguard.admission.footprint import Demand
from kvguard.admission.forecast import Lengths, remaining_output
from kvguard.admission.occupancy import Held, Ratios, TelemetryState
from kvguard.admission.policy import Degradation, DegradePolicy, degrade, floor_cap
from kvguard.admission.reasons import RejectReason
from kvguard.admission.tiers import Tier, TierPolicy, pressure_of, tier_of


class BlindPolicy(enum.Enum):
    """What to do without a fresh gauge: decide on the ledger alone, let everything pass, or refuse everything."""

    LEDGER = "ledger"
    OPEN = "open"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionPolicy:
    """Everything an operator sets about decisions. What is `exempt` passes unchanged, however full the cache or
    long the backlog is.

    `max_prefill_backlog_tokens` bounds the prompt tokens that wait for their first token on one backend.
    """

    tiers: TierPolicy
    degrade: DegradePolicy
    blind: BlindPolicy = BlindPolicy.LEDGER
    exempt: bool = False
    max_prefill_backlog_tokens: int | None = None


class Known(Protocol):
    """What a decision looks at of a backend: its occupancy, or that of a moment gone by."""

    @property
    def capacity(self) -> Capacity | None: ...
    @property
    def ledger(self) -> Held: ...
    @property
    def lengths(self) -> Lengths: ...
    @property
    def sequences_left(self) -> int | None: ...
    def telemetry(self, now: float) -> TelemetryState: ...
    def ratios(self, now: float) -> Ratios | None: ...
    def ratios_of(self, capacity: Capacity, now: float, candidate: Demand | None = None) -> Ratios: ...
    def idle(self, now: float) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Admit:
    """Forward the request as `degradation` says; `demand` is what it then asks of the cache.

    `tier` is the strongest whose degradations it was given, so never REJECT. `probe` says that the engine's condition
    would refuse it, but that this one is to find out whether that still holds.
    """

    tier: Tier
    demand: Demand
    degradation: Degradation
    ratios: Ratios | None
    probe: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """Refuse the request. `needed_blocks` must come free before it could be admitted."""

    tier: Tier
    reason: RejectReason
    ratios: Ratios | None
    needed_blocks: float = 0.0


Decision = Admit | Reject

_BLIND_REASONS = {
    TelemetryState.STALE: RejectReason.STALE_METRICS,
    TelemetryState.MISSING: RejectReason.NO_METRICS,
    TelemetryState.UNREACHABLE: RejectReason.BACKEND_UNREACHABLE,
}


def refuse_blind(occupancy: Known, policy: AdmissionPolicy, now: float) -> RejectReason | None:
    """Why nothing can be admitted for want of knowledge, or None when a decision is possible."""
    state = occupancy.telemetry(now)
    if policy.blind is BlindPolicy.CLOSED and state is not TelemetryState.FRESH:
        return _BLIND_REASONS[state]
    if policy.blind is not BlindPolicy.OPEN and occupancy.capacity is None:
        return _BLIND_REASONS.get(state, RejectReason.NO_METRICS)
    return None


def blocks_until_open(occupancy: Known, policy: AdmissionPolicy, now: float) -> float:
    """Blocks that must come free before REJECT, once entered, is left; 0 while nothing is known."""
    capacity, tiers = occupancy.capacity, policy.tiers
    if capacity is None:
        return 0.0
    over = tiers.reject.ratio(occupancy.ratios_of(capacity, now)) - (tiers.reject.enter - tiers.exit_margin)
    return max(0.0, over * capacity.blocks)


def passes_blind(occupancy: Known, policy: AdmissionPolicy, now: float) -> bool:
    """Whether everything passes for want of knowledge, whatever the ledger says."""
    return policy.blind is BlindPolicy.OPEN and occupancy.telemetry(now) is not TelemetryState.FRESH


def refuse_any(
    occupancy: Known, tier: Tier, policy: AdmissionPolicy, now: float, passage: Passage
) -> RejectReason | None:
    """Why any request at all is refused while `tier` is in force; None when it depends on the request."""
    blind = refuse_blind(occupancy, policy, now)
    if blind is not None:
        return blind
    full = tier is Tier.REJECT and not policy.exempt and not passes_blind(occupancy, policy, now)
    if passage is Passage.SHUT or (full and passage is Passage.TRICKLE):
        return RejectReason.BACKEND_STALLED
    return RejectReason.SATURATED if full and passage is not Passage.DOUBT else None


def over_backlog(demand: Demand, occupancy: Known, policy: AdmissionPolicy) -> bool:
    """Whether more prompt tokens would wait for their first token than may. Where none wait, any prompt may."""
    limit = policy.max_prefill_backlog_tokens
    if limit is None:
        return False
    backlog = occupancy.ledger.prefill_tokens
    return backlog > 0 and backlog + demand.prompt_tokens > limit


def over_permits(demand: Demand, occupancy: Known, now: float) -> bool:
    """Whether the engine would refuse it, because it has as many requests as it takes in. An idle one is asked."""
    left = occupancy.sequences_left
    return left is not None and demand.sequences > left and not occupancy.idle(now)


def decide(
    demand: Demand,
    base: Tier,
    occupancy: Known,
    policy: AdmissionPolicy,
    now: float,
    passage: Passage = Passage.OPEN,
) -> Decision:
    """Decide on `demand` while `base` is the tier in force (hysteresis already applied)."""
    reason = refuse_blind(occupancy, policy, now)
    if reason is not None:
        return Reject(tier=base, reason=reason, ratios=None)
    if passage is Passage.SHUT:
        return Reject(tier=base, reason=RejectReason.BACKEND_STALLED, ratios=occupancy.ratios(now))
    decision = _decide_seeing(demand, base, occupancy, policy, now, passage)
    if passage is not Passage.TRICKLE:
        return decision
    if isinstance(decision, Admit):
        return replace(decision, probe=True)
    return replace(decision, reason=RejectReason.BACKEND_STALLED) if decision.reason.retryable else decision


def _decide_seeing(
    demand: Demand, base: Tier, occupancy: Known, policy: AdmissionPolicy, now: float, passage: Passage
) -> Decision:
    """Decide where nothing forbids to decide."""
    capacity = occupancy.capacity
    if capacity is None or passes_blind(occupancy, policy, now):
        return Admit(tier=Tier.NORMAL, demand=demand, degradation=Degradation(), ratios=occupancy.ratios(now))
    before = occupancy.ratios_of(capacity, now)
    too_large = demand.largest_prompt_blocks(capacity.rule) > capacity.largest_engine_blocks
    if too_large and not demand.estimated:  # a guess is no ground for a final refusal
        return Reject(tier=base, reason=RejectReason.TOO_LARGE, ratios=before)
    if policy.exempt:
        return Admit(tier=Tier.NORMAL, demand=demand, degradation=Degradation(), ratios=before)
    if over_backlog(demand, occupancy, policy) or over_permits(demand, occupancy, now):
        return Reject(tier=Tier.REJECT, reason=RejectReason.SATURATED, ratios=before)
    return _Weighing(occupancy, policy, capacity, now, passage).weigh(demand, base, before)


@dataclass(frozen=True, slots=True)
class _Weighing:
    """One candidate on the scales: what every step of the decision looks at."""

    occupancy: Known
    policy: AdmissionPolicy
    capacity: Capacity
    now: float
    passage: Passage

    def weigh(self, demand: Demand, base: Tier, before: Ratios) -> Decision:
        tiers, after = self.policy.tiers, self.occupancy.ratios_of(self.capacity, self.now, demand)
        level = max(base, tier_of(after, tiers))
        pressure = pressure_of(after, tiers) if level is Tier.TRIM else 1.0
        lighter, degradation = degrade(demand, level, self.policy.degrade, pressure)
        over = self._excess(lighter)
        if base is not Tier.REJECT:
            fitted = lighter if over < 0 else self._lowered(lighter)
            if fitted is not None:
                if fitted is not lighter:
                    degradation = replace(degradation, output_cap=fitted.output_cap)
                return Admit(tier=min(level, Tier.RESTRICT), demand=fitted, degradation=degradation, ratios=before)
            if self.occupancy.idle(self.now):
                return self._admit_idle(lighter, degradation, level, before)
        if self.passage is Passage.DOUBT:
            return replace(self._admit_idle(lighter, degradation, level, before), probe=True)
        kept = tiers.exit_margin * self.capacity.blocks if base is Tier.REJECT else 0.0
        needed = max(0.0, over + kept)
        return Reject(tier=Tier.REJECT, reason=RejectReason.SATURATED, ratios=before, needed_blocks=needed)

    def _lowered(self, demand: Demand) -> Demand | None:
        """The demand under the largest cap that stays below REJECT, or None when not even its floor does."""
        low = floor_cap(demand, self.policy.degrade)
        if low is None or self._excess(demand.with_cap(low)) >= 0:
            return None
        high = max(demand.expected_output, remaining_output(demand, 0, self.occupancy.lengths))
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._excess(demand.with_cap(middle)) < 0 else (low, middle)
        return demand.with_cap(low)

    def _admit_idle(self, demand: Demand, degradation: Degradation, level: Tier, before: Ratios) -> Admit:
        low = floor_cap(demand, self.policy.degrade)
        if low is not None:
            demand, degradation = demand.with_cap(low), replace(degradation, output_cap=low)
        return Admit(tier=min(level, Tier.RESTRICT), demand=demand, degradation=degradation, ratios=before)

    def _excess(self, demand: Demand) -> float:
        """Blocks the demand would take beyond the REJECT threshold; negative while it fits."""
        rule = self.policy.tiers.reject
        return (
            rule.ratio(self.occupancy.ratios_of(self.capacity, self.now, demand)) - rule.enter
        ) * self.capacity.blocks
