"""Waiting for blocks instead of being refused: turns, time-outs, and clients that leave."""

import asyncio
from dataclasses import dataclass, field, replace

import pytest

from kvguard.admission.calibration import forecast_of
from kvguard.admission.decision import Admit
from kvguard.admission.policy import Degradation
from kvguard.admission.reasons import RejectReason
from kvguard.admission.tiers import Tier
from kvguard.admission.waiting import Ticket, WaitingPolicy, WaitingRoom
from kvguard.clock import ManualClock
from kvguard.pool.backend import Backend
from kvguard.proxy.controller import Admission, Refusal
from kvguard.proxy.waiting_line import Question, WaitingLine
from kvguard.telemetry.events import WaitEnd
from tests.admission.build import demand, occupancy

pytestmark = pytest.mark.anyio

SATURATED, TENANT_SHARE = RejectReason.SATURATED, RejectReason.TENANT_SHARE
NORMAL = (None, "normal")


@dataclass
class Desk:
    """A cache that so many requests fit into, and everything that happens at its waiting room."""

    free: int = 0
    policy: WaitingPolicy = field(default_factory=lambda: WaitingPolicy(max_requests=4, max_seconds=2.0))
    wait_seconds: float | None = None
    why: RejectReason = SATURATED
    given_back: list[Admission] = field(default_factory=list)
    reports: list[tuple[str, float]] = field(default_factory=list)
    admitted: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = ManualClock(100.0)
        self.backend = Backend(name="b", url="http://b", occupancy=occupancy())
        self.room = WaitingRoom(self.policy)
        self.line = WaitingLine(self.room, self.clock, give_back=self.given_back.append, report=self.report)

    def report(self, end: WaitEnd, seconds: float) -> None:
        self.reports.append((end.value, seconds))

    def refuse(self, now: float, reason: RejectReason) -> Refusal:
        return Refusal(reason=reason, tier=Tier.REJECT, message="no", wait_seconds=self.wait_seconds)

    def ask(
        self, name: str = "a", *, kind: tuple[str | None, str] = NORMAL, waits: bool = True, **ticket: object
    ) -> Question:
        def admit(now: float) -> Admission | Refusal:
            if self.free <= 0:
                return self.refuse(now, self.why)
            self.free -= 1
            self.admitted.append(name)
            asked = demand(16)
            decision = Admit(tier=Tier.NORMAL, demand=asked, degradation=Degradation(), ratios=None)
            return Admission(
                backend=self.backend,
                reservation=self.backend.reserve(asked, now),
                decision=decision,
                forecast=forecast_of(asked, self.backend.occupancy.lengths),
            )

        def would_refuse(now: float) -> Refusal | None:
            return None if self.free > 0 else self.refuse(now, self.why)

        return Question(
            admit=admit,
            would_refuse=would_refuse,
            refuse=self.refuse,
            ticket=Ticket(**{"tenant": name, **ticket}),
            kind=kind,
            waits=waits,
        )

    async def waits(self, *questions: Question) -> list[asyncio.Task[Admission | Refusal]]:
        tasks = [asyncio.ensure_future(self.line.admit(question)) for question in questions]
        await self.clock.settle()
        return tasks


def reason_of(task: asyncio.Task[Admission | Refusal]) -> RejectReason | None:
    answer = task.result()
    return answer.reason if isinstance(answer, Refusal) else None


async def test_who_fits_does_not_wait() -> None:
    """With an empty room the controller's answer is the answer, and no wait is reported."""
    desk = Desk(free=1)
    [task] = await desk.waits(desk.ask())
    assert (reason_of(task), desk.reports, len(desk.room)) == (None, [], 0)


