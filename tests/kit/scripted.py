"""Answers that a test writes block by block, and what of them reaches a client; no sockets, time as the test has it."""

import asyncio
import io
import json
import random
from collections.abc import AsyncIterator
from typing import Any

from prometheus_client import CollectorRegistry

from kvguard.admission.decision import AdmissionPolicy
from kvguard.admission.policy import DegradePolicy
from kvguard.admission.retry import RetryPolicy
from kvguard.admission.tiers import TierPolicy
from kvguard.clock import ManualClock
from kvguard.pool.backend import Backend
from kvguard.protocols.routes import RouteTable
from kvguard.proxy.app import TrafficApp
from kvguard.proxy.controller import Controller
from kvguard.proxy.exchange import Exchange, Message, Patience
from kvguard.proxy.pipeline import Pipeline, PipelinePolicy
from kvguard.proxy.upstream import Headers, UpstreamRequest
from kvguard.telemetry.live.record import Record
from kvguard.telemetry.log import DecisionLog, configure_logging
from kvguard.telemetry.metrics import Metrics
from kvguard.telemetry.reporter import Reporter
from kvguard.tokenization.counter import PromptCounter
from kvguard.tokenization.learned import LearnedPolicy, LearnedRatios

EVENTS: Headers = [(b"content-type", b"text/event-stream"), (b"x-compute-type", b"cpu"), (b"cache-control", b"x")]
JSON: Headers = [(b"content-type", b"application/json")]


class Answer:
    """A backend's answer; its body is what has been put into it."""

    def __init__(self, *blocks: bytes | Exception | None, status: int = 200, headers: Headers = EVENTS) -> None:
        self.status = status
        self.headers = list(headers)
        self.aborted = False
        self._blocks: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        for block in blocks:
            self.put(block)

    def put(self, block: bytes | Exception | None) -> None:
        """The next block, how the answer breaks, or None for its end."""
        self._blocks.put_nowait(block)

    async def blocks(self) -> AsyncIterator[bytes]:
        while (block := await self._blocks.get()) is not None:
            if isinstance(block, Exception):
                raise block
            yield block

    def abort(self) -> None:
        self.aborted = True


class Client:
    """Whoever asked: it has its request read, and keeps what it is answered."""

    def __init__(self, body: bytes = b"") -> None:
        self.sent: list[Message] = []
        self._body = [body]

    async def receive(self) -> Message:
        if self._body:
            return {"type": "http.request", "body": self._body.pop(), "more_body": False}
        return await asyncio.Event().wait() or {}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int | None:
        """None until there is one."""
        return self.sent[0]["status"] if self.sent else None

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def blocks(self) -> list[bytes]:
        return [message["body"] for message in self.sent[1:] if message["body"]]

    @property
    def body(self) -> bytes:
        return b"".join(self.blocks)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def scope_of(path: str = "/", method: str = "POST") -> Message:
    return {"type": "http", "method": method, "raw_path": path.encode(), "headers": [], "client": ("127.0.0.1", 1)}


def exchange_of(client: Client) -> Exchange:
    """One exchange with this client."""
    return Exchange(scope_of(), client.receive, client.send, received_at=0.0, patience=Patience())


class Front:
    """The traffic port of one engine's routes before one backend, whose `answer` is the test's."""

    def __init__(self, table: RouteTable, backend: Backend, *, policy: PipelinePolicy | None = None) -> None:
        self.clock, self.backend, self.registry = ManualClock(100.0), backend, CollectorRegistry()
        self.asked: list[UpstreamRequest] = []
        self.answer = Answer(b"{}", None, headers=JSON)
        metrics = Metrics(self.registry, version="0", wall=self.clock.wall)
        log, live = DecisionLog(configure_logging("error", io.StringIO())), Record(self.clock.now, self.clock.wall)
        reporter = Reporter(metrics, log, live)
        tiers = AdmissionPolicy(tiers=TierPolicy(), degrade=DegradePolicy())
        controller = Controller(
            [backend], tiers, RetryPolicy(), rng=random.Random(0), on_tier_change=lambda change: None
        )
        self.learned = LearnedRatios(LearnedPolicy())
        self.counter = PromptCounter(lambda _: (), self.learned)
        policy = policy or PipelinePolicy(retry_after_seconds=3.0)
        pipeline = Pipeline(controller, self.counter, self, reporter, self.clock, policy)
        self.app = TrafficApp(table, pipeline, controller, self, reporter, self.clock)

    async def send(self, request: UpstreamRequest) -> Answer:
        """Take what is forwarded."""
        self.asked.append(request)
        return self.answer

    async def close(self) -> None:
        """There is nothing to drop."""

    async def ask(self, path: str, body: object = b"", *, method: str = "POST") -> Client:
        """One request to its end."""
        client = Client(body if isinstance(body, bytes) else json.dumps(body).encode())
        await self.app(scope_of(path, method), client.receive, client.send)
        return client
