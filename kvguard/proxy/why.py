"""A decision in words that name the numbers and the settings behind it. It reads, and decides nothing."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from kvguard.admission.capacity import Capacity
from kvguard.admission.condition import EngineState
from kvguard.admission.decision import (
    AdmissionPolicy,
    Admit,
    BlindPolicy,
    Reject,
    over_backlog,
    over_permits,
    passes_blind,
)
from kvguard.admission.footprint import Demand, Trait
from kvguard.admission.occupancy import Occupancy, Ratios, TelemetryState
from kvguard.admission.policy import SequenceCut, TrimMode, degrade, floor_cap, trimmed_cap
from kvguard.admission.reasons import RejectReason
from kvguard.admission.tiers import Tier, TierRule, TierState, pressure_of, tier_of
from kvguard.pool.backend import Backend
from kvguard.pool.pool import FEW
from kvguard.proxy.placement import Weighed

_TRAITS = {
    Trait.OPTED_OUT: "the client opted out (x-kvguard-degrade: none)",
    Trait.TOOLS: "it has tools (degrade.trim_tools is off)",
    Trait.STRUCTURED_OUTPUT: "it asks for structured output (degrade.trim_structured_output is off)",
    Trait.REASONING: "it reasons before it answers (degrade.reasoning_models, or `thinking`)",
}


def reasons(weighed: Weighed, policy: AdmissionPolicy, tier: TierState, now: float) -> tuple[str, ...]:
    """Why a backend would decide like this; `tier` is the one that would be in force."""
    occupancy, decision = weighed.backend.occupancy, weighed.decision
    capacity = occupancy.capacity
    if isinstance(decision, Reject) and decision.reason is RejectReason.BACKEND_STALLED:
        return (f"refused (backend_stalled), because {condition_words(weighed.backend, now)}",)
    if isinstance(decision, Reject) and decision.reason not in (RejectReason.SATURATED, RejectReason.TOO_LARGE):
        return (f"refused ({decision.reason.value}), because {_blind(occupancy, policy, now)}",)
    if capacity is None or passes_blind(occupancy, policy, now):
        return (f"admitted unchanged, because {_blind(occupancy, policy, now)}",)
    if policy.exempt and isinstance(decision, Admit):
        return (*_probe(weighed, now), "admitted unchanged, because its class is exempt (classes[].exempt)")
    return tuple(_Words(weighed, policy, tier, capacity, now).lines())


def choice(chosen: Backend, preferred: Backend | None, *, takers: int, asked: int, margin: float) -> str:
    """Why it is this one of several backends that take a request."""
    if chosen is preferred:
        return (
            f"of {takers} backends that take it, it goes where prompts go that begin alike, as long as that one gets "
            f"no more than {margin:g} fuller than the emptiest (routing.affinity_margin)"
        )
    if asked > FEW:
        return f"of {takers} backends that take it, it goes to one that promised little of its blocks"
    return f"of {takers} backends that take it, it goes to the one that gets the least full"


def gauge_words(occupancy: Occupancy, now: float) -> str:
    """How far the gauge can be trusted, in words."""
    match occupancy.telemetry(now):
        case TelemetryState.FRESH:
            return "the gauge is fresh"
        case TelemetryState.STALE:
            patience = occupancy.policy.stale_after_seconds
            return (
                f"the gauge is {occupancy.age_seconds(now) or 0.0:.1f} s old, more than {patience:g} s "
                "(telemetry.stale_after_seconds)"
            )
        case TelemetryState.MISSING:
            return "the backend answers without a KV gauge"
        case TelemetryState.UNREACHABLE:
            return f"the backend cannot be reached ({occupancy.failures} failures in a row)"


def condition_words(backend: Backend, now: float) -> str:
    """The condition that refuses, in words."""
    condition, policy = backend.condition(now), backend.watch.policy
    match condition.state:
        case EngineState.SLEEPING:
            return "the engine is asleep (vllm:engine_sleep_state)"
        case EngineState.CONTRADICTION:
            return "the gauge says full, but nothing runs or waits there"
        case _:
            still = now - (now if condition.still_since is None else condition.still_since)
            limit = f"signals.stall_seconds {policy.stall_seconds:g}"
            return f"there is work, and no token came of it for {still:.1f} s ({limit})"


def _probe(weighed: Weighed, now: float) -> Iterator[str]:
    if isinstance(weighed.decision, Admit) and weighed.decision.probe:
        every = f"one every {weighed.backend.watch.policy.probe_seconds:g} s (signals.probe_seconds)"
        yield f"let through as a probe, {every}, because {condition_words(weighed.backend, now)}"


def _blind(occupancy: Occupancy, policy: AdmissionPolicy, now: float) -> str:
    fresh = occupancy.telemetry(now) is TelemetryState.FRESH
    when = f"telemetry.when_blind is {policy.blind.value}"
    if occupancy.capacity is not None or (not fresh and policy.blind is not BlindPolicy.LEDGER):
        return f"{gauge_words(occupancy, now)} and {when}"
    remedy = "set backends[].capacity_blocks and block_size"
    return f"{gauge_words(occupancy, now)}, and the capacity is not known: {remedy}; {when}"


def setting_of(tier: Tier) -> str:
    """The setting of a tier's threshold."""
    return f"tiers.{tier.name.lower()}_at"