@pytest.mark.parametrize(
    ("why", "wait_seconds", "most"),
    [
        (SATURATED, None, 0),
        (SATURATED, 2.1, 4),
        (RejectReason.TOO_LARGE, None, 4),
        (RejectReason.NO_METRICS, None, 4),
        (RejectReason.BACKEND_STALLED, None, 4),
    ],
)
async def test_who_would_wait_in_vain_is_told_at_once(why: RejectReason, wait_seconds: float | None, most: int) -> None:
    """The room is off, the cache will not drain in time, or time does not help."""
    desk = Desk(why=why, wait_seconds=wait_seconds, policy=WaitingPolicy(max_requests=most, max_seconds=2.0))
    [task] = await desk.waits(desk.ask())
    assert (reason_of(task), desk.reports) == (why, [])


@pytest.mark.parametrize("why", [SATURATED, TENANT_SHARE])
async def test_blocks_that_come_free_are_given_to_the_next(why: RejectReason) -> None:
    """In turn, when the line is told that something has changed."""
    desk = Desk(why=why, wait_seconds=2.0)
    tasks = await desk.waits(desk.ask("a"), desk.ask("b"))
    await desk.clock.advance(0.5)
    desk.free = 1
    desk.line.pump()
    await desk.clock.settle()
    assert [task.done() for task in tasks] == [True, False]
    assert (desk.admitted, desk.reports, len(desk.room)) == (["a"], [("admitted", 0.5)], 1)
    desk.free = 1
    desk.line.pump()
    await desk.clock.settle()
    assert (desk.admitted, len(desk.room)) == (["a", "b"], 0)


async def test_nobody_jumps_the_line() -> None:
    """A request that would fit goes behind those who wait, and ahead of nobody."""
    desk = Desk()
    await desk.waits(desk.ask("first"))
    desk.free = 1
    tasks = await desk.waits(desk.ask("second"))
    assert (desk.admitted, tasks[0].done()) == (["first"], False)


async def test_a_full_room_turns_away() -> None:
    """What does not find a place is refused as saturated, even if it would fit."""
    desk = Desk(policy=WaitingPolicy(max_requests=1, max_seconds=2.0))
    await desk.waits(desk.ask("a"))
    [task] = await desk.waits(desk.ask("b"))
    assert reason_of(task) is SATURATED
    assert not desk.line.open


@pytest.mark.parametrize(("seconds", "ended"), [(1.9, False), (2.0, True)])
async def test_nobody_waits_longer_than_allowed(seconds: float, ended: bool) -> None:
    """After the time-out the answer is a refusal with a reason of its own, and the place is free."""
    desk = Desk()
    [task] = await desk.waits(desk.ask())
    await desk.clock.advance(seconds)
    assert task.done() is ended
    if ended:
        assert reason_of(task) is RejectReason.QUEUE_TIMEOUT
        assert (desk.reports, len(desk.room)) == ([("timed_out", 2.0)], 0)


async def test_a_client_that_leaves_leaves_the_line() -> None:
    """Its place is free at once, and nothing is reserved for it."""
    desk = Desk()
    [task] = await desk.waits(desk.ask())
    task.cancel()
    await desk.clock.settle()
    desk.free = 1
    desk.line.pump()
    assert (desk.admitted, len(desk.room), desk.reports) == ([], 0, [("left", 0.0)])


async def test_an_admission_nobody_takes_is_given_back() -> None:
    """A client that leaves in the very moment its turn has come loses nothing for the others."""
    desk = Desk()
    [task] = await desk.waits(desk.ask())
    desk.free = 1
    desk.line.pump()
    task.cancel()
    await desk.clock.settle()
    assert task.cancelled()
    assert len(desk.given_back) == 1
    assert desk.reports == [("left", 0.0)]


async def test_who_does_not_fit_holds_up_only_its_kind() -> None:
    """Another model's or class's requests pass those that wait for blocks elsewhere."""
    desk = Desk()
    full = desk.ask("full", kind=("other", "normal"))
    blocked = replace(full, would_refuse=lambda now: desk.refuse(now, SATURATED))
    await desk.waits(blocked)
    desk.free = 2
    [same, other] = await desk.waits(desk.ask("same", kind=("other", "normal")), desk.ask("else"))
    assert (same.done(), other.done(), desk.admitted) == (False, True, ["else"])


