"""Metrics: what each event moves, and that unknown has no sample."""

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from kvguard.admission.blocks import PoolLayout
from kvguard.admission.calibration import LengthForecast
from kvguard.admission.capacity import CapacityPolicy
from kvguard.admission.footprint import Demand
from kvguard.admission.ledger import ReservationState
from kvguard.admission.lengths import LengthPolicy, LengthSource
from kvguard.admission.occupancy import OccupancyPolicy
from kvguard.admission.reachability import ThresholdState
from kvguard.admission.reasons import RejectReason
from kvguard.admission.tiers import Tier, TierPolicy
from kvguard.admission.usage import EngineUsage, UsageSample
from kvguard.pool.backend import Backend, TierChange, new_backend
from kvguard.pool.pool import Pool
from kvguard.telemetry.events import DecisionEvent, End, EndEvent, Mode, Outcome
from kvguard.telemetry.metrics import Metrics, PoolCollector


def fresh() -> tuple[Metrics, CollectorRegistry]:
    registry = CollectorRegistry()
    metrics = Metrics(registry, version="1", config_hash="abc")
    metrics.prepare(routes=("r",), backends=("b",))
    return metrics, registry


def event(outcome: Outcome, tier: Tier, reason: RejectReason | None = None) -> DecisionEvent:
    return DecisionEvent(
        request_id="x",
        route="r",
        outcome=outcome,
        tier=tier,
        reason=reason,
        prompt_tokens=10,
        requested_tokens=100,
        trimmed_tokens=40,
        retry_after_seconds=3.0 if reason else None,
    )


@pytest.mark.parametrize(
    ("outcome", "tier", "reason", "tokens"),
    [
        (Outcome.ADMITTED, Tier.NORMAL, None, {"prompt": 10, "requested": 100, "trimmed": 40, "rejected": 0}),
        (Outcome.DEGRADED, Tier.TRIM, None, {"prompt": 10, "requested": 100, "trimmed": 40, "rejected": 0}),
        (
            Outcome.REJECTED,
            Tier.REJECT,
            RejectReason.SATURATED,
            {"prompt": 0, "requested": 0, "trimmed": 0, "rejected": 110},
        ),
        (
            Outcome.FAILED,
            Tier.NORMAL,
            RejectReason.BACKEND_UNREACHABLE,
            {"prompt": 0, "requested": 0, "trimmed": 0, "rejected": 0},
        ),
    ],
)
def test_a_decision_counts_once_and_its_tokens_by_what_became_of_them(
    outcome: Outcome, tier: Tier, reason: RejectReason | None, tokens: dict[str, float]
) -> None:
    """Admitted tokens are prompt, requested and trimmed; refused ones are rejected; a failure adds none."""
    metrics, registry = fresh()
    metrics.decision(event(outcome, tier, reason))
    labels = {
        "route": "r",
        "outcome": outcome.value,
        "tier": str(int(tier)),
        "reason": reason.value if reason else "",
        "mode": "enforce",
    }
    assert registry.get_sample_value("kvguard_requests_total", labels) == 1
    for kind, expected in tokens.items():
        assert registry.get_sample_value("kvguard_tokens_total", {"kind": kind}) == expected
    refused = outcome is Outcome.REJECTED
    assert registry.get_sample_value("kvguard_retry_after_seconds_count") == refused


