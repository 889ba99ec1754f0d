"""When each alert fires and when it does not: series of a kvguard `a` with a backend `b`, and what comes of them."""

from collections.abc import Mapping
from dataclasses import dataclass

SERVICE = {"job": "kvguard", "namespace": "llm"}
TARGET = {**SERVICE, "instance": "a"}
ON_BACKEND = {**SERVICE, "backend": "b"}


@dataclass(frozen=True, kw_only=True)
class AlertCase:
    """Series in promtool's notation, a value a minute's `interval`; at `at` the alert has these labels and `says` that,
    or does not fire.
    """

    alert: str
    about: str
    series: Mapping[str, str]
    at: str
    interval: str = "15s"
    labels: Mapping[str, str] | None = None
    says: str = ""

    @property
    def fires(self) -> bool:
        return self.labels is not None


def one(name: str, **labels: str) -> str:
    """A series of the target."""
    inside = ", ".join(f'{label}="{value}"' for label, value in (TARGET | labels).items())
    return f"{name}{{{inside}}}"


def tier(backend: str = "b") -> str:
    return one("kvguard_tier", backend=backend)


def requests(outcome: str, reason: str = "", mode: str = "enforce") -> str:
    return one("kvguard_requests_total", outcome=outcome, reason=reason, mode=mode, tier="3", route="/v1/completions")


def tokens(kind: str) -> str:
    return one("kvguard_tokens_total", kind=kind)


def sent(tenant: str, outcome: str) -> str:
    return one("kvguard_caller_requests_total", tenant=tenant, outcome=outcome, priority="normal", mode="enforce")


def state(name: str, value: str) -> str:
    return one(name, backend="b", state=value)


