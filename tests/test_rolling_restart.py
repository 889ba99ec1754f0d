"""Two processes in front of one engine are replaced one after the other, while streams run and new ones keep coming."""

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import httpx
import pytest

from kvguard.clock import SystemClock
from tests.kit.balancer import Balancer, balancing
from tests.kit.guard import COMPLETIONS
from tests.kit.process import Process, process
from tests.kit.raw import raw_client
from tests.kit.stub import Call, Stub, completion, exposition, running_stub

pytestmark = pytest.mark.anyio

STREAMS = 50
KEPT_CONNECTIONS = 4
TOKEN_SECONDS = 0.1
LAG_SECONDS = 0.3
SETTINGS = {"LISTEN__PRESTOP_SECONDS": 1.0, "LISTEN__DRAIN_SECONDS": 30, "TELEMETRY__TIMEOUT_SECONDS": 20}


async def answer_slowly(call: Call) -> None:
    """As many tokens as were asked for, one after the other; a whole answer at once."""
    asked = call.hit.json
    if not asked.get("stream"):
        await call.reply(200, completion())
        return
    await call.start_stream()
    for _ in range(asked["max_tokens"]):
        await call.token()
        await SystemClock().sleep(TOKEN_SECONDS)
    await call.event({"choices": [], "usage": completion(1, asked["max_tokens"])["usage"]})
    await call.end_stream()


@dataclass
class Clients:
    """Clients that begin anew as soon as they have their answer, until `over`; `faults` is whatever went wrong."""

    port: int
    over: asyncio.Event = field(default_factory=asyncio.Event)
    faults: list[str] = field(default_factory=list)
    streams: int = 0
    answers: int = 0

    async def stream(self, number: int) -> None:
        """Streams on connections of their own, some short, some longer than a process has before it drains."""
        tokens = 3 + 4 * (number % 5)
        body = {"model": "tiny", "prompt": [1], "max_tokens": tokens, "stream": True, "ignore_eos": True}
        while not self.over.is_set():
            async with raw_client(self.port, deadline_seconds=30) as client:
                await client.request(COMPLETIONS, body)
                answer = await client.answer()
            text = answer.body.decode()
            if answer.status != 200 or text.count('"text"') != tokens or not text.endswith("data: [DONE]\n\n"):
                self.faults.append(f"{answer.status}: {text[-200:]}")
            self.streams += 1

    async def whole(self) -> None:
        """Whole answers on a connection that is kept for as long as the other side likes."""
        body = {"model": "tiny", "prompt": [1], "max_tokens": 1}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", trust_env=False, timeout=30) as client:
            while not self.over.is_set():
                answer = await client.post(COMPLETIONS, json=body)
                if answer.status_code != 200:
                    self.faults.append(f"{answer.status_code}: {answer.text}")
                self.answers += 1
                await SystemClock().sleep(TOKEN_SECONDS)


@contextlib.asynccontextmanager
async def asking(port: int) -> AsyncIterator[Clients]:
    """All of them at once; every one has its last answer when this ends."""
    clients = Clients(port)
    async with asyncio.TaskGroup() as group:
        for number in range(STREAMS):
            group.create_task(clients.stream(number))
        for _ in range(KEPT_CONNECTIONS):
            group.create_task(clients.whole())
        yield clients
        clients.over.set()


@contextlib.asynccontextmanager
async def replicas(stub: Stub, number: int) -> AsyncIterator[list[Process]]:
    """Processes that start at the same time and share the engine."""
    async with contextlib.AsyncExitStack() as stack:
        starting = (stack.enter_async_context(process(stub.url, SHARE=0.5, **SETTINGS)) for _ in range(number))
        yield await asyncio.gather(*starting)


async def join(group: asyncio.TaskGroup, balancer: Balancer, one: Process) -> None:
    """From now on connections go to this process, for as long as it is ready."""
    group.create_task(balancer.follow(one.port, one.admin_port, every_seconds=0.05, lag_seconds=LAG_SECONDS))
    await balancer.until(one.port)


async def test_none_is_cut_and_none_refused() -> None:
    """Every stream is whole and every request served, however far its process is on its way out."""
    stub = Stub(page=exposition(0.1, blocks=100_000), answer=answer_slowly)
    async with (
        running_stub(stub),
        replicas(stub, 4) as (*old, first, second),
        balancing() as balancer,
        asyncio.TaskGroup() as group,
    ):
        for one in old:
            await join(group, balancer, one)
        async with asking(balancer.port) as clients:
            for leaving, coming in zip(old, (first, second), strict=True):
                await join(group, balancer, coming)
                leaving.send(signal.SIGTERM)
                assert await leaving.ended() == 0
        for one in (first, second):
            one.send(signal.SIGINT)
        assert clients.faults == []
        assert clients.streams > STREAMS
        assert clients.answers > KEPT_CONNECTIONS
        for left in old:
            assert (await left.told("draining"))["in_flight"] > 0
            assert (await left.told("drained"))["cut"] == 0
            assert (await left.told("stopped"))["reservations"] == 0
        sent = [json.loads(hit.body)["max_tokens"] for hit in stub.hits]
        assert len(sent) == clients.streams + clients.answers
