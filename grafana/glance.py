"""The first row: what is it, who is affected, what does kvguard do, what comes next, what to turn."""

from collections.abc import Iterator
from dataclasses import dataclass

from grafana.panel import Colour, Kind, Panel, Query, Row
from grafana.queries import JOB, called, increase, of_backend, ours, quantile, rate, share, total, worst
from grafana.states import OUTCOMES, TROUBLE, holds, trouble

ENFORCED = 'mode="enforce"'
DECIDED = 'outcome!="failed"'


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """What is to be done where an expression has a value."""

    when: str
    finding: str
    turn: str


ADVICE = (
    Advice(
        when=holds("kvguard_telemetry_state", "state", "unreachable"),
        finding="Server refuses connections",
        turn="Start it again. kvguard tries it by itself",
    ),
    Advice(
        when=holds("kvguard_telemetry_state", "state", "stale|missing"),
        finding="Gauge is stale or missing",
        turn="Open its /metrics. Until it is back, telemetry.when_blind says what happens",
    ),
    Advice(
        when=holds("kvguard_engine_condition", "state", "stalled"),
        finding="Engine produces nothing",
        turn="Read its log and start it again",
    ),
    Advice(
        when=holds("kvguard_engine_condition", "state", "contradiction"),
        finding="Cache is full though nothing runs",
        turn="Start the engine again: its blocks are lost",
    ),
    Advice(
        when=holds("kvguard_engine_condition", "state", "sleeping"),
        finding="Engine sleeps",
        turn="Wake it, or take it out",
    ),
    Advice(
        when=holds("kvguard_backend_standing", "standing", "ejected"),
        finding="Server failed several requests in a row",
        turn="Read its log. kvguard tries it again by itself (health)",
    ),
    Advice(
        when=f"{of_backend('kvguard_demand_ratio')} > 1",
        finding="More is asked for than fits",
        turn="Add servers, or cap whoever asks most: tenants[].max_share, degrade.max_output_tokens",
    ),
    Advice(
        when=f"{total(rate(of_backend('kvguard_tier_transitions_total')), 'backend')} > 0.2",
        finding="Tiers come and go, a dozen times a minute",
        turn="Raise tiers.exit_margin or tiers.min_dwell_seconds",
    ),
    Advice(
        when=holds("kvguard_threshold_state", "state", "unreachable"),
        finding="A tier is out of reach of this engine",
        turn="Lower its threshold in tiers, or raise the engine's max_num_seqs",
    ),
    Advice(
        when=f"abs({of_backend('kvguard_footprint_error_ratio')}) > 0.25",
        finding="Ledger and gauge disagree",
        turn="Compare backends[].geometry and block_size with the model that is served",
    ),
    Advice(
        when=f"{increase(of_backend('kvguard_ledger_violations_total'))} > 0",
        finding="Ledger did not add up",
        turn="A fault of kvguard: report it with its log",
    ),
    Advice(
        when=f"{ours('kvguard_config_last_reload_successful')} == 0",
        finding="Settings file has faults",
        turn="kvguard check-config names them; the settings before are in force",
    ),
    Advice(
        when=f"{of_backend('kvguard_shadow_mode')} == 1",
        finding="Shadow mode: nothing is carried out",
        turn="Set mode to enforce when the row on shadow mode looks right",
    ),
)


def glance() -> Row:
    """Overload or fault, who, what now, what next, what to turn."""
    return Row(title="At a glance", panels=(*_tiles(), _advice(), *_promises()))


