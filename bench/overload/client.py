"""Clients: they stream, they watch the clock, and they give up."""

import asyncio
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

import aiohttp

from bench.overload.workload import Arrival, requests

PATIENCE_SECONDS = 10.0


@dataclass(slots=True)
class Outcome:
    """What one client saw. Times are seconds from sending; `tokens` counts stream events with text."""

    status: int = 0
    first_token: float | None = None
    ended: float | None = None
    tokens: int = 0
    complete: bool = False
    timed_out: bool = False
    degraded: bool = False
    cut: bool = False

    def good(self, *, first_token: float, per_token: float) -> bool:
        """Whether the whole answer came, began in time and kept its pace."""
        if not self.complete or self.first_token is None or self.ended is None or self.first_token > first_token:
            return False
        return (self.ended - self.first_token) / max(self.tokens - 1, 1) <= per_token


async def ask(session: aiohttp.ClientSession, url: str, arrival: Arrival) -> Outcome:
    """Send one request and read its answer to the end or to the end of patience."""
    outcome = Outcome()
    began = time.monotonic()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await _read(session, url, arrival, outcome, began)
    except TimeoutError:
        outcome.timed_out = True
    except aiohttp.ClientError:
        outcome.status = outcome.status or 599
    outcome.ended = time.monotonic() - began
    return outcome


async def _read(session: aiohttp.ClientSession, url: str, arrival: Arrival, outcome: Outcome, began: float) -> None:
    async with session.post(url + "/v1/completions", json=arrival.body()) as answer:
        outcome.status = answer.status
        outcome.degraded = "x-kvguard-degraded" in answer.headers
        if answer.status != 200:
            await answer.read()
            return
        async for line in answer.content:
            if line.startswith(b"data: [DONE]"):
                outcome.complete = True
            elif line.startswith(b"data: ") and b'"choices":[{' in line:
                outcome.tokens += 1
                outcome.cut = outcome.cut or b'"finish_reason":"length"' in line
                if outcome.first_token is None:
                    outcome.first_token = time.monotonic() - began
            elif b'"error"' in line:
                return


def new_session() -> aiohttp.ClientSession:
    """Connections without limit, none reused, as from many clients."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None))


async def open_loop(url: str, schedule: list[Arrival]) -> list[Outcome]:
    """Send every request at its time, whatever became of the ones before."""
    async with new_session() as session, asyncio.TaskGroup() as tasks:
        began = time.monotonic()
        sent = []
        for arrival in schedule:
            await asyncio.sleep(max(0.0, began + arrival.at - time.monotonic()))
            sent.append(tasks.create_task(ask(session, url, arrival)))
    return [task.result() for task in sent]


async def closed_loop(url: str, *, clients: int, seconds: float, seed: str) -> float:
    """Answers a second when `clients` each send their next request as soon as the last has ended.

    The first third only fills the engine; answers that end in the rest are counted.
    """
    supply = requests(random.Random(seed))
    began = time.monotonic()
    counted_from, until = began + seconds / 3, began + seconds
    async with new_session() as session:
        ends = await asyncio.gather(*(_loop(session, url, supply, until) for _ in range(clients)))
    return sum(counted_from <= end < until for each in ends for end in each) / (until - counted_from)


async def _loop(session: aiohttp.ClientSession, url: str, supply: Iterator[Arrival], until: float) -> list[float]:
    ends = []
    while time.monotonic() < until:
        if (await ask(session, url, next(supply))).complete:
            ends.append(time.monotonic())
    return ends
