"""Requests that wait for blocks to come free instead of being refused at once. Who is next is the room's to say.

A request waits in its own task; whenever something may have changed, `pump` asks the controller again for those whose
turn it is. Nothing is awaited between that question and the reservation. A client that leaves cancels its task, and an
admission that nobody takes is given back.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kvguard.admission.footprint import Demand
from kvguard.admission.forecast import Course
from kvguard.admission.reasons import RejectReason
from kvguard.admission.waiting import Ticket, WaitingRoom
from kvguard.clock import Clock
from kvguard.pool.backend import Backend
from kvguard.proxy.controller import Admission, Refusal
from kvguard.proxy.governance import Terms
from kvguard.proxy.returning import DRAINING_AWAY
from kvguard.telemetry.events import WaitEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One request as the line sees it.

    `admit` reserves or refuses as things stand at a time, and `would_refuse` tells what it would say without counting
    it; `refuse` only refuses, for a reason. Requests of one `kind`, a model and a class, do not overtake each other;
    one that is exempt or only watched never `waits`.
    """

    admit: Callable[[float], Admission | Refusal]
    would_refuse: Callable[[float], Refusal | None]
    refuse: Callable[[float, RejectReason], Refusal]
    ticket: Ticket
    kind: tuple[str | None, str]
    waits: bool = True


@dataclass(slots=True, eq=False)
class _Waiter:
    """`over_share` says that only its own tenant's answers stand in its way, so it is ahead of nobody."""

    question: Question
    over_share: bool = False
    answer: asyncio.Future[Admission | Refusal] = field(default_factory=asyncio.Future)


class WaitingLine:
    """The waiters of one pool. `give_back` releases an admission; `report` hears of every wait and its seconds."""

    def __init__(
        self,
        room: WaitingRoom,
        clock: Clock,
        *,
        give_back: Callable[[Admission], None],
        report: Callable[[WaitEnd, float], None],
    ) -> None:
        self._room = room
        self._clock = clock
        self._give_back = give_back
        self._report = report
        self._waiters: dict[Ticket, _Waiter] = {}
        self._dismissed = False

    @property
    def open(self) -> bool:
        """Whether another request might wait."""
        return not self._dismissed and len(self._room) < self._room.policy.max_requests

    async def admit(self, question: Question) -> Admission | Refusal:
        """Reserve at once, or when the turn has come, or say why not."""
        began = self._clock.now()
        if self._dismissed or not (question.waits and self._room.policy.max_requests):
            return question.admit(began)
        refusal = question.would_refuse(began)
        if not self._has_others_ahead(question) and (refusal is None or not self.worth_waiting(refusal)):
            return question.admit(began)
        if refusal is not None and not self.worth_waiting(refusal):
            return question.refuse(began, refusal.reason)
        if not self._room.enter(question.ticket):
            return question.refuse(began, RejectReason.SATURATED)
        waiter = self._waiters[question.ticket] = _Waiter(question)
        end = WaitEnd.LEFT
        try:
            self.pump()
            answer = await self._answered(waiter)
            end = _end_of(answer)
            return answer
        finally:
            self._leave(waiter, given=end is WaitEnd.ADMITTED)
            self._report(end, self._clock.now() - began)

    def _has_others_ahead(self, question: Question) -> bool:
        """Whether requests for the same model wait that are of its class or go before it."""
        return any(
            ticket.rank < question.ticket.rank or waiter.question.kind == question.kind
            for ticket, waiter in self._waiters.items()
            if waiter.question.kind[0] == question.kind[0] and not waiter.over_share
        )

    def worth_waiting(self, refusal: Refusal) -> bool:
        """Whether there is a place, and what is refused may fit before its time is up."""
        if not self.open or refusal.reason not in DRAINING_AWAY:
            return False
        return refusal.wait_seconds is None or refusal.wait_seconds <= self._room.policy.max_seconds

    async def _answered(self, waiter: _Waiter) -> Admission | Refusal:
        timer = asyncio.ensure_future(self._clock.sleep(self._room.policy.max_seconds))
        try:
            either: tuple[asyncio.Future[Any], ...] = (waiter.answer, timer)
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
        if waiter.answer.done():
            return waiter.answer.result()
        return waiter.question.refuse(self._clock.now(), RejectReason.QUEUE_TIMEOUT)

    def _leave(self, waiter: _Waiter, *, given: bool) -> None:
        if self._waiters.pop(waiter.question.ticket, None) is not None:
            self._room.leave(waiter.question.ticket)
        if not given and waiter.answer.done() and isinstance(admission := waiter.answer.result(), Admission):
            self._give_back(admission)

    def pump(self) -> None:
        """Admit whoever's turn it is and fits; whoever does not holds up its kind, and lower ranks of its model."""
        now, held_up, ranks = self._clock.now(), set(), dict[str | None, int]()
        for ticket in self._room.in_order():
            waiter = self._waiters[ticket]
            kind = waiter.question.kind
            if kind in held_up or ticket.rank > ranks.get(kind[0], ticket.rank):
                continue
            refusal = waiter.question.would_refuse(now)
            waiter.over_share = refusal is not None and refusal.reason is RejectReason.TENANT_SHARE
            if refusal is None:
                self._answer(waiter, waiter.question.admit(now))
            elif refusal.reason is RejectReason.SATURATED:
                held_up.add(kind)
                ranks.setdefault(kind[0], ticket.rank)
            elif refusal.reason not in DRAINING_AWAY:
                self._answer(waiter, waiter.question.refuse(now, refusal.reason))

    def _answer(self, waiter: _Waiter, answer: Admission | Refusal) -> None:
        ticket = waiter.question.ticket
        del self._waiters[ticket]
        (self._room.serve if isinstance(answer, Admission) else self._room.leave)(ticket)
        waiter.answer.set_result(answer)

    def dismiss(self) -> None:
        """Refuse everybody who waits, because the proxy is shutting down. From now on nobody waits any more."""
        self._dismissed = True
        for ticket, waiter in list(self._waiters.items()):
            del self._waiters[ticket]
            self._room.leave(ticket)
            waiter.answer.set_result(waiter.question.refuse(self._clock.now(), RejectReason.DRAINING))


def _end_of(answer: Admission | Refusal) -> WaitEnd:
    if isinstance(answer, Admission):
        return WaitEnd.ADMITTED
    return WaitEnd.TIMED_OUT if answer.reason is RejectReason.QUEUE_TIMEOUT else WaitEnd.REFUSED


def ticket_of(demand: Demand, backend: Backend | None, terms: Terms, size_bytes: int) -> Ticket:
    """A place in line: it costs its tenant the tokens it is expected to take on this backend, or at most."""
    course = backend.ledger.course(demand) if backend else Course(demand.expected_output, 0)
    return Ticket(
        tenant=terms.caller.tenant,
        weight=terms.tenant.weight,
        rank=terms.priority.rank,
        cost=demand.copies * sum(demand.prompts) + demand.sequences * course.remaining,
        size_bytes=size_bytes,
        blocks=course.final_blocks,
    )
