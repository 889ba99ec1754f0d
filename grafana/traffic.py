"""Rows on how full the engines are and what is decided because of it."""

from grafana.panel import Colour, Kind, Panel, Query, Row, Style
from grafana.queries import increase, of_backend, ours, rate, share, total, worst
from grafana.states import OUTCOMES, TIERS

ENFORCED = 'mode="enforce"'
TIER_COLOURS = {"trim": Colour.TRIM, "restrict": Colour.RESTRICT, "reject": Colour.REJECT}


def pressure() -> Row:
    """How full each backend is, where the tiers begin, and which were in force."""
    styles = {
        "observed": Style(colour=Colour.DIM),
        "projected": Style(colour=Colour.PLAIN, width=2),
        "peak": Style(colour=Colour.FORECAST),
    }
    for tier, colour in TIER_COLOURS.items():
        styles[f"{tier} from"] = Style(colour=colour, dashed=True)
        styles[f"{tier} to"] = Style(colour=colour, band_from=f"{tier} from")
    threshold = "kvguard_tier_threshold_ratio"
    usage = Panel(
        title="Pressure of $backend",
        description="Share of the KV cache in use (`kvguard_kv_usage_ratio`): observed is the engine's gauge, "
        "projected what kvguard makes of it now, peak how full it gets by what is admitted. Bands: where the tiers "
        "begin by the settings in force (`kvguard_tier_threshold_ratio`). Trim and restrict go by projected, reject "
        "by the larger of projected and peak, unless `tiers` says otherwise.",
        unit="percentunit",
        width=12,
        height=9,
        styles=styles,
        repeat="backend",
        queries=(
            Query(expression=worst(of_backend("kvguard_kv_usage_ratio"), "kind"), legend="{{kind}}"),
            Query(expression=worst(ours(threshold), "tier"), legend="{{tier}} from"),
            Query(expression=worst(ours(threshold, 'tier="restrict"')), legend="trim to"),
            Query(expression=worst(ours(threshold, 'tier="reject"')), legend="restrict to"),
            Query(expression="vector(1)", legend="reject to"),
        ),
    )
    tiers = Panel(
        title="Tier in force",
        description="What happens to new requests (`kvguard_tier`): Normal passes them, Trim lowers their output cap, "
        "Restrict also leaves them one sequence, Reject answers 503. The highest of all replicas.",
        unit="none",
        kind=Kind.STATES,
        width=16,
        height=7,
        meanings={float(number): meaning for number, meaning in TIERS.items()},
        queries=(Query(expression=worst(of_backend("kvguard_tier"), "backend"), legend="{{backend}}"),),
    )
    changes = Panel(
        title="Changes of the tier",
        description="How often each tier was entered (`kvguard_tier_transitions_total`). Many in a short time: raise "
        "`tiers.exit_margin` or `tiers.min_dwell_seconds`.",
        unit="short",
        height=7,
        styles={f"to tier {number}": Style(colour=meaning.colour) for number, meaning in TIERS.items()},
        queries=(
            Query(
                expression=total(increase(of_backend("kvguard_tier_transitions_total")), "tier"),
                legend="to tier {{tier}}",
            ),
        ),
    )
    return Row(title="Pressure and tiers", panels=(usage, tiers, changes))


def decisions() -> Row:
    """What was trimmed and refused, why, and of whom."""
    requests, callers = "kvguard_requests_total", "kvguard_caller_requests_total"
    tokens = "kvguard_tokens_total"
    return Row(
        title="Trimmed and refused",
        panels=(
            Panel(
                title="Decisions",
                description="Requests a second by what was decided (`kvguard_requests_total`). Failed counts admitted "
                "requests whose server failed before it answered; they are in admitted or degraded too.",
                unit="reqps",
                stacked=True,
                styles=OUTCOMES,
                queries=(Query(expression=total(rate(ours(requests, ENFORCED)), "outcome"), legend="{{outcome}}"),),
            ),
            Panel(
                title="Refused, by reason",
                description="Refusals a second by the reason clients are told (`kvguard_requests_total`). `saturated`, "
                "`queue_timeout`, `tenant_share` are load; `stale_metrics`, `no_metrics`, `backend_*` are faults.",
                unit="reqps",
                stacked=True,
                queries=(
                    Query(
                        expression=total(rate(ours(requests, ENFORCED, 'outcome="rejected"')), "reason"),
                        legend="{{reason}}",
                    ),
                ),
            ),
            Panel(
                title="Refused, by class and tenant",
                description="Refusals a second by who asked (`kvguard_caller_requests_total`).",
                unit="reqps",
                stacked=True,
                queries=(
                    Query(
                        expression=total(rate(ours(callers, ENFORCED, 'outcome="rejected"')), "priority", "tenant"),
                        legend="{{priority}}, {{tenant}}",
                    ),
                ),
            ),
            Panel(
                title="Degraded, by class and tenant",
                description="Requests a second that were trimmed or left one sequence, by who asked "
                "(`kvguard_caller_requests_total`).",
                unit="reqps",
                stacked=True,
                queries=(
                    Query(
                        expression=total(rate(ours(callers, ENFORCED, 'outcome="degraded"')), "priority", "tenant"),
                        legend="{{priority}}, {{tenant}}",
                    ),
                ),
            ),
            Panel(
                title="Output that was trimmed",
                description="Share of the output asked for by admitted requests that was trimmed off "
                "(`kvguard_tokens_total`).",
                unit="percentunit",
                bounds=(0, 1),
                queries=(
                    Query(
                        expression=share(
                            total(rate(ours(tokens, 'kind="trimmed"'))), total(rate(ours(tokens, 'kind="requested"')))
                        ),
                        legend="trimmed",
                    ),
                ),
            ),
            Panel(
                title="How admitted requests end",
                description="Ends a second (`kvguard_exchanges_total`): complete, cancelled by the client, or "
                "broken off by the server.",
                unit="reqps",
                stacked=True,
                queries=(Query(expression=total(rate(ours("kvguard_exchanges_total")), "end"), legend="{{end}}"),),
            ),
        ),
    )