def _tiles() -> Iterator[Panel]:
    yield Panel(
        title="Overload or fault?",
        description="The worst of each backend now: the tier in force (`kvguard_tier`), or in purple what is broken "
        "(`kvguard_telemetry_state`, `kvguard_engine_condition`, `kvguard_backend_standing`). "
        "Overload passes when load does; a fault does not.",
        unit="none",
        kind=Kind.NUMBERS,
        width=6,
        height=6,
        queries=(Query(expression=trouble(), legend="{{backend}}"),),
        meanings={float(number): meaning for number, meaning in TROUBLE.items()},
    )
    callers = "kvguard_caller_requests_total"
    refused = total(rate(ours(callers, ENFORCED, 'outcome="rejected"')), "tenant", "priority")
    asked = total(rate(ours(callers, ENFORCED, DECIDED)), "tenant", "priority")
    yield Panel(
        title="Who is refused",
        description="Share of each tenant's and class's requests that is refused (`kvguard_caller_requests_total`). "
        "Tenants that the settings do not name are `other`.",
        unit="percentunit",
        kind=Kind.BARS,
        width=5,
        height=6,
        bounds=(0, 1),
        decimals=0,
        steps=((0.01, Colour.TRIM), (0.1, Colour.REJECT)),
        queries=(Query(expression=share(f"({refused} or 0 * {asked})", asked), legend="{{tenant}}, {{priority}}"),),
    )
    yield Panel(
        title="What kvguard does",
        description="Requests a second by what was decided (`kvguard_requests_total`): passed as they came, degraded "
        "(trimmed or one sequence only), refused, and admitted but failed by the server.",
        unit="reqps",
        styles=OUTCOMES,
        kind=Kind.NUMBERS,
        width=5,
        height=6,
        decimals=1,
        queries=(
            Query(expression=total(rate(ours("kvguard_requests_total", ENFORCED)), "outcome"), legend="{{outcome}}"),
        ),
    )
    yield Panel(
        title="What comes next",
        description="Peak: how full the cache gets by what is already admitted, by the forecast of its answers "
        "(`kvguard_kv_usage_ratio`). Demand: how full it would be had nothing been refused (`kvguard_demand_ratio`). "
        "Demand above 100 % stays until callers ask less or servers are added. The worst backend.",
        unit="percentunit",
        kind=Kind.NUMBERS,
        width=4,
        height=6,
        decimals=0,
        steps=((1, Colour.REJECT),),
        queries=(
            Query(expression=worst(of_backend("kvguard_kv_usage_ratio", 'kind="peak"')), legend="peak"),
            Query(expression=worst(of_backend("kvguard_demand_ratio")), legend="demand"),
        ),
    )
    yield Panel(
        title="When refused come back",
        description="Median of the `Retry-After` that refused clients are given, from the forecast of when there is "
        "room (`kvguard_retry_after_seconds`).",
        unit="s",
        kind=Kind.NUMBERS,
        width=4,
        height=6,
        decimals=0,
        nothing="None refused",
        queries=(Query(expression=quantile(0.5, ours("kvguard_retry_after_seconds_bucket")), legend="Retry-After"),),
    )


def _advice() -> Panel:
    lines = (called(called(worst(a.when, "backend"), "finding", a.finding), "turn", a.turn) for a in ADVICE)
    return Panel(
        title="What to turn",
        description="What is wrong now and the setting or step that helps. Rows come from `kvguard_telemetry_state`, "
        "`kvguard_engine_condition`, `kvguard_backend_standing`, `kvguard_demand_ratio`, "
        "`kvguard_tier_transitions_total`, `kvguard_threshold_state`, `kvguard_footprint_error_ratio`, "
        "`kvguard_ledger_violations_total`, `kvguard_config_last_reload_successful` and `kvguard_shadow_mode`.",
        unit="none",
        kind=Kind.TABLE,
        width=16,
        height=6,
        nothing="Nothing to turn",
        columns={"backend": "Backend", "finding": "Finding", "turn": "What to do"},
        queries=(Query(expression=" or ".join(lines)),),
    )


def _promises() -> Iterator[Panel]:
    first = "kvguard_time_to_first_byte_seconds"
    within = total(rate(ours(f"{first}_bucket", 'le="$slo_first_byte"')))
    yield Panel(
        title="First byte within ${slo_first_byte} s",
        description="Share of answers whose first byte came in time (`kvguard_time_to_first_byte_seconds`)."
        " The objective is chosen above.",
        unit="percentunit",
        kind=Kind.NUMBERS,
        width=4,
        height=6,
        decimals=1,
        bounds=(0, 1),
        queries=(
            Query(expression=share(within, total(rate(ours(f"{first}_count")))), legend="in time"),
            Query(expression="vector($slo_share)", legend="objective"),
        ),
    )
    here = f"count_over_time({ours('kvguard_build_info')}[$__range])"
    yield Panel(
        title="kvguard unreachable",
        description="Instances that exported `kvguard_build_info` within the time shown and are not scraped now "
        "(`up`). Above 0: whatever else is on this page is old for them.",
        unit="none",
        kind=Kind.NUMBERS,
        width=4,
        height=6,
        steps=((1, Colour.REJECT),),
        queries=(
            Query(
                expression=f"count((up{{{JOB}}} == 0) and on (job, instance) {here}) or vector(0)", legend="instances"
            ),
        ),
    )
