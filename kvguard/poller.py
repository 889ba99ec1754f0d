"""Reads every backend's gauge in the background. No request ever waits for it.

One scrape of a backend is in flight at a time, on a connection of its own, under its own deadline.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import httpx
import msgspec

from kvguard.admission.occupancy import TelemetryState
from kvguard.admission.usage import UsageSample
from kvguard.clock import Clock
from kvguard.engines.exposition import ExpositionError
from kvguard.pool.backend import Backend
from kvguard.telemetry.reporter import Reporter

Parse = Callable[[str], UsageSample]

MODELS_EVERY_SECONDS = 60.0
MODELS_RETRY_SECONDS = 5.0
MAX_PAGE_BYTES = 2 * 1024 * 1024


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    parent: str | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


@dataclass(frozen=True, slots=True, kw_only=True)
class PollPolicy:
    """How often and how patiently to scrape, and whether the context length is the server's to say."""

    interval_seconds: float = 0.5
    timeout_seconds: float = 2.0
    learn_context: bool = True


class Poller:
    """Keeps one backend's occupancy up to date."""

    def __init__(
        self,
        backend: Backend,
        parse: Parse,
        reporter: Reporter,
        clock: Clock,
        policy: PollPolicy,
    ) -> None:
        self._backend = backend
        self._parse = parse
        self._reporter = reporter
        self._clock = clock
        self._policy = policy
        self._models_due_at = clock.now()

    async def run(self, after_poll: Callable[[], None]) -> None:
        """Scrape for ever; `after_poll` is called after each."""
        limits = httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=4.0)
        timeout = httpx.Timeout(self._policy.timeout_seconds)
        async with httpx.AsyncClient(timeout=timeout, limits=limits, trust_env=False) as client:
            while True:
                try:
                    await self.poll(client)
                    after_poll()
                except Exception as error:  # noqa: BLE001  a page nobody foresaw must not end the scraping
                    self._backend.occupancy.miss(reached=True)
                    self._report_failure(type(error).__name__)
                await self._clock.sleep(self._policy.interval_seconds)

    async def poll(self, client: httpx.AsyncClient) -> None:
        """One scrape, and the model list when it is due."""
        await self._scrape(client)
        now = self._clock.now()
        if now >= self._models_due_at and self._backend.occupancy.failures == 0:
            await self._read_models(client)

    async def _scrape(self, client: httpx.AsyncClient) -> None:
        asked_at = self._clock.now()
        occupancy = self._backend.occupancy
        try:
            sample = self._parse(await self._get(client, "/metrics"))
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            occupancy.miss(reached=False)
            self._report_failure(type(error).__name__)
        except (httpx.HTTPError, TimeoutError, ExpositionError, ValueError) as error:
            occupancy.miss(reached=True)
            self._report_failure(type(error).__name__)
        else:
            change = self._backend.observe(sample, asked_at=asked_at)
            if change is not None:
                self._reporter.condition_change(change, now=self._clock.now())
            if occupancy.telemetry(self._clock.now()) is TelemetryState.FRESH:
                self._reporter.scraped(self._backend.name)
            else:
                self._report_failure("no gauge on the page")

    def _report_failure(self, detail: str) -> None:
        now = self._clock.now()
        state = self._backend.occupancy.telemetry(now).value
        self._reporter.scrape_failed(self._backend.name, state=state, detail=detail, now=now)

    async def _read_models(self, client: httpx.AsyncClient) -> None:
        """Learn names and context length. A server that keeps them behind a key keeps them to itself."""
        self._models_due_at = self._clock.now() + MODELS_RETRY_SECONDS
        try:
            models = msgspec.json.decode(await self._get(client, "/v1/models"), type=_Models).data
        except (httpx.HTTPError, TimeoutError, msgspec.MsgspecError, ValueError):
            return
        self._models_due_at = self._clock.now() + MODELS_EVERY_SECONDS
        self._backend.models = frozenset(model.id for model in models)
        self._backend.parents = {model.id: model.parent for model in models if model.parent}
        lengths = [length for model in models if (length := model.max_model_len) is not None and length > 0]
        if lengths and self._policy.learn_context:
            self._backend.context_tokens = max(lengths)

    async def _get(self, client: httpx.AsyncClient, path: str) -> str:
        # httpx's own time-outs start anew with every read; this one bounds the whole scrape.
        async with asyncio.timeout(self._policy.timeout_seconds):
            headers = {"accept-encoding": "identity"}
            async with client.stream("GET", self._backend.url + path, headers=headers) as response:
                response.raise_for_status()
                page = bytearray()
                async for block in response.aiter_raw():
                    page += block
                    if len(page) > MAX_PAGE_BYTES:
                        raise ValueError(f"{path} is longer than {MAX_PAGE_BYTES} bytes")
                return page.decode()
