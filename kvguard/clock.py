"""The one home of real time. Everything else takes `now` as an argument or holds a `Clock`."""

import asyncio
import heapq
import itertools
import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic seconds and a way to wait for them to pass."""

    def now(self) -> float:
        """Seconds on a clock that never runs backwards; its zero has no meaning."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch, for what people read; never for measuring."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return once `seconds` have passed on this clock."""
        ...


class SystemClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class ManualClock:
    """A clock for tests and simulation: time passes only when `advance` says so."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        wake = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), wake))
        await wake

    async def advance(self, seconds: float) -> None:
        """Move time forward, waking sleepers in order and letting each run until it waits again."""
        target = self._now + seconds
        await self.settle()
        while self._sleepers and self._sleepers[0][0] <= target:
            self._now, _, wake = heapq.heappop(self._sleepers)
            if not wake.done():
                wake.set_result(None)
            await self.settle()
        self._now = target

    async def settle(self) -> None:
        """Let every task that can run do so; time stands still."""
        for _ in range(20):
            await asyncio.sleep(0)