OVERLOAD = (
    AlertCase(
        alert="KvguardTierReject",
        about="tier 3 is in force at one look and requests are refused",
        series={tier(): "0x3 3 1x9", requests("rejected", "saturated"): "0x3 0+10x10"},
        at="2m",
        labels=ON_BACKEND,
        says="Backend b of kvguard reached tier 3; new requests get 503 with Retry-After.",
    ),
    AlertCase(
        alert="KvguardTierReject",
        about="tier 3 came and went between two looks",
        series={
            tier(): "0x12",
            one("kvguard_tier_transitions_total", backend="b", tier="3"): "0x3 1x9",
            requests("rejected", "saturated"): "0x3 3x9",
        },
        at="1m30s",
        labels=ON_BACKEND,
        says="Backend b of kvguard reached tier 3; new requests get 503 with Retry-After.",
    ),
    AlertCase(
        alert="KvguardTierReject",
        about="tier 3 in shadow mode refuses nobody",
        series={tier(): "3x12", requests("rejected", "saturated", "shadow"): "0+10x12"},
        at="2m",
    ),
    AlertCase(
        alert="KvguardTierReject",
        about="one request is too large for what is left, and the tier is 2",
        series={tier(): "2x12", requests("rejected", "saturated"): "0x3 1x9"},
        at="2m",
    ),
    AlertCase(
        alert="KvguardTierReject",
        about="another service of the same name refuses",
        series={tier(): "3x12", requests("rejected", "saturated").replace('"llm"', '"other"'): "0+10x12"},
        at="2m",
    ),
    AlertCase(
        alert="KvguardTierRestrictSustained",
        about="tier 2 and more, with breaks",
        series={tier(): "2x10 0x5 3x10 0x5 2x10 3x40"},
        at="20m",
        labels=ON_BACKEND,
        says="Backend b of kvguard was in tier 2 or above for more than half of the last 15 minutes.",
    ),
    AlertCase(
        alert="KvguardTierRestrictSustained",
        about="tier 2 for five minutes, tier 1 after",
        series={tier(): "2x20 1x60"},
        at="10m",
    ),
    AlertCase(
        alert="KvguardTrimSustained",
        about="a fifth of what is asked for is taken off",
        series={tokens("requested"): "0+100x80", tokens("trimmed"): "0+20x80"},
        at="20m",
        labels=SERVICE,
        says="kvguard takes 20% off the output tokens that clients ask for.",
    ),
    AlertCase(
        alert="KvguardTrimSustained",
        about="a twentieth",
        series={tokens("requested"): "0+100x80", tokens("trimmed"): "0+5x80"},
        at="20m",
    ),
    AlertCase(
        alert="KvguardTrimSustained",
        about="no traffic, so there is no share",
        series={tokens("requested"): "100x80", tokens("trimmed"): "50x80"},
        at="20m",
    ),
    AlertCase(
        alert="KvguardShedRateHigh",
        about="a quarter is refused or fails",
        series={
            requests("admitted"): "0+80x40",
            requests("rejected", "no_metrics"): "0+20x40",
            requests("failed", "backend_unreachable"): "0+5x40",
        },
        at="10m",
        labels=SERVICE,
        says="kvguard refuses or fails 25% of all requests.",
    ),
    AlertCase(
        alert="KvguardShedRateHigh",
        about="clients send what nobody can serve",
        series={requests("admitted"): "0+80x40", requests("rejected", "invalid_request"): "0+80x40"},
        at="10m",
    ),
    AlertCase(
        alert="KvguardShedRateHigh",
        about="in shadow mode nothing is refused",
        series={requests("admitted"): "0+80x40", requests("rejected", "saturated", "shadow"): "0+80x40"},
        at="10m",
    ),
    AlertCase(
        alert="KvguardTenantStarved",
        about="one tenant gets nearly nothing, another all it wants",
        series={
            sent("lab", "rejected"): "0+95x80",
            sent("lab", "admitted"): "0+5x80",
            sent("shop", "admitted"): "0+200x80",
        },
        at="20m",
        labels={**SERVICE, "tenant": "lab"},
        says="kvguard refuses 95% of what tenant lab asks for, and less than half of all requests.",
    ),
    AlertCase(
        alert="KvguardTenantStarved",
        about="everybody is refused alike",
        series={
            sent("lab", "rejected"): "0+95x80",
            sent("lab", "admitted"): "0+5x80",
            sent("shop", "rejected"): "0+95x80",
            sent("shop", "admitted"): "0+5x80",
        },
        at="20m",
    ),
)

TELEMETRY = (
    AlertCase(
        alert="KvguardGaugeStale",
        about="stale, with a scrape of kvguard missing",
        series={state("kvguard_telemetry_state", "stale"): "0x4 1x6 _ 1x20"},
        at="5m",
        labels=ON_BACKEND,
        says="The KV cache usage of backend b of kvguard is too old to go by.",
    ),
    AlertCase(
        alert="KvguardGaugeStale",
        about="stale for half a minute",
        series={state("kvguard_telemetry_state", "stale"): "0x4 1x1 0x20"},
        at="3m15s",
    ),
    AlertCase(
        alert="KvguardGaugeMissing",
        about="the engine exports no gauge",
        series={state("kvguard_telemetry_state", "missing"): "0x4 1x20"},
        at="5m",
        labels={**ON_BACKEND, "state": "missing"},
        says="The KV cache usage of backend b of kvguard is not known; its metrics are missing.",
    ),
    AlertCase(
        alert="KvguardGaugeMissing",
        about="unreachable for the moment of a restart",
        series={state("kvguard_telemetry_state", "unreachable"): "0x4 1x1 0x20"},
        at="3m15s",
    ),
    AlertCase(
        alert="KvguardTargetDown",
        about="scrapes fail for minutes",
        series={one("up"): "1x4 0x40"},
        at="8m",
        labels=TARGET,
        says="The admin port of a of kvguard cannot be scraped.",
    ),
    AlertCase(
        alert="KvguardTargetDown",
        about="every other scrape fails",
        series={one("up"): "1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1"},
        at="6m",
    ),
    AlertCase(
        alert="KvguardTargetDown",
        about="another service is down",
        series={one("up", job="vllm"): "0x40"},
        at="8m",
    ),
    AlertCase(
        alert="KvguardAbsent",
        about="the last one vanished",
        series={one("kvguard_build_info", version="1"): "1x4 stale"},
        at="10m",
        labels={},
        says="For minutes no kvguard was scraped; either none runs, or Prometheus does not find it.",
    ),
    AlertCase(
        alert="KvguardAbsent",
        about="one of two vanished",
        series={
            one("kvguard_build_info", version="1"): "1x4 stale",
            one("kvguard_build_info", version="1", instance="z"): "1x60",
        },
        at="10m",
    ),
)