def below_or_not(rule: TierRule, tier: Tier, ratios: Ratios, *, which: str = "") -> str:
    """`projected 0.872 with this request is at or above 0.85 (tiers.restrict_at)`."""
    ratio = rule.ratio(ratios)
    side = "at or above" if ratio >= rule.enter else "below"
    return f"{_signal(rule, ratios, rule.enter)}{which} is {side} {rule.enter:g} ({setting_of(tier)})"


def _signal(rule: TierRule, ratios: Ratios, against: float) -> str:
    """The number a tier looks at, by name, in as many digits as tell it from the threshold."""
    signal = max(rule.signals, key=ratios.of)
    ratio = ratios.of(signal)
    digits = next((digits for digits in (3, 4, 5, 6) if round(ratio, digits) != against or ratio == against), 9)
    return f"{signal.value} {ratio:.{digits}f}"


@dataclass(frozen=True, slots=True)
class _Words:
    """One decision that rests on numbers."""

    weighed: Weighed
    policy: AdmissionPolicy
    tier: TierState
    capacity: Capacity
    now: float

    def lines(self) -> Iterator[str]:
        occupancy, decision = self.weighed.backend.occupancy, self.weighed.decision
        if occupancy.telemetry(self.now) is not TelemetryState.FRESH:
            yield f"kvguard's own ledger decides alone, because {gauge_words(occupancy, self.now)}"
        yield from _probe(self.weighed, self.now)
        yield from self._size()
        if isinstance(decision, Reject) and decision.reason is RejectReason.TOO_LARGE:
            return
        yield self._level_words()
        yield from self._queue()
        if isinstance(decision, Admit):
            yield from self._cap(decision)
            yield from self._sequences(decision)
            yield from self._admitted(decision)
        elif over_backlog(self._demand, occupancy, self.policy):
            yield self._backlog()
        elif over_permits(self._demand, occupancy, self.now):
            yield self._permits(occupancy.permits or 0, occupancy.sequences_left or 0)
        else:
            yield self._refused(decision)

    @property
    def _demand(self) -> Demand:
        return self.weighed.demand

    @property
    def _level(self) -> Tier:
        return max(self.weighed.base, tier_of(self._with(self._demand), self.policy.tiers))

    @property
    def _pressure(self) -> float:
        return pressure_of(self._with(self._demand), self.policy.tiers) if self._level is Tier.TRIM else 1.0

    def _with(self, demand: Demand | None) -> Ratios:
        return self.weighed.backend.occupancy.ratios_of(self.capacity, self.now, demand)

    def _size(self) -> Iterator[str]:
        needed, there = self._demand.largest_prompt_blocks(self.capacity.rule), self.capacity.largest_engine_blocks
        if needed <= there:
            return
        size = f"the longest prompt needs {needed} blocks while it is computed, and an engine has {there} in all"
        if self._demand.estimated:
            yield f"{size}, but its tokens are only estimated, which is no ground for a final refusal"
        else:
            yield f"refused (too_large), because {size}: it can never run"

    def _level_words(self) -> str:
        base, with_it = self.weighed.base, self._with(self._demand)
        level = self._level
        rules = dict(self.policy.tiers.rules())
        if level is Tier.NORMAL:
            words = below_or_not(rules[Tier.TRIM], Tier.TRIM, with_it, which=" with this request")
            return f"NORMAL, because {words}"
        if level > base:
            return f"{level.name}, because {below_or_not(rules[level], level, with_it, which=' with this request')}"
        return f"{base.name} is in force, because {self._held(base)}"

    def _held(self, base: Tier) -> str:
        """What keeps the tier in force: its threshold, the margin below it, or the dwell time."""
        tiers, before = self.policy.tiers, self._with(None)
        for tier, rule in tiers.rules():
            if tier >= base and rule.ratio(before) >= rule.enter:
                return below_or_not(rule, tier, before, which=" without this request")
        for tier, rule in tiers.rules():
            exit_below = rule.enter - tiers.exit_margin
            if tier >= base and rule.ratio(before) >= exit_below:
                words = f"{_signal(rule, before, exit_below)} is not yet below {exit_below:g}"
                return f"{words} ({setting_of(tier)} less tiers.exit_margin {tiers.exit_margin:g})"
        ago = self.now - self.tier.since
        return f"it was entered {ago:.1f} s ago and is kept {tiers.min_dwell_seconds:g} s (tiers.min_dwell_seconds)"

    def _queue(self) -> Iterator[str]:
        backend = self.weighed.backend
        occupancy, condition = backend.occupancy, backend.condition(self.now)
        engines = occupancy.sample.engines if occupancy.sample else ()
        counts = f"which counts as {occupancy.policy.queue_floor_ratio:g} (telemetry.queue_floor_ratio)"
        if self._with(None).projected != occupancy.policy.queue_floor_ratio:
            return
        if any(each.waiting for each in engines):
            yield f"requests wait in the engine for blocks, {counts}"
        if condition.overcommitted:
            rate, limit = condition.preemptions_per_second, backend.watch.policy.max_preemptions_per_second
            more = f"{rate:.2f} requests a second, more than {limit:g} (signals.max_preemptions_per_second)"
            yield f"the engine preempts {more}, {counts}"

    def _cap(self, decision: Admit) -> Iterator[str]:
        cap, asked, policy = decision.degradation.output_cap, self._demand.output_cap, self.policy.degrade
        level_cap = degrade(self._demand, self._level, policy, self._pressure)[1].output_cap
        if cap is None:
            if self._level >= Tier.TRIM:
                yield f"the output cap stays, because {self._uncut()}"
            return
        lowered = f"the output cap is lowered from {'no limit' if asked is None else asked} to {cap}"
        if cap == level_cap:
            sliding = "" if policy.mode is TrimMode.STEP else f"degrade.mode proportional: {self._pressure:.0%} of "
            yield (
                f"{lowered} ({sliding}degrade.trim_factor {policy.trim_factor:g}, degrade.max_output_tokens "
                f"{policy.max_output_tokens}, degrade.floor_tokens {policy.floor_tokens})"
            )
        elif self._fits(decision.demand):
            yield f"{lowered}, the most that stays below {self._reject.enter:g} ({setting_of(Tier.REJECT)})"
        else:
            yield f"{lowered}, the least there is (degrade.floor_tokens)"

    @property
    def _reject(self) -> TierRule:
        return self.policy.tiers.reject

    def _fits(self, demand: Demand) -> bool:
        return self._reject.ratio(self._with(demand)) < self._reject.enter

    def _uncut(self) -> str:
        """Why the cap is not lowered, although the level says so."""
        if self._demand.output_cap == 0:
            return "nothing is generated"
        for trait, words in _TRAITS.items():
            if trait in self._demand.traits and (trait is Trait.OPTED_OUT or trait in self.policy.degrade.untrimmed):
                return words
        if trimmed_cap(self._demand, self.policy.degrade) is not None:
            return "TRIM has only just begun (degrade.mode proportional)"
        return f"it is {self._demand.output_cap}, no more than the least it could be given"

    def _sequences(self, decision: Admit) -> Iterator[str]:
        copies = self._demand.copies
        if self._level < Tier.RESTRICT or copies == 1:
            return
        if decision.demand.copies < copies:
            yield f"one sequence instead of {copies} (RESTRICT)"
        elif decision.degradation.cut is SequenceCut.NONE:
            yield f"{copies} sequences stay, because {_TRAITS[Trait.OPTED_OUT]}"
        else:
            yield f"{copies} sequences stay, because clients index into them (degrade.collapse_n is off)"

    def _admitted(self, decision: Admit) -> Iterator[str]:
        if decision.probe:
            return
        if not self._fits(decision.demand):
            words = below_or_not(self._reject, Tier.REJECT, self._with(decision.demand), which=" with it")
            yield f"admitted although {words}: nothing runs there, and an idle engine takes whatever can run"
        elif self._level is Tier.REJECT:
            words = below_or_not(self._reject, Tier.REJECT, self._with(decision.demand), which=" so degraded")
            yield f"admitted, because {words}"

    def _backlog(self) -> str:
        waiting, limit = self.weighed.backend.ledger.prefill_tokens, self.policy.max_prefill_backlog_tokens
        with_it = f"with the {self._demand.prompt_tokens} of this request more than {limit}"
        reason = f"{waiting} prompt tokens wait for their first token, {with_it} (signals.max_prefill_backlog_tokens)"
        return f"refused (saturated), because {reason}"

    def _permits(self, permits: int, left: int) -> str:
        more = f"{self._demand.sequences} of this request would be too many"
        return f"refused (saturated), because the server takes in {permits} sequences and has {permits - left}: {more}"

    def _refused(self, decision: Reject) -> str:
        needed = math.ceil(decision.needed_blocks - 1e-9)  # 9 that rounding made 9.0000001 are 9
        free = f"{needed} {'block' if needed == 1 else 'blocks'} must come free"
        if self.weighed.base is Tier.REJECT:
            return f"refused (saturated), because REJECT is in force; {free}"
        lighter, _ = degrade(self._demand, self._level, self.policy.degrade, self._pressure)
        which = " with this request as the tier degrades it" if lighter != self._demand else " with this request"
        words = below_or_not(self._reject, Tier.REJECT, self._with(lighter), which=which)
        least = floor_cap(lighter, self.policy.degrade)
        if least is None:
            return f"refused (saturated), because {words}, and its cap cannot be lowered: {self._uncut()}; {free}"
        at_least = _signal(self._reject, self._with(lighter.with_cap(least)), self._reject.enter)
        return f"refused (saturated), because {words}, and {at_least} under the least cap of {least} tokens; {free}"
