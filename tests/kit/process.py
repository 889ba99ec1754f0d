"""kvguard as a process of its own, known by its ports and its log."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

DEADLINE_SECONDS = 60.0


@dataclass
class Process:
    """A running command; `lines` is what it has logged so far."""

    run: asyncio.subprocess.Process
    lines: list[dict] = field(default_factory=list)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    port: int = 0
    admin_port: int = 0

    async def told(self, event: str) -> dict:
        """The line about this event, once it is there."""
        async with asyncio.timeout(DEADLINE_SECONDS), self.changed:
            await self.changed.wait_for(lambda: any(line["event"] == event for line in self.lines))
        return next(line for line in self.lines if line["event"] == event)

    def send(self, number: signal.Signals) -> None:
        self.run.send_signal(number)

    async def ended(self) -> int:
        """Its exit code."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            return await self.run.wait()

    async def read(self) -> None:
        """Take in the log up to its end."""
        while line := await self.run.stdout.readline():
            async with self.changed:
                self.lines.append(json.loads(line))
                self.changed.notify_all()


@contextlib.asynccontextmanager
async def process(backend: str, **settings: object) -> AsyncIterator[Process]:
    """`kvguard serve` in front of a backend, on ports that are free; `settings` by their names in the environment."""
    named = {"LISTEN__HOST": "127.0.0.1", "LISTEN__PORT": 0, "LISTEN__ADMIN_PORT": 0, **settings}
    variables = {f"KVGUARD_{name}": str(value) for name, value in named.items()}
    command = [sys.executable, "-m", "kvguard", "serve", "--backend", backend]
    pipes = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.DEVNULL}
    environment = os.environ | variables  # noqa: TID251  what is set comes on top of it
    run = await asyncio.create_subprocess_exec(*command, env=environment, **pipes)
    one = Process(run)
    reading = asyncio.create_task(one.read())
    try:
        started = await one.told("started")
        one.port, one.admin_port = started["port"], started["admin_port"]
        yield one
    finally:
        with contextlib.suppress(ProcessLookupError):
            run.kill()
        await run.wait()
        await reading
