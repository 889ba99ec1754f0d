"""What the live page says in plain words: what happened, what is the matter, and what could be done about it."""

from collections.abc import Mapping, Sequence
from typing import Final

from kvguard.admission.condition import EngineState
from kvguard.admission.reasons import RejectReason
from kvguard.admission.tiers import Tier
from kvguard.pool.backend import ConditionChange, StandingChange, TierChange
from kvguard.pool.health import Standing
from kvguard.telemetry.events import DecisionEvent, Mode, Outcome
from kvguard.telemetry.live.view import Headline, Server, Traffic

_TIERS: Final = {
    Tier.NORMAL: "NORMAL: requests pass unchanged",
    Tier.TRIM: "TRIM: answers are shortened",
    Tier.RESTRICT: "RESTRICT: answers are shortened, one sequence each",
    Tier.REJECT: "REJECT: new requests are refused",
}
_REASONS: Final = {
    RejectReason.SATURATED: "the cache is full",
    RejectReason.QUEUE_TIMEOUT: "nothing came free while it waited",
    RejectReason.TOO_LARGE: "the prompt is larger than the whole cache",
    RejectReason.STALE_METRICS: "the gauge is stale",
    RejectReason.NO_METRICS: "the server has no gauge",
    RejectReason.BACKEND_UNREACHABLE: "the server cannot be reached",
    RejectReason.BACKEND_STALLED: "the engine makes no progress",
    RejectReason.TENANT_SHARE: "its tenant has its share already",
    RejectReason.DRAINING: "no new requests are taken",
    RejectReason.BODY_TOO_LARGE: "the body is larger than limits.max_body_bytes",
    RejectReason.INVALID_REQUEST: "the request is not valid",
}
_STANDINGS: Final = {
    Standing.IN: "is given requests again",
    Standing.EJECTED: "failed several requests in a row and gets none for a while",
    Standing.PROBED: "is given one request to find out whether it works",
    Standing.DRAINED: "gets no new requests: the operator drains it",
    Standing.LEAVING: "gets no new requests: discovery does not find it any more",
}
_FAULTS: Final = {
    "unreachable": "cannot be reached",
    "missing": "publishes no gauge",
    "stale": "has a stale gauge",
    EngineState.STALLED.value: "makes no progress",
    EngineState.SLEEPING.value: "sleeps",
    EngineState.CONTRADICTION.value: "says that it is full while nothing runs",
    Standing.EJECTED.value: "failed request after request",
}


def decision_words(event: DecisionEvent) -> str:
    """What was done to a request and why."""
    would = "would be " if event.mode is Mode.SHADOW else ""
    who = f"{event.prompt_tokens} prompt tokens: " if event.prompt_tokens else ""
    match event.outcome:
        case Outcome.REJECTED:
            back = "" if event.retry_after_seconds is None else f"; may come back in {event.retry_after_seconds:.1f} s"
            return f"{who}{would}refused, because {_reason(event)}{back}"
        case Outcome.FAILED:
            return f"failed, because {_reason(event)}"
        case _:
            return f"{who}{would}degraded: {'; '.join(event.changes) or 'nothing left to cut'}"


def _reason(event: DecisionEvent) -> str:
    return _REASONS[event.reason] if event.reason else "of an unknown reason"


def tier_words(change: TierChange) -> str:
    """What a tier means for those who come now."""
    return _TIERS[change.after]


def condition_words(change: ConditionChange) -> str:
    """What the engine does now."""
    return f"the engine is {change.after.value}, before that {change.before.value}"


def standing_words(change: StandingChange) -> str:
    """What is in for the backend."""
    return _STANDINGS[change.after]


def faults(server: Server) -> list[str]:
    """What is wrong with a server, apart from being full."""
    return [_FAULTS[state] for state in (server.telemetry, server.condition, server.standing) if state in _FAULTS]


def headline(
    servers: Sequence[Server], traffic: Traffic, thresholds: tuple[float, float, float], *, waiting: int, phase: str
) -> Headline:
    """Is it overload or a fault, who is affected, what is done about it, what comes next, what could be changed."""
    broken = {server.name: faults(server) for server in servers if faults(server)}
    tier = Tier(max((server.tier for server in servers), default=0))
    level, title = _title(servers, broken, tier, phase)
    return Headline(
        level=level,
        title=title,
        who=_who(traffic, waiting),
        doing=_doing(servers, tier),
        next=_next(servers, thresholds),
        turn=_turn(servers, broken, tier),
    )


