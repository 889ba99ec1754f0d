"""The life of a kvguard process, from the first look at a backend to the last answer.

It is ready once something can be decided. At the end it first goes on as usual, only not ready, until load balancers
have taken it out; then it refuses what is new and waits for its answers; what is left then is cut off, in order.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvguard.clock import Clock
from kvguard.proxy.controller import Controller
from kvguard.proxy.open_exchanges import OpenExchanges
from kvguard.proxy.readiness import Readiness, obstacles, usable
from kvguard.proxy.waiting_line import WaitingLine
from kvguard.telemetry.events import Phase
from kvguard.telemetry.lifecycle import LifecycleLog

FIRST_REMINDER_SECONDS: Final = 10.0
REMINDER_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Farewell:
    """How long to go on as usual, and then to wait for running answers."""

    prestop_seconds: float
    drain_seconds: float


class Lifecycle:
    """Takes one process through its phases. `look` is to be called after every look at a backend; `close_idle` closes
    connections on which nothing runs; `troubles` says what the last looks ran into.
    """

    def __init__(
        self,
        controller: Controller,
        exchanges: OpenExchanges,
        line: WaitingLine,
        clock: Clock,
        log: LifecycleLog,
        troubles: Callable[[], Mapping[str, str]],
    ) -> None:
        self.phase = Phase.STARTING
        self.ready_without_backend = False
        self.close_idle: Callable[[], None] = _nothing
        self._controller = controller
        self.exchanges = exchanges
        self._line = line
        self._clock = clock
        self._log = log
        self._troubles = troubles
        self._told_ready = False
        self._since = clock.now()
        self._cut = False

    def readiness(self) -> Readiness:
        """What `/readyz` says now."""
        now, states = self._clock.now(), self._controller.backends
        backends = {backend.name: backend.occupancy.telemetry(now).value for backend in states}
        if self.phase in (Phase.STOPPING, Phase.DRAINING):
            return Readiness(ready=False, status=self.phase.value, backends=backends, why=("kvguard is shutting down",))
        why = obstacles(self._controller, self._troubles(), now)
        if self.phase is Phase.STARTING:
            return Readiness(ready=False, status="starting", backends=backends, why=why)
        ready = self.ready_without_backend or any(usable(backend, now) for backend in states)
        return Readiness(ready=ready, status="ready" if ready else "no usable backend", backends=backends, why=why)

    def look(self) -> None:
        """Take in what has been seen of the backends, and say so when that makes a difference."""
        now = self._clock.now()
        if self.phase is Phase.STARTING and any(usable(backend, now) for backend in self._controller.backends):
            self.phase = Phase.SERVING
        state = self.readiness()
        if state.ready == self._told_ready or self.phase is not Phase.SERVING:
            return
        if state.ready:
            self._log.ready(seconds=now - self._since)
        else:
            self._log.not_ready(state.why, seconds=0.0)
        self._told_ready, self._since = state.ready, now

    async def remind(self) -> None:
        """Say again and again why it is not ready, for as long as it is not; runs until it is cancelled."""
        await self._clock.sleep(FIRST_REMINDER_SECONDS)
        while True:
            state = self.readiness()
            if self.phase in (Phase.STARTING, Phase.SERVING) and not state.ready:
                self._log.not_ready(state.why, seconds=self._clock.now() - self._since)
            await self._clock.sleep(REMINDER_SECONDS)

    async def leave(self, farewell: Farewell, hurry: asyncio.Event) -> None:
        """Go through the end up to the last answer, or to `hurry`. Who was never ready has nobody to wait for."""
        if self.phase is Phase.SERVING and farewell.prestop_seconds:
            self.phase, self.exchanges.closing = Phase.STOPPING, True
            self._log.stopping(in_flight=len(self.exchanges), seconds=farewell.prestop_seconds)
            await _first(hurry.wait(), self._clock.sleep(farewell.prestop_seconds))
        self._refuse_new()
        self._log.draining(in_flight=len(self.exchanges), seconds=farewell.drain_seconds)
        await _first(hurry.wait(), self.exchanges.ended(), self._clock.sleep(farewell.drain_seconds))
        self.end()

    def _refuse_new(self) -> None:
        self.phase, self.exchanges.closing, self._since = Phase.DRAINING, True, self._clock.now()
        self._controller.draining = True
        self._line.dismiss()
        self.close_idle()

    def end(self) -> None:
        """Cut off what is left. The first call counts."""
        if self.phase is not Phase.DRAINING:
            self._refuse_new()
        if not self._cut:
            self._cut = True
            self._log.drained(seconds=self._clock.now() - self._since, cut=self.exchanges.cut_off())

    def ended(self) -> None:
        """Nothing is served any more."""
        self._log.stopped(reservations=sum(backend.ledger.live for backend in self._controller.backends))


async def _first(*waits: Coroutine[Any, Any, Any]) -> None:
    """Return with the first of these; the others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def _nothing() -> None:
    """What happens where no connection is kept."""