def test_an_end_reports_times_tokens_and_the_error_of_the_count() -> None:
    """Generated tokens and the prompt error come from the engine's own usage."""
    metrics, registry = fresh()
    metrics.end(
        EndEvent(
            request_id="x",
            route="r",
            backend="b",
            end=End.COMPLETE,
            seconds=2.0,
            first_byte_seconds=0.5,
            generated_tokens=30,
            predicted_prompt_tokens=12,
            count_source="local",
            prompt_tokens=10,
        )
    )
    metrics.end(EndEvent(request_id="x", route="r", backend="b", end=End.CANCELLED, seconds=1.0))
    value = registry.get_sample_value
    assert value("kvguard_exchanges_total", {"route": "r", "end": "complete"}) == 1
    assert value("kvguard_exchanges_total", {"route": "r", "end": "cancelled"}) == 1
    assert value("kvguard_tokens_total", {"kind": "generated"}) == 30
    counted = {"source": "local"}
    assert value("kvguard_prompt_error_tokens_sum", counted) == 2
    assert value("kvguard_prompt_error_tokens_count", counted) == 1
    assert (value("kvguard_upstream_seconds_sum"), value("kvguard_upstream_seconds_count")) == (3, 2)
    assert value("kvguard_time_to_first_byte_seconds_sum") == 0.5


def test_the_rest_of_the_events_are_counted() -> None:
    """Transitions, failed scrapes, counts and decision times each have their series."""
    metrics, registry = fresh()
    metrics.tier_change(TierChange(backend="b", before=Tier.NORMAL, after=Tier.RESTRICT))
    metrics.scrape_failed("b")
    metrics.counted("engine", 0.25)
    metrics.decided(0.5)
    value = registry.get_sample_value
    assert value("kvguard_tier_transitions_total", {"backend": "b", "tier": "2"}) == 1
    assert value("kvguard_scrape_failures_total", {"backend": "b"}) == 1
    assert value("kvguard_token_counts_total", {"source": "engine"}) == 1
    assert (value("kvguard_tokenize_seconds_sum"), value("kvguard_decision_seconds_sum")) == (0.25, 0.5)
    assert value("kvguard_build_info", {"version": "1"}) == value("kvguard_config_info", {"hash": "abc"}) == 1


def test_look_ups_of_a_name_are_counted_and_its_addresses_shown() -> None:
    """Both series are there from the start."""
    metrics, registry = fresh()
    metrics.prepare_discovery(("pool",))
    names = ("kvguard_discovery_failures_total", "kvguard_discovered_backends")
    assert [registry.get_sample_value(name, {"backend": "pool"}) for name in names] == [0, 0]
    metrics.discovery_failed("pool")
    metrics.discovered("pool", 3)
    assert [registry.get_sample_value(name, {"backend": "pool"}) for name in names] == [1, 3]


def collected(backend: Backend, now: float) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(PoolCollector(Pool((backend,)), lambda: now))
    return registry


def test_a_backend_nothing_is_known_of_has_states_but_no_numbers() -> None:
    """Unknown capacity, gauge and age have no sample; what kvguard itself counts is 0."""
    value = collected(new_backend("b", "http://b", OccupancyPolicy(), LengthPolicy()), 0.0).get_sample_value
    for name in ("kvguard_kv_capacity_tokens", "kvguard_kv_capacity_bytes", "kvguard_scrape_age_seconds"):
        assert value(name, {"backend": "b"}) is None
    assert value("kvguard_demand_ratio", {"backend": "b"}) is None
    for kind in ("observed", "projected", "peak"):
        for engine in ("0", "all"):
            assert value("kvguard_kv_usage_ratio", {"backend": "b", "engine": engine, "kind": kind}) is None
    assert value("kvguard_telemetry_state", {"backend": "b", "state": "unreachable"}) == 1
    assert value("kvguard_telemetry_state", {"backend": "b", "state": "fresh"}) == 0
    assert value("kvguard_ledger_blocks", {"backend": "b"}) == 0


