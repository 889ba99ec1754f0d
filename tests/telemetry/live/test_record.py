"""What happened lately: folded, bounded, and forgotten in time."""

import pytest

from kvguard.admission.condition import EngineState
from kvguard.admission.reasons import RejectReason
from kvguard.admission.tiers import Tier
from kvguard.clock import ManualClock
from kvguard.pool.backend import ConditionChange, StandingChange, TierChange
from kvguard.pool.health import Standing
from kvguard.telemetry.events import DecisionEvent, Mode, Outcome
from kvguard.telemetry.live.record import HAPPENINGS, HISTORY_SECONDS, SERVERS_WITH_HISTORY, Record
from tests.kit.explaining import NOW, backend_at

pytestmark = pytest.mark.anyio


def fresh() -> tuple[Record, ManualClock]:
    clock = ManualClock(1000.0)
    return Record(clock.now, clock.wall, lambda: frozenset({"known"})), clock


def decision(outcome: Outcome, **fields: object) -> DecisionEvent:
    return DecisionEvent(
        **{"request_id": "r", "route": "/v1/completions", "outcome": outcome, "tier": Tier.REJECT, "backend": "b0"}
        | {"tenant": "known", "priority": "batch", "prompt_tokens": 7}
        | fields
    )


def refused(**fields: object) -> DecisionEvent:
    return decision(Outcome.REJECTED, **{"reason": RejectReason.SATURATED, "retry_after_seconds": 2.5} | fields)


async def test_what_is_alike_within_a_second_is_told_once() -> None:
    """Its last occurrence with the number of all; another reason, another server or another second is another thing."""
    record, clock = fresh()
    for number in range(3):
        record.decision(refused(request_id=f"r{number}"))
    record.decision(refused(reason=RejectReason.TENANT_SHARE))
    record.decision(refused(backend="b1"))
    await clock.advance(1.0)
    record.decision(refused())
    counts = [(each.count, each.request_id, each.backend, each.at) for each in record.happenings]
    assert counts == [(1, "r", "b0", 1001.0), (1, "r", "b1", 1000.0), (1, "r", "b0", 1000.0), (3, "r2", "b0", 1000.0)]
    assert record.happenings[-1].words == (
        "7 prompt tokens: refused, because the cache is full; may come back in 2.5 s"
    )


async def test_routine_is_counted_and_not_told() -> None:
    """Admissions, and the second report of a request that moved to another server."""
    record, _ = fresh()
    record.decision(decision(Outcome.ADMITTED))
    record.decision(refused(moved=True))
    assert record.happenings == ()
    assert record.traffic().outcomes == {"admitted": 1, "degraded": 0, "rejected": 0, "failed": 0}


async def test_whom_it_met() -> None:
    """By tenants as metrics name them and by class; what is only reported met nobody, and neither do failures."""
    record, _ = fresh()
    record.decision(refused())
    record.decision(refused(tenant="secret-customer", priority="interactive"))
    record.decision(decision(Outcome.DEGRADED, tenant="x", changes=("max_tokens=9->3",)))
    record.decision(refused(mode=Mode.SHADOW))
    record.decision(decision(Outcome.FAILED, reason=RejectReason.BACKEND_UNREACHABLE))
    traffic = record.traffic()
    assert traffic.tenants == {"other": 2, "known": 1}
    assert traffic.classes == {"batch": 2, "interactive": 1}
    assert traffic.reasons == {"saturated": 3, "backend_unreachable": 1}
    assert "secret-customer" not in repr(record.happenings)


async def test_a_minute_later_it_is_forgotten() -> None:
    """Traffic is that of the last minute."""
    record, clock = fresh()
    record.decision(refused())
    await clock.advance(59.0)
    record.decision(refused())
    assert record.traffic().outcomes["rejected"] == 2
    await clock.advance(1.0)
    assert record.traffic().outcomes["rejected"] == 1


async def test_all_that_is_kept_is_bounded() -> None:
    """Happenings, seconds, and servers with a history."""
    record, clock = fresh()
    servers = [backend_at(f"b{number}", 0.5) for number in range(SERVERS_WITH_HISTORY + 1)]
    for _ in range(HISTORY_SECONDS + 5):
        record.decision(refused())
        record.sample(servers)
        await clock.advance(1.0)
    assert len(record.happenings) == HAPPENINGS
    assert len(record.moments) == HISTORY_SECONDS
    assert len(record.moments[-1].servers) == SERVERS_WITH_HISTORY


async def test_a_moment_has_the_ratios_and_the_requests_of_the_second_that_is_over() -> None:
    """A server of unknown capacity has none."""
    clock = ManualClock(NOW)
    record = Record(clock.now, clock.wall)
    record.decision(decision(Outcome.ADMITTED))
    record.decision(decision(Outcome.DEGRADED))
    record.decision(refused())
    record.decision(decision(Outcome.FAILED))
    await clock.advance(1.0)
    record.sample([backend_at("known", 0.25), backend_at("unknown", None)])
    (moment,) = record.moments
    assert (moment.admitted, moment.degraded, moment.refused) == (1, 1, 2)
    assert moment.servers["known"][1:] == (0.25, 0.25, 0)
    assert moment.servers["unknown"] == (None, None, None, 0)


async def test_changes_are_told() -> None:
    """Tiers and standings always; the engine's condition where somebody has to look, and when that is over."""
    record, _ = fresh()
    record.tier_change(TierChange(backend="b0", before=Tier.NORMAL, after=Tier.REJECT))
    record.standing(StandingChange(backend="b0", before=Standing.IN, after=Standing.EJECTED, seconds=5.0))
    for before, after in (
        (EngineState.IDLE, EngineState.WORKING),
        (EngineState.WORKING, EngineState.STALLED),
        (EngineState.STALLED, EngineState.WORKING),
    ):
        record.condition_change(ConditionChange(backend="b0", before=before, after=after))
    assert [(each.kind, each.tier, each.words) for each in reversed(record.happenings)] == [
        ("tier", 3, "REJECT: new requests are refused"),
        ("standing", 0, "failed several requests in a row and gets none for a while"),
        ("condition", 3, "the engine is stalled, before that working"),
        ("condition", 0, "the engine is working, before that stalled"),
    ]
