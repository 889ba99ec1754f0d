"""A whole kvguard in the test's own event loop, in front of stubs, with time standing still unless told otherwise."""

import asyncio
import contextlib
import functools
import io
import json
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from kvguard.bootstrap import Service, running
from kvguard.clock import ManualClock
from kvguard.pool.backend import Backend
from kvguard.reload import SettingsFile
from kvguard.settings import Settings
from kvguard.sources import load_settings
from kvguard.telemetry.log import configure_logging
from tests.kit.stub import Stub

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


@dataclass
class Guard:
    """A running kvguard, clients for both ports, and everything it logged."""

    service: Service
    clock: ManualClock
    client: httpx.AsyncClient
    admin: httpx.AsyncClient
    log_stream: io.StringIO
    scraper: httpx.AsyncClient

    @property
    def backend(self) -> Backend:
        return self.service.controller.backends[0]

    @property
    def logs(self) -> list[dict]:
        return [json.loads(line) for line in self.log_stream.getvalue().splitlines()]

    async def scrape(self) -> None:
        """Read every backend's gauge once, now, and let the tiers follow."""
        for poller in self.service.members.pollers.values():
            await poller.poll(self.scraper)
        self.service.controller.retier(self.clock.now())

    async def complete(self, prompt: Any = "hi", **fields: Any) -> httpx.Response:
        """POST /v1/completions."""
        headers = fields.pop("headers", None)
        return await self.client.post(COMPLETIONS, json={"model": "tiny", "prompt": prompt, **fields}, headers=headers)

    async def chat(self, content: str = "hi", **fields: Any) -> httpx.Response:
        """POST /v1/chat/completions."""
        headers = fields.pop("headers", None)
        body = {"model": "tiny", "messages": [{"role": "user", "content": content}], **fields}
        return await self.client.post(CHAT, json=body, headers=headers)

    def metric(self, name: str, **labels: str) -> float | None:
        """One sample of kvguard's own metrics, None when there is none."""
        return self.service.registry.get_sample_value(name, labels or None)

    def usage(self, kind: str, engine: str = "all") -> float | None:
        """One of the occupancy ratios of the first backend, as exported."""
        return self.metric("kvguard_kv_usage_ratio", backend="b0", engine=engine, kind=kind)

    def telemetry(self) -> str:
        """The one telemetry state of the first backend that is 1, as exported."""
        states = ("fresh", "stale", "missing", "unreachable")
        (current,) = [
            state for state in states if self.metric("kvguard_telemetry_state", backend="b0", state=state) == 1
        ]
        return current

    async def advance(self, seconds: float) -> None:
        await self.clock.advance(seconds)

    async def until(self, holds: Callable[[], bool], *, seconds: float = 60.0) -> None:
        """Let everything run, time standing still, until kvguard's own state makes `holds` true."""
        async with asyncio.timeout(seconds):
            while not holds():
                await self.clock.settle()


def settings_for(*stubs: Stub, **sections: Any) -> Settings:
    """Settings in front of `stubs`, or of `backends`: free ports, `backend` for each stub, the rest as given."""
    common = sections.pop("backend", {})
    backends = [{"url": stub.url, "name": f"b{number}", **common} for number, stub in enumerate(stubs)]
    backends += sections.pop("backends", [])
    listen = {"host": "127.0.0.1", "port": 0, "admin_port": 0, "drain_seconds": 1, **sections.pop("listen", {})}
    # A busy machine may be slow to answer the first scrape, on which everything depends.
    telemetry = {"timeout_seconds": 20, **sections.pop("telemetry", {})}
    return Settings(backends=backends, listen=listen, telemetry=telemetry, **sections)


def _loaded(file: Path, settings: Settings) -> Settings:
    """What the file says, under everything the test has set."""
    return load_settings(config=file, flags=settings.model_dump(exclude_unset=True))


@contextlib.asynccontextmanager
async def guarding(
    *stubs: Stub, clock: ManualClock | None = None, file: Path | None = None, **sections: Any
) -> AsyncIterator[Guard]:
    """kvguard in front of `stubs`; `sections` are settings, over those of `file`, which is followed. The first scrape
    is done when this yields.

    The clock is manual, so the background poller scrapes once and then waits for `advance`.
    """
    clock = clock or ManualClock(1000.0)
    log_stream = io.StringIO()
    logger = configure_logging("debug", log_stream)
    settings = settings_for(*stubs, **sections)
    followed = None if file is None else SettingsFile(path=file, load=functools.partial(_loaded, file, settings))
    timeout = httpx.Timeout(60)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with contextlib.AsyncExitStack() as stack:
        service = await stack.enter_async_context(
            running(
                settings if followed is None else followed.load(),
                clock=clock,
                rng=random.Random(7),
                logger=logger,
                file=followed,
            )
        )
        client, admin, scraper = [
            await stack.enter_async_context(
                httpx.AsyncClient(base_url=base, timeout=timeout, limits=limits, trust_env=False)
            )
            for base in (f"http://127.0.0.1:{service.port}", f"http://127.0.0.1:{service.admin_port}", "")
        ]
        await service.members.ready.wait()
        yield Guard(service, clock, client, admin, log_stream, scraper)
