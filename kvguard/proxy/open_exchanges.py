"""The exchanges on the traffic port that have not ended: to be waited for, and to be cut off when time is up."""

import asyncio
import contextlib
from collections.abc import Iterator

from kvguard.proxy.exchange import Exchange


class OpenExchanges:
    """While `closing`, every answer tells its client to use another connection for what it asks next."""

    def __init__(self) -> None:
        self.closing = False
        self._tasks: dict[Exchange, asyncio.Task[object]] = {}
        self._none = asyncio.Event()
        self._none.set()

    def __len__(self) -> int:
        return len(self._tasks)

    @contextlib.contextmanager
    def serving(self, exchange: Exchange) -> Iterator[None]:
        """The current task serves this exchange."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("an exchange is served by a task")
        exchange.closes = self._closes
        self._tasks[exchange] = task
        self._none.clear()
        try:
            yield
        finally:
            del self._tasks[exchange]
            if not self._tasks:
                self._none.set()

    def _closes(self) -> bool:
        return self.closing

    async def ended(self) -> None:
        """Return at a moment when none is open."""
        await self._none.wait()

    def cut_off(self) -> int:
        """End every one in as good an order as it still can be; returns how many there were."""
        for exchange, task in self._tasks.items():
            exchange.cut_off = True
            task.cancel()
        return len(self._tasks)
