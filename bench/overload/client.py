"""Clients: they ask a gate, they stream, they watch the clock, and they give up."""

import asyncio
import random
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

import aiohttp

from bench.overload.gates import Gate
from bench.overload.workload import Arrival, Count, Shape, requests

REFUSED = 429
_COMPLETION_TOKENS = re.compile(rb'"completion_tokens":\s*(\d+)')


@dataclass(slots=True)
class Outcome:
    """What one client saw. Times are seconds from sending.

    `tokens` counts stream events with text, and is what the engine's usage says once that has come. `cut` says that the
    answer ended at a cap: the clients' own lie above every answer, so one that was lowered.
    """

    status: int = 0
    first_token: float | None = None
    ended: float | None = None
    tokens: int = 0
    complete: bool = False
    timed_out: bool = False
    cut: bool = False
    error: bool = False

    def hear(self, line: bytes, *, at: float) -> None:
        """Take in a line of the stream."""
        if line.startswith(b"data: ") and b'"choices":[{' in line:
            self.tokens += 1
            self.cut = self.cut or b'"finish_reason":"length"' in line
            if self.first_token is None:
                self.first_token = at
        elif usage := _COMPLETION_TOKENS.search(line):
            self.tokens = int(usage[1])  # a slow reader gets several tokens in one event
        elif line.startswith(b"data: [DONE]"):
            self.complete = not self.error
        elif b'"error"' in line:
            self.error = True

    @property
    def refused(self) -> bool:
        """Whether a gate, a proxy or the engine said no for lack of room."""
        return self.status in (REFUSED, 503)

    @property
    def failed(self) -> bool:
        """Whether no whole answer came for any other reason than refusal and lost patience."""
        return not (self.complete or self.timed_out or self.refused)

    def good(self, *, first_token: float, per_token: float) -> bool:
        """Whether the whole answer came, began in time and kept its pace."""
        if not self.complete or self.first_token is None or self.ended is None or self.first_token > first_token:
            return False
        return (self.ended - self.first_token) / max(self.tokens - 1, 1) <= per_token


@dataclass(frozen=True, slots=True)
class Clients:
    """Where requests go, past which gate, and how long each client waits for the end of its answer."""

    session: aiohttp.ClientSession
    url: str
    gate: Gate
    patience_seconds: float

    async def ask(self, arrival: Arrival) -> Outcome:
        """Send one request and read its answer to the end or to the end of patience; a refused one is not sent."""
        began = time.monotonic()
        if not self.gate.admit(arrival, began):
            return Outcome(status=REFUSED, ended=0.0)
        outcome = Outcome()
        try:
            async with asyncio.timeout(self.patience_seconds):
                await self._read(arrival, outcome, began)
        except TimeoutError:
            outcome.timed_out = True
        except aiohttp.ClientError:
            outcome.status = outcome.status or 599
        finally:
            now = time.monotonic()
            self.gate.ended(arrival, now)
        outcome.ended = now - began
        return outcome

    async def _read(self, arrival: Arrival, outcome: Outcome, began: float) -> None:
        async with self.session.post(self.url + "/v1/completions", json=arrival.body()) as answer:
            outcome.status = answer.status
            if answer.status != 200:
                await answer.read()
                return
            async for line in answer.content:
                produced = outcome.tokens
                outcome.hear(line, at=time.monotonic() - began)
                if outcome.tokens > produced:
                    self.gate.progress(arrival, outcome.tokens)


class Meter(Gate):
    """Lets everything pass and counts the tokens it sees come."""

    def __init__(self) -> None:
        self.tokens = 0
        self._produced: dict[int, int] = {}

    def progress(self, arrival: Arrival, produced: int) -> None:
        self.tokens += produced - self._produced.get(arrival.number, 0)
        self._produced[arrival.number] = produced

    def ended(self, arrival: Arrival, now: float) -> None:
        self._produced.pop(arrival.number, None)


def new_session() -> aiohttp.ClientSession:
    """Connections without limit, none reused, as from many clients."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None))


async def open_loop(url: str, schedule: list[Arrival], gate: Gate, *, patience_seconds: float) -> list[Outcome]:
    """Send every request at its time, whatever became of the ones before."""
    async with new_session() as session, asyncio.TaskGroup() as tasks:
        clients = Clients(session, url, gate, patience_seconds)
        began = time.monotonic()
        sent = []
        for arrival in schedule:
            await asyncio.sleep(max(0.0, began + arrival.at - time.monotonic()))
            sent.append(tasks.create_task(clients.ask(arrival)))
    return [task.result() for task in sent]


async def closed_loop(url: str, shape: Shape, *, seconds: float, seed: str, count: Count) -> float:
    """Answers a second when the shape's clients each send their next request as soon as the last has ended.

    The first third only fills the engine. In the rest tokens are counted, and an answer is as many as it has in the
    mean: answers counted one by one would be few, and the short ones end first.
    """
    supply, meter = requests(shape, random.Random(seed), count), Meter()
    async with new_session() as session, asyncio.TaskGroup() as tasks:
        clients = Clients(session, url, meter, shape.patience_seconds)
        loops = [tasks.create_task(_ask_on(clients, supply)) for _ in range(shape.clients)]
        await asyncio.sleep(seconds / 3)
        began, before = time.monotonic(), meter.tokens
        await asyncio.sleep(seconds * 2 / 3)
        tokens_per_second = (meter.tokens - before) / (time.monotonic() - began)
        for loop in loops:
            loop.cancel()
    return tokens_per_second / shape.output.mean()


async def _ask_on(clients: Clients, supply: Iterator[Arrival]) -> None:
    while True:
        await clients.ask(next(supply))
