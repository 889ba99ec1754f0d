"""What stands in front of several processes in a cluster: connections go where readiness was seen a while ago."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import httpx

from kvguard.clock import SystemClock


@dataclass
class Balancer:
    """Passes each connection to one of the `endpoints`, in turn. It knows nothing of requests."""

    port: int = 0
    endpoints: list[int] = field(default_factory=list)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _turn: itertools.count = field(default_factory=itertools.count)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = self.endpoints[next(self._turn) % len(self.endpoints)]
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_copy(reader, there_writer), _copy(there_reader, writer))

    async def follow(self, port: int, admin_port: int, *, every_seconds: float, lag_seconds: float) -> None:
        """Ask a process whether it is ready, and act on it late; runs until it is cancelled or nobody answers."""
        clock, late = SystemClock(), set[asyncio.Task[None]]()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{admin_port}", trust_env=False) as client:
            ready = False
            while True:
                try:
                    seen = (await client.get("/readyz")).status_code == 200
                except httpx.TransportError:
                    return
                if seen != ready:
                    ready = seen
                    late.add(asyncio.create_task(self._act(port, ready, clock.sleep(lag_seconds))))
                await clock.sleep(every_seconds)

    async def _act(self, port: int, ready: bool, lag) -> None:
        await lag
        async with self.changed:
            (self.endpoints.append if ready else self.endpoints.remove)(port)
            self.changed.notify_all()

    async def until(self, port: int) -> None:
        """Return once connections go to this port."""
        async with asyncio.timeout(60), self.changed:
            await self.changed.wait_for(lambda: port in self.endpoints)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while block := await reader.read(65536):
            writer.write(block)
            await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def balancing() -> AsyncIterator[Balancer]:
    """A balancer on a free port."""
    balancer = Balancer()
    server = await asyncio.start_server(balancer.serve, "127.0.0.1", 0, backlog=512)
    balancer.port = server.sockets[0].getsockname()[1]
    try:
        yield balancer
    finally:
        server.close()
