"""Metrics: what each event moves."""

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from kvguard.admission.reasons import RejectReason
from kvguard.admission.tiers import Tier
from kvguard.pool.backend import TierChange
from kvguard.telemetry.events import DecisionEvent, End, EndEvent, Mode, Outcome
from kvguard.telemetry.in_force import InForce
from kvguard.telemetry.metrics import Metrics


def fresh() -> tuple[Metrics, CollectorRegistry]:
    registry = CollectorRegistry()
    metrics = Metrics(registry, version="1", wall=lambda: 1700.0)
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
    assert value("kvguard_build_info", {"version": "1"}) == 1


def test_look_ups_of_a_name_are_counted_and_its_addresses_shown() -> None:
    """Both series are there from the start."""
    metrics, registry = fresh()
    metrics.prepare_discovery(("pool",))
    names = ("kvguard_discovery_failures_total", "kvguard_discovered_backends")
    assert [registry.get_sample_value(name, {"backend": "pool"}) for name in names] == [0, 0]
    metrics.discovery_failed("pool")
    metrics.discovered("pool", 3)
    assert [registry.get_sample_value(name, {"backend": "pool"}) for name in names] == [1, 3]


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
    metrics.settings.put(InForce(tenants=frozenset({"lab"})))
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


def exemplars(trace_id: str) -> dict[str, dict[str, str]]:
    """The exemplar of every sample that has one, after a request of this trace."""
    disable_created_metrics()
    metrics, registry = fresh()
    metrics.decision(replace(event(Outcome.ADMITTED, Tier.NORMAL), trace_id=trace_id))
    metrics.end(
        EndEvent(
            request_id="x",
            route="r",
            backend="b",
            end=End.COMPLETE,
            seconds=0.5,
            first_byte_seconds=0.02,
            trace_id=trace_id,
        )
    )
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {s.name: s.exemplar.labels for family in families for s in family.samples if s.exemplar}


def test_samples_lead_to_a_trace() -> None:
    """The decision, the time to the first byte and the whole time have exemplars, and nothing else has; none without a
    trace, or with what is no id of one.
    """
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    names = ("kvguard_requests_total", "kvguard_upstream_seconds_bucket", "kvguard_time_to_first_byte_seconds_bucket")
    assert exemplars(trace) == {name: {"trace_id": trace} for name in names}
    assert exemplars("") == exemplars("x" * 200) == {}


def test_a_request_refused_unread_counts_as_a_usual_one() -> None:
    """Nothing while none was read; then the mean of those that were, whatever became of them."""
    metrics, registry = fresh()
    refused = event(Outcome.REJECTED, Tier.REJECT, RejectReason.SATURATED)
    unread = replace(refused, prompt_tokens=0, requested_tokens=0)
    rejected = []
    for each in (unread, event(Outcome.ADMITTED, Tier.NORMAL), unread, replace(refused, prompt_tokens=210), unread):
        metrics.decision(each)
        rejected.append(registry.get_sample_value("kvguard_tokens_total", {"kind": "rejected"}))
    assert rejected == [0, 0, 110, 420, 630]