async def test_a_tenant_over_its_share_holds_up_nobody() -> None:
    """Only its own requests wait for what it holds."""
    desk = Desk()
    over = desk.ask("over")
    refused = replace(over, would_refuse=lambda now: desk.refuse(now, TENANT_SHARE))
    await desk.waits(refused)
    desk.free = 1
    [task] = await desk.waits(desk.ask("b"))
    assert (reason_of(task), len(desk.room)) == (None, 1)


async def test_a_room_full_of_one_tenant_over_its_share_refuses_nobody_else() -> None:
    """What waits for its own tenant alone is in nobody's way, even where there is no place left."""
    desk = Desk(policy=WaitingPolicy(max_requests=1, max_seconds=2.0))
    await desk.waits(replace(desk.ask("over"), would_refuse=lambda now: desk.refuse(now, TENANT_SHARE)))
    desk.free = 1
    [task] = await desk.waits(desk.ask("b"))
    assert (reason_of(task), desk.admitted) == (None, ["b"])


async def test_what_changes_while_waiting_is_told() -> None:
    """A backend that stops working refuses those who wait for it."""
    desk = Desk()
    [task] = await desk.waits(desk.ask())
    desk.why = RejectReason.BACKEND_STALLED
    desk.line.pump()
    await desk.clock.settle()
    assert (reason_of(task), desk.reports, len(desk.room)) == (RejectReason.BACKEND_STALLED, [("refused", 0.0)], 0)


async def test_a_shutdown_empties_the_line() -> None:
    """Everybody who waits is refused as draining."""
    desk = Desk()
    tasks = await desk.waits(desk.ask("a"), desk.ask("b"))
    desk.line.dismiss()
    await desk.clock.settle()
    assert ([reason_of(task) for task in tasks], len(desk.room)) == ([RejectReason.DRAINING] * 2, 0)


async def test_a_full_room_is_no_reason_to_refuse_what_nobody_waits_for() -> None:
    """Another model's request that fits is admitted; so is one that is exempt or only watched, of any kind."""
    desk = Desk(policy=WaitingPolicy(max_requests=1, max_seconds=2.0))
    await desk.waits(replace(desk.ask("a"), would_refuse=lambda now: desk.refuse(now, SATURATED)))
    desk.free = 2
    tasks = await desk.waits(desk.ask("else", kind=("other", "normal")), desk.ask("exempt", waits=False))
    assert ([reason_of(task) for task in tasks], desk.admitted) == ([None, None], ["else", "exempt"])


async def test_a_higher_rank_is_not_overtaken_by_a_lower_one() -> None:
    """A sheddable request that would fit waits behind a critical one for the same model, not the other way round."""
    desk = Desk()
    await desk.waits(
        replace(
            desk.ask("high", kind=(None, "critical"), rank=-1), would_refuse=lambda now: desk.refuse(now, SATURATED)
        )
    )
    desk.free = 2
    [low] = await desk.waits(desk.ask("low", kind=(None, "sheddable"), rank=1))
    [higher] = await desk.waits(desk.ask("higher", kind=(None, "exempted"), rank=-2))
    assert (low.done(), higher.done(), desk.admitted) == (False, True, ["higher"])


async def test_a_room_that_is_closed_lets_everybody_pass() -> None:
    """Those who wait still do; who comes now is decided on at once."""
    desk = Desk()
    await desk.waits(desk.ask("a"))
    desk.room.policy = WaitingPolicy()
    desk.free = 1
    [task] = await desk.waits(desk.ask("b"))
    assert (reason_of(task), desk.admitted) == (None, ["b"])


async def test_the_forecast_counts_also_behind_others() -> None:
    """Who would wait longer than allowed is told at once, however many wait already."""
    desk = Desk()
    await desk.waits(desk.ask("a"))
    desk.wait_seconds = 2.1
    [task] = await desk.waits(desk.ask("b"))
    assert (reason_of(task), len(desk.room)) == (SATURATED, 1)