def _title(servers: Sequence[Server], broken: Mapping[str, Sequence[str]], tier: Tier, phase: str) -> tuple[str, str]:
    if phase in ("stopping", "draining"):
        return "busy", "kvguard is shutting down"
    if not servers:
        return "fault", "Fault: no server has been found"
    if broken:
        name, words = next(iter(broken.items()))
        more = f", and {len(broken) - 1} more of {len(servers)}" if len(broken) > 1 else ""
        return "fault", f"Fault: {name} {' and '.join(words)}{more}"
    count = _count(sum(server.tier == tier for server in servers), len(servers))
    match tier:
        case Tier.REJECT:
            return "overload", f"Overload: {count} full, new requests are refused"
        case Tier.RESTRICT:
            return "busy", f"Nearly full: {count} at RESTRICT"
        case Tier.TRIM:
            return "busy", f"Busy: {count} at TRIM"
        case Tier.NORMAL:
            return "calm", "Calm: requests pass unchanged"


def _count(some: int, all_: int) -> str:
    if all_ == 1:
        return "the server is"
    return "all servers are" if some == all_ else f"{some} of {all_} servers {'is' if some == 1 else 'are'}"


def _who(traffic: Traffic, waiting: int) -> str:
    outcomes = traffic.outcomes
    total = sum(count for outcome, count in outcomes.items() if outcome != Outcome.FAILED.value)
    if not total:
        return f"No requests in the last {traffic.seconds} s."
    text = f"Of {total} requests in the last {traffic.seconds} s "
    parts = [
        f"{outcomes[outcome.value]} {word}"
        for outcome, word in ((Outcome.REJECTED, "refused"), (Outcome.DEGRADED, "degraded"), (Outcome.FAILED, "failed"))
        if outcomes[outcome.value]
    ]
    text += ", ".join(parts) if parts else "all passed unchanged"
    met = [*_most(traffic.tenants, "tenant"), *_most(traffic.classes, "class")]
    return (
        text
        + (f"; most of them of {' and '.join(met)}" if met else "")
        + (f"; {waiting} wait" if waiting else "")
        + "."
    )


def _most(counts: Mapping[str, int], what: str) -> list[str]:
    """Who was met most, where there is anything to tell apart."""
    return [f"{what} {next(iter(counts))}"] if len(counts) > 1 else []


def _doing(servers: Sequence[Server], tier: Tier) -> str:
    shadow = " Shadow mode: this is only reported." if any(server.shadow for server in servers) else ""
    return f"{_TIERS[tier]}.{shadow}"


def _next(servers: Sequence[Server], thresholds: tuple[float, float, float]) -> str:
    known = [(server.usage.peak, server) for server in servers if server.usage is not None]
    if not known:
        return "Nothing is known of how full it gets."
    peak, server = max(known, key=lambda pair: pair[0])
    name = f" on {server.name}" if len(servers) > 1 else ""
    text = f"What is admitted reaches {peak:.0%} at its peak{name}; refusals begin at {thresholds[2]:.0%}."
    if server.half_free_seconds is not None and server.tier:
        text += f" If nothing more came, half of it would be free in {server.half_free_seconds:.0f} s."
    return text


def _turn(servers: Sequence[Server], broken: Mapping[str, Sequence[str]], tier: Tier) -> str:
    if broken:
        return "Look at the server first; until it works, what it gets is a matter of telemetry.when_blind and health."
    demand = sum(server.demand_ratio or 0.0 for server in servers)
    if tier is Tier.REJECT:
        need = (
            f"Admitted and refused together would fill {demand:.1f} servers of this size (who tries again counts "
            f"again), there {'is' if len(servers) == 1 else 'are'} {len(servers)}. "
            if demand
            else ""
        )
        return f"{need}Add servers, lower degrade.max_output_tokens, or refuse those first who can wait (classes)."
    if tier is Tier.NORMAL:
        return "Nothing."
    return "Nothing yet: shorter answers make room. If this is too early, raise tiers.trim_at and look at shadow mode."