def test_a_backend_in_use_shows_every_number() -> None:
    """Gauge, projection, peak, capacity, demand and the ledger are read at the moment of the scrape."""
    capacity = CapacityPolicy(layout_of=lambda size: replace(PoolLayout.plain(size), block_bytes=16 * 1024))
    backend = new_backend("b", "http://b", OccupancyPolicy(capacity=capacity), LengthPolicy())
    engine = EngineUsage(engine="0", capacity_blocks=100, block_size=16, used_ratio=0.25)
    backend.occupancy.observe(UsageSample(engines=(engine,)), asked_at=9.0)
    demand = Demand(prompts=(32,), copies=2, output_cap=32, asked_cap=32, expected_output=32)
    reservation = backend.reserve(demand, 10.5)
    backend.refused_blocks.add(100, 11.0)
    value = collected(backend, 11.0).get_sample_value
    usage = {
        kind: value("kvguard_kv_usage_ratio", {"backend": "b", "engine": "all", "kind": kind})
        for kind in ("projected", "peak")
    }
    assert usage == {"projected": 0.29, "peak": 0.33}
    assert value("kvguard_kv_usage_ratio", {"backend": "b", "engine": "0", "kind": "observed"}) == 0.25
    assert value("kvguard_kv_capacity_tokens", {"backend": "b"}) == 1600
    assert value("kvguard_kv_capacity_bytes", {"backend": "b"}) == 1600 * 1024
    assert value("kvguard_demand_ratio", {"backend": "b"}) == pytest.approx(1.33)
    assert value("kvguard_inflight_requests", {"backend": "b"}) == 1
    assert value("kvguard_inflight_sequences", {"backend": "b"}) == 2
    assert value("kvguard_ledger_blocks", {"backend": "b"}) == 4
    assert value("kvguard_scrape_age_seconds", {"backend": "b"}) == 2.0
    backend.end(reservation, ReservationState.RELEASED, 11.0)
    backend.ledger.progress(reservation, 1)
    assert collected(backend, 11.0).get_sample_value("kvguard_ledger_violations_total", {"backend": "b"}) == 1


def threshold_states(backend: Backend) -> dict[str, list[str]]:
    """The states that read 1, by tier; every state has a sample."""
    value = collected(backend, 0.0).get_sample_value
    found: dict[str, list[str]] = {}
    for tier in ("trim", "restrict", "reject"):
        labels = {state.value: {"backend": "b", "tier": tier, "state": state.value} for state in ThresholdState}
        samples = {state: value("kvguard_threshold_state", labels[state]) for state in labels}
        assert set(samples.values()) <= {0.0, 1.0}
        found[tier] = [state for state, sample in samples.items() if sample == 1]
    return found


def test_every_threshold_is_in_exactly_one_state() -> None:
    """Unknown before the first review; afterwards as judged."""
    backend = new_backend("b", "http://b", OccupancyPolicy(), LengthPolicy())
    assert threshold_states(backend) == {tier: ["unknown"] for tier in ("trim", "restrict", "reject")}
    engine = EngineUsage(engine="0", capacity_blocks=100, block_size=16, used_ratio=0.25)
    backend.occupancy.observe(UsageSample(engines=(engine,)), asked_at=0.0)
    backend.max_num_seqs, backend.context_tokens = 8, 160
    backend.review(TierPolicy())
    assert threshold_states(backend) == {"trim": ["reachable"], "restrict": ["unreachable"], "reject": ["unreachable"]}


def test_the_block_rule_has_a_ratio_once_the_engine_publishes_its_tokens() -> None:
    """Absent when unknown, 1 when right."""
    backend = new_backend("b", "http://b", OccupancyPolicy(), LengthPolicy())
    backend.context_tokens = 160
    for tokens, ratio in ((None, None), (1600, 1.0), (3200, 2.0)):
        engine = EngineUsage(engine="0", capacity_blocks=100, capacity_tokens=tokens, block_size=16, used_ratio=0.25)
        backend.occupancy.observe(UsageSample(engines=(engine,)), asked_at=0.0)
        backend.review(TierPolicy())
        assert collected(backend, 0.0).get_sample_value("kvguard_block_rule_ratio", {"backend": "b"}) == ratio


