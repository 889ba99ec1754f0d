"""The four tiers and the hysteresis between them.

A tier is entered the moment its signal reaches its threshold. It is left only when the signal is below the threshold
minus the exit margin and the dwell time has passed; then the highest lower tier that still holds takes over.
"""

import enum
from dataclasses import dataclass, field

from kvguard.admission.occupancy import Ratios, Signal


class Tier(enum.IntEnum):
    """What happens to new requests; each tier includes the ones below it."""

    NORMAL = 0
    TRIM = 1
    RESTRICT = 2
    REJECT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TierRule:
    """A tier's threshold; it looks at the largest of its signals."""

    enter: float
    signals: tuple[Signal, ...]

    def ratio(self, ratios: Ratios) -> float:
        """The number this tier looks at."""
        return max(ratios.of(signal) for signal in self.signals)


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPolicy:
    """Thresholds of TRIM, RESTRICT and REJECT (rising), and how reluctantly they are left."""

    trim: TierRule = field(default_factory=lambda: TierRule(enter=0.70, signals=(Signal.PROJECTED,)))
    restrict: TierRule = field(default_factory=lambda: TierRule(enter=0.85, signals=(Signal.PROJECTED,)))
    reject: TierRule = field(default_factory=lambda: TierRule(enter=0.95, signals=(Signal.PROJECTED, Signal.PEAK)))
    exit_margin: float = 0.02
    min_dwell_seconds: float = 0.0

    def rules(self) -> tuple[tuple[Tier, TierRule], ...]:
        """Highest tier first."""
        return ((Tier.REJECT, self.reject), (Tier.RESTRICT, self.restrict), (Tier.TRIM, self.trim))


@dataclass(frozen=True, slots=True)
class TierState:
    """The tier in force and since when."""

    tier: Tier
    since: float


def tier_of(ratios: Ratios, policy: TierPolicy, *, slack: float = 0.0) -> Tier:
    """The highest tier whose signal is at or above its threshold minus `slack`."""
    for tier, rule in policy.rules():
        if rule.ratio(ratios) >= rule.enter - slack:
            return tier
    return Tier.NORMAL


def pressure_of(ratios: Ratios, policy: TierPolicy) -> float:
    """How far TRIM is on its way to RESTRICT, 0 at the one threshold and 1 from the other on."""
    if policy.restrict.ratio(ratios) >= policy.restrict.enter:
        return 1.0
    way = (policy.trim.ratio(ratios) - policy.trim.enter) / (policy.restrict.enter - policy.trim.enter)
    return min(max(way, 0.0), 1.0)


def next_tier(state: TierState, ratios: Ratios, policy: TierPolicy, now: float) -> TierState:
    """The tier in force after seeing `ratios` at `now`."""
    entered = tier_of(ratios, policy)
    if entered > state.tier:
        return TierState(entered, now)
    if entered is state.tier:
        return state
    held = tier_of(ratios, policy, slack=policy.exit_margin)
    if held >= state.tier or now - state.since < policy.min_dwell_seconds:
        return state
    return TierState(held, now)
