"""Asks every backend in the background how full it is, and now and then what it is. No request ever waits for it.

One scrape of a backend is in flight at a time, on a connection of its own, under its own deadline.
"""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from kvguard.admission.occupancy import TelemetryState
from kvguard.clock import Clock
from kvguard.engines.exposition import ExpositionError
from kvguard.engines.reading import Reading
from kvguard.pool.backend import Backend
from kvguard.telemetry.reporter import Reporter

FACTS_RETRY_SECONDS = 5.0
MAX_PAGE_BYTES = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PollPolicy:
    """How often and how patiently to scrape, and whether the context length is the server's to say."""

    interval_seconds: float = 0.5
    timeout_seconds: float = 2.0
    learn_context: bool = True


class Poller:
    """Keeps one backend's occupancy up to date; `trouble` is what kept the last scrape from giving a gauge."""

    def __init__(
        self,
        backend: Backend,
        reading: Reading,
        reporter: Reporter,
        clock: Clock,
        policy: PollPolicy,
        certificates: ssl.SSLContext,
    ) -> None:
        self._certificates = certificates
        self._backend = backend
        self._reading = reading
        self._facts = reading.assumed
        self._reporter = reporter
        self._clock = clock
        self._policy = policy
        self._facts_due_at = clock.now()
        self.trouble = ""

    async def run(self, after_poll: Callable[[], None]) -> None:
        """Scrape for ever; `after_poll` is called after each."""
        limits = httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=4.0)
        timeout = httpx.Timeout(self._policy.timeout_seconds)
        async with httpx.AsyncClient(
            verify=self._certificates, timeout=timeout, limits=limits, trust_env=False
        ) as client:
            while True:
                try:
                    await self.poll(client)
                    after_poll()
                except Exception as error:  # noqa: BLE001  a page nobody foresaw must not end the scraping
                    self._backend.occupancy.miss(reached=True)
                    self._report_failure(type(error).__name__)
                await self._clock.sleep(self._policy.interval_seconds)

    async def poll(self, client: httpx.AsyncClient) -> None:
        """One scrape, before which the facts are read if they are due: what a page means may depend on them."""
        asked_at = self._clock.now()
        occupancy = self._backend.occupancy
        try:
            page = (await self._get(client, "/metrics")).decode()
            if asked_at >= self._facts_due_at:
                await self._read_facts(client)
            sample = self._reading.usage(page, self._facts)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            self._facts_due_at = asked_at  # it may come back as another
            occupancy.miss(reached=False)
            self._report_failure(type(error).__name__)
        except (httpx.HTTPError, TimeoutError, ExpositionError, ValueError) as error:
            occupancy.miss(reached=True)
            self._report_failure(type(error).__name__)
        else:
            if self._backend.identities.observe(sample.started_at):
                self._reporter.shared_address(self._backend.name)
            change = self._backend.observe(sample, asked_at=asked_at)
            if change is not None:
                self._reporter.condition_change(change, now=self._clock.now())
            if occupancy.telemetry(self._clock.now()) is TelemetryState.FRESH:
                self.trouble = ""
                self._reporter.scraped(self._backend.name)
            else:
                self._report_failure("no gauge on the page")

    def _report_failure(self, detail: str) -> None:
        now, self.trouble = self._clock.now(), detail
        state = self._backend.occupancy.telemetry(now).value
        self._reporter.scrape_failed(self._backend.name, state=state, detail=detail, now=now)

    async def _read_facts(self, client: httpx.AsyncClient) -> None:
        """Learn what the server is. One that keeps it behind a key keeps it to itself."""
        self._facts_due_at = self._clock.now() + FACTS_RETRY_SECONDS
        try:
            # On a connection of its own: a load balancer keeps every connection with one server, so that only a new one
            # shows whether there are others.
            facts = self._reading.facts(await self._get(client, self._reading.facts_path, close=True))
        except (httpx.HTTPError, TimeoutError, ValueError):
            return
        self._facts_due_at = self._clock.now() + self._reading.facts_seconds
        if facts.lower_bound and not self._facts.lower_bound:
            self._reporter.capacity_bound(self._backend.name, facts.capacity_tokens)
        self._facts = facts
        self._backend.introduce(facts, learn_context=self._policy.learn_context)

    async def _get(self, client: httpx.AsyncClient, path: str, *, close: bool = False) -> bytes:
        # httpx's own time-outs start anew with every read; this one bounds the whole scrape.
        async with asyncio.timeout(self._policy.timeout_seconds):
            headers = {"accept-encoding": "identity", **({"connection": "close"} if close else {})}
            async with client.stream("GET", self._backend.url + path, headers=headers) as response:
                response.raise_for_status()
                page = bytearray()
                async for block in response.aiter_raw():
                    page += block
                    if len(page) > MAX_PAGE_BYTES:
                        raise ValueError(f"{path} is longer than {MAX_PAGE_BYTES} bytes")
                return bytes(page)