def test_what_was_only_reported_moves_no_tokens_but_those_that_passed() -> None:
    """In shadow mode nothing is trimmed, rejected or told to retry, and the request passes whole."""
    metrics, registry = fresh()
    for outcome, reason in ((Outcome.REJECTED, RejectReason.SATURATED), (Outcome.DEGRADED, None)):
        metrics.decision(replace(event(outcome, Tier.REJECT, reason), mode=Mode.SHADOW))
    value = registry.get_sample_value
    labels = {"route": "r", "outcome": "rejected", "tier": "3", "reason": "saturated"}
    assert value("kvguard_requests_total", {**labels, "mode": "shadow"}) == 1
    assert value("kvguard_requests_total", {**labels, "mode": "enforce"}) == 0
    tokens = {kind: value("kvguard_tokens_total", {"kind": kind}) for kind in ("prompt", "trimmed", "rejected")}
    assert tokens == {"prompt": 20, "trimmed": 0, "rejected": 0}
    assert value("kvguard_retry_after_seconds_count") == 0


def test_tenants_nobody_configured_are_one() -> None:
    """Their names never become labels; those that the settings name do, from then on."""
    metrics, registry = fresh()
    metrics.configured(config_hash="new", tenants=frozenset({"lab"}))
    for tenant in ("lab", "made-up-1", "made-up-2"):
        metrics.decision(replace(event(Outcome.ADMITTED, Tier.NORMAL), tenant=tenant, priority="normal"))
    counted = {
        tenant: registry.get_sample_value(
            "kvguard_caller_requests_total",
            {"tenant": tenant, "priority": "normal", "outcome": "admitted", "mode": "enforce"},
        )
        for tenant in ("lab", "other", "made-up-1")
    }
    assert counted == {"lab": 1, "other": 2, "made-up-1": None}
    assert registry.get_sample_value("kvguard_config_info", {"hash": "new"}) == 1
    assert registry.get_sample_value("kvguard_config_info", {"hash": "abc"}) is None


def test_blocks_of_tenants_are_read_off_the_ledger() -> None:
    """Known ones apart, 0 included; all others together."""
    backend, registry = new_backend("b", "http://b", OccupancyPolicy(), LengthPolicy()), CollectorRegistry()
    registry.register(PoolCollector(Pool((backend,)), lambda: 0.0, lambda: frozenset({"lab", "idle"})))
    for tenant in ("lab", "x", "y"):
        backend.reserve(Demand(prompts=(3,), output_cap=1, asked_cap=1, expected_output=1), 0.0, tenant)
    held = {
        tenant: registry.get_sample_value("kvguard_tenant_blocks", {"backend": "b", "tenant": tenant})
        for tenant in ("lab", "idle", "other", "x")
    }
    assert held == {"lab": 4, "idle": 0, "other": 8, "x": None}


def test_faulty_changes_of_the_settings_are_counted() -> None:
    """From 0, so that the first is seen as a change."""
    metrics, registry = fresh()
    assert registry.get_sample_value("kvguard_config_reload_failures_total") == 0
    metrics.reload_failed()
    assert registry.get_sample_value("kvguard_config_reload_failures_total") == 1


def test_forecasts_are_counted_by_their_source() -> None:
    """From 0 on, so that a rate can be taken of the first."""
    backend = new_backend("b", "http://b", OccupancyPolicy(), LengthPolicy())
    demand = Demand(prompts=(32,), output_cap=100, asked_cap=100, expected_output=100)
    for length in (20, 21, 22):
        backend.learn(demand, length, LengthForecast(tokens=20, source=LengthSource.PRIOR))
    value = collected(backend, 0.0).get_sample_value
    for source, answers, exceeded in (("learned", 0, 0), ("prior", 3, 2), ("cap", 0, 0)):
        labels = {"backend": "b", "source": source}
        assert value("kvguard_forecast_answers_total", labels) == answers
        assert value("kvguard_forecast_exceeded_total", labels) == exceeded