ENGINE = (
    AlertCase(
        alert="KvguardEngineStalled",
        about="the engine stands still",
        series={state("kvguard_engine_condition", "stalled"): "0x4 1x4"},
        at="1m30s",
        labels=ON_BACKEND,
        says="Backend b of kvguard answers its health checks and generates nothing.",
    ),
    AlertCase(
        alert="KvguardEngineStalled",
        about="it is idle",
        series={
            state("kvguard_engine_condition", "stalled"): "0x20",
            state("kvguard_engine_condition", "idle"): "1x20",
        },
        at="4m",
    ),
    AlertCase(
        alert="KvguardEngineContradiction",
        about="full and idle for minutes",
        series={state("kvguard_engine_condition", "contradiction"): "0x4 1x20"},
        at="5m",
        labels=ON_BACKEND,
        says="The gauge of backend b of kvguard keeps everybody out, and nothing runs there.",
    ),
    AlertCase(
        alert="KvguardEngineContradiction",
        about="for one look, after the last answer",
        series={state("kvguard_engine_condition", "contradiction"): "0x4 1 0x20"},
        at="3m",
    ),
    AlertCase(
        alert="KvguardBackendEjected",
        about="ejected, and probed in between",
        series={
            one("kvguard_backend_standing", backend="b", standing="ejected"): "0x4 1x4 0 1x20",
            one("kvguard_backend_standing", backend="b", standing="probed"): "0x4 0x4 1 0x20",
        },
        at="4m",
        labels=ON_BACKEND,
        says="Backend b of kvguard was ejected; others take its requests.",
    ),
    AlertCase(
        alert="KvguardBackendEjected",
        about="ejected and back between two looks",
        series={one("kvguard_backend_ejections_total", backend="b"): "0x4 1x20"},
        at="3m",
        labels=ON_BACKEND,
        says="Backend b of kvguard was ejected; others take its requests.",
    ),
    AlertCase(
        alert="KvguardBackendEjected",
        about="drained by the operator",
        series={
            one("kvguard_backend_standing", backend="b", standing="drained"): "1x20",
            one("kvguard_backend_standing", backend="b", standing="ejected"): "0x20",
            one("kvguard_backend_ejections_total", backend="b"): "3x20",
        },
        at="4m",
    ),
)

