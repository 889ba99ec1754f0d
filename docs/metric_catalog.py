"""What the page of metrics tells of each beside its help: the values its labels may have, and when to look at it."""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kvguard.admission.condition import EngineState
from kvguard.admission.lengths import LengthSource
from kvguard.admission.occupancy import TelemetryState
from kvguard.admission.reachability import ThresholdState
from kvguard.admission.reasons import RejectReason
from kvguard.admission.tiers import Tier
from kvguard.pool.health import Standing
from kvguard.telemetry.collector import THRESHOLDS
from kvguard.telemetry.conditions import PROBED
from kvguard.telemetry.events import End, Mode, Outcome, Phase, WaitEnd
from kvguard.telemetry.metrics import TOKEN_KINDS
from kvguard.tokenization.counter import CountSource

CONFIGURED = {
    "backend": "names of `backends`, of discovered ones `name/address`",
    "engine": "data-parallel engines as the server names them; `all` together",
    "route": "the generating paths of [routes](routes.md)",
    "tenant": "names of `tenants`; everybody else is `other`",
    "priority": "names of `classes`",
    "hash": "what `kvguard check-config` prints",
    "version": "release of kvguard",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """When to `look` at a metric, and the closed values of those of its `labels` that have such."""

    look: str
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def _of(values: Iterable[enum.Enum]) -> tuple[str, ...]:
    return tuple(str(each.value) for each in values)


def _entry(look: str, **labels: tuple[str, ...]) -> Entry:
    return Entry(look=look, labels=labels)


_TIERS = tuple(str(int(tier)) for tier in Tier)
_THRESHOLDS = tuple(tier.name.lower() for tier in THRESHOLDS)
_REASONS = ("", *_of(RejectReason))
_SOURCES = _of(CountSource)
_LENGTHS = _of(LengthSource)

CATALOG = {
    "kvguard_alert_push_failures_total": _entry("Nobody was paged: the receiver in `alerts` does not answer."),
    "kvguard_backend_ejections_total": _entry("Errors of one server: how often it was given up."),
    "kvguard_backend_shared_address": _entry("Usage jumps between scrapes: kvguard sees several servers as one."),
    "kvguard_backend_standing": _entry("Load is uneven: who takes no requests, and why.", standing=_of(Standing)),
    "kvguard_block_rule_ratio": _entry(
        "Projection and gauge disagree from the start: the geometry is not the model's."
    ),
    "kvguard_build_info": _entry("After a rollout: which releases run."),
    "kvguard_caller_requests_total": _entry(
        "Somebody complains: who is refused, and who sends so much.", outcome=_of(Outcome), mode=_of(Mode)
    ),
    "kvguard_config_info": _entry("Replicas behave differently: whether all have the same settings."),
    "kvguard_config_last_reload_success_timestamp_seconds": _entry("A change shows no effect: when it arrived."),
    "kvguard_config_last_reload_successful": _entry("A change shows no effect: 0 means the file has faults."),
    "kvguard_config_reload_failures_total": _entry("As above: how often."),
    "kvguard_decision_log_dropped_total": _entry("Before a replay: lines that are missing from the log."),
    "kvguard_decision_seconds": _entry("Latency rose and the engine's did not: what kvguard adds."),
    "kvguard_demand_ratio": _entry("Sizing: above 1 the servers are too few, whatever the gauge says."),
    "kvguard_discovered_backends": _entry("Servers were added or lost: how many are known."),
    "kvguard_discovery_failures_total": _entry("New servers get no requests: whether the name resolves."),
    "kvguard_engine_condition": _entry(
        "First, when requests hang: stalled and contradiction are faults, not load.", state=_of(EngineState)
    ),
    "kvguard_engine_preemptions_total": _entry("Answers got slow: the engine took in more than it can hold."),
    "kvguard_engine_probes_total": _entry(
        "Few requests pass to a stalled engine: these are the ones.", state=_of(PROBED)
    ),
    "kvguard_engine_waiting": _entry("Time to the first byte rose: whether they wait in the engine."),
    "kvguard_exchanges_total": _entry("Answers break off: by whose fault.", end=_of(End)),
    "kvguard_footprint_error_ratio": _entry("Far from 0 for long: kvguard counts another model than the one served."),
    "kvguard_forecast_answers_total": _entry("With the next one.", source=_LENGTHS),
    "kvguard_forecast_exceeded_total": _entry(
        "The peak is often surpassed: answers outgrow their forecast.", source=_LENGTHS
    ),
    "kvguard_forecast_quantile_ratio": _entry("With the one above: 1 minus this is the share to expect."),
    "kvguard_inflight_requests": _entry("Is anything being served at all."),
    "kvguard_inflight_sequences": _entry("Many more than requests: `n`, `best_of` or beams fill the cache."),
    "kvguard_kv_capacity_bytes": _entry("Sizing, in bytes."),
    "kvguard_kv_capacity_tokens": _entry("Absent: kvguard does not know how large the cache is, and admits blindly."),
    "kvguard_kv_usage_ratio": _entry(
        "First of all: how full it is, with what is on its way, and at its peak.",
        kind=("observed", "projected", "peak"),
    ),
    "kvguard_ledger_blocks": _entry("Gauge high and this low: load that does not come through this kvguard."),
    "kvguard_ledger_violations_total": _entry("Above 0: a bug of kvguard; report it."),
    "kvguard_prefill_backlog_tokens": _entry("Time to the first byte rose: long prompts before the others."),
    "kvguard_prompt_error_tokens": _entry("Footprints are off: whose count of prompts is wrong.", source=_SOURCES),
    "kvguard_requests_total": _entry(
        "First, when clients see errors: outcome and reason.",
        outcome=_of(Outcome),
        tier=_TIERS,
        reason=_REASONS,
        mode=_of(Mode),
    ),
    "kvguard_phase": _entry("A rollout hangs: what this process is doing.", phase=_of(Phase)),
    "kvguard_ready": _entry("Pods are out of the Service: whether this one asks to be."),
    "kvguard_reroutes_total": _entry("A server refuses connections, and nobody noticed."),
    "kvguard_retry_after_seconds": _entry("Refused clients come back too soon or too late."),
    "kvguard_scrape_age_seconds": _entry("The gauge stands still: how old it is."),
    "kvguard_scrape_failures_total": _entry("Stale or missing: since when scrapes fail."),
    "kvguard_shadow_mode": _entry("Nothing is refused though everything is full: 1 means it is only reported."),
    "kvguard_shared_prefix_blocks": _entry("More fits than footprints add up to: system prompts that are held once."),
    "kvguard_telemetry_state": _entry(
        "Refusals without load: stale and missing are faults of telemetry.", state=_of(TelemetryState)
    ),
    "kvguard_tenant_blocks": _entry("Who fills the cache."),
    "kvguard_threshold_state": _entry(
        "A tier never begins: it may be out of reach of this engine.", tier=_THRESHOLDS, state=_of(ThresholdState)
    ),
    "kvguard_tier": _entry("First of all: 0 is calm, 3 refuses."),
    "kvguard_tier_threshold_ratio": _entry("Beside the usage: where the tiers begin.", tier=_THRESHOLDS),
    "kvguard_tier_transitions_total": _entry("Tiers come and go: raise `tiers.exit_margin`.", tier=_TIERS),
    "kvguard_time_to_first_byte_seconds": _entry("What clients feel; tokenization and waiting included."),
    "kvguard_token_counts_total": _entry(
        "Counts got coarse: `learned` where `local` or `engine` should count.", source=_SOURCES
    ),
    "kvguard_tokenize_seconds": _entry("Latency rose and decisions are fast: counting prompts is slow."),
    "kvguard_tokens_total": _entry(
        "Sizing: offered is prompt + requested + rejected, admitted is prompt + requested - trimmed.",
        kind=TOKEN_KINDS,
    ),
    "kvguard_upstream_seconds": _entry("What the engine takes for whole answers."),
    "kvguard_wait_seconds": _entry("How long requests wait for room, and whether they get it.", end=_of(WaitEnd)),
    "kvguard_waiting_requests": _entry("With `waiting`: how many are in line now."),
}