ITSELF = (
    AlertCase(
        alert="KvguardLedgerViolation",
        about="one",
        series={one("kvguard_ledger_violations_total", backend="b"): "0x4 1x20"},
        at="3m",
        labels=ON_BACKEND,
        says="Reservations on backend b of kvguard were ended or changed in a way that must not happen.",
    ),
    AlertCase(
        alert="KvguardLedgerViolation",
        about="none since long ago",
        series={one("kvguard_ledger_violations_total", backend="b"): "1x300"},
        at="70m",
    ),
    AlertCase(
        alert="KvguardFootprintDrift",
        about="half too low for an hour",
        series={one("kvguard_footprint_error_ratio", backend="b"): "-0.5x240"},
        at="50m",
        labels=ON_BACKEND,
        says="On backend b of kvguard the ledger is off by 50% of what the gauge shows.",
    ),
    AlertCase(
        alert="KvguardFootprintDrift",
        about="off to both sides, right on average",
        series={one("kvguard_footprint_error_ratio", backend="b"): "-0.5x59 0.5x59 -0.5x59 0.5x59"},
        at="58m",
    ),
    AlertCase(
        alert="KvguardForecastDrift",
        about="nine of ten outgrow a forecast that half should",
        interval="1m",
        series={
            one("kvguard_forecast_answers_total", backend="b", source="learned"): "0+10x120",
            one("kvguard_forecast_exceeded_total", backend="b", source="learned"): "0+9x120",
            one("kvguard_forecast_quantile_ratio"): "0.5x120",
        },
        at="100m",
        labels=ON_BACKEND,
        says="On backend b of kvguard 90% of the answers outgrew their forecast.",
    ),
    AlertCase(
        alert="KvguardForecastDrift",
        about="six of ten",
        interval="1m",
        series={
            one("kvguard_forecast_answers_total", backend="b", source="learned"): "0+10x120",
            one("kvguard_forecast_exceeded_total", backend="b", source="learned"): "0+6x120",
            one("kvguard_forecast_quantile_ratio"): "0.5x120",
        },
        at="100m",
    ),
    AlertCase(
        alert="KvguardForecastDrift",
        about="all of a handful",
        interval="1m",
        series={
            one("kvguard_forecast_answers_total", backend="b", source="learned"): "0x90 1x10 2x20",
            one("kvguard_forecast_exceeded_total", backend="b", source="learned"): "0x90 1x10 2x20",
            one("kvguard_forecast_quantile_ratio"): "0.5x120",
        },
        at="110m",
    ),
    AlertCase(
        alert="KvguardConfigReloadFailed",
        about="faults for longer than five minutes",
        series={one("kvguard_config_last_reload_successful"): "1x4 0x40"},
        at="8m",
        labels=TARGET,
        says="a of kvguard could not take over the last change of its settings.",
    ),
    AlertCase(
        alert="KvguardConfigReloadFailed",
        about="mended within a minute",
        series={one("kvguard_config_last_reload_successful"): "1x4 0x3 1x40"},
        at="5m",
    ),
    AlertCase(
        alert="KvguardThresholdUnreachable",
        about="refusal is out of reach",
        interval="1m",
        series={one("kvguard_threshold_state", backend="b", tier="reject", state="unreachable"): "1x30"},
        at="20m",
        labels={**ON_BACKEND, "tier": "reject"},
        says="Backend b of kvguard cannot get as full as the threshold of reject.",
    ),
    AlertCase(
        alert="KvguardThresholdUnreachable",
        about="nothing is known of it yet",
        interval="1m",
        series={
            one("kvguard_threshold_state", backend="b", tier="reject", state="unreachable"): "0x30",
            one("kvguard_threshold_state", backend="b", tier="reject", state="unknown"): "1x30",
        },
        at="20m",
    ),
    AlertCase(
        alert="KvguardDecisionOverheadHigh",
        about="one in ten takes more than 25 ms",
        series={
            one("kvguard_decision_seconds_bucket", le="0.01"): "0+90x100",
            one("kvguard_decision_seconds_bucket", le="0.025"): "0+90x100",
            one("kvguard_decision_seconds_bucket", le="0.05"): "0+100x100",
            one("kvguard_decision_seconds_bucket", le="+Inf"): "0+100x100",
        },
        at="22m",
        labels=SERVICE,
        says="One in a hundred decisions of kvguard takes more than 47.5ms.",
    ),
    AlertCase(
        alert="KvguardDecisionOverheadHigh",
        about="no decisions at all",
        series={
            one("kvguard_decision_seconds_bucket", le="0.01"): "0x100",
            one("kvguard_decision_seconds_bucket", le="0.05"): "10x100",
            one("kvguard_decision_seconds_bucket", le="+Inf"): "10x100",
        },
        at="22m",
    ),
)

CASES = (*OVERLOAD, *TELEMETRY, *ENGINE, *ITSELF)
