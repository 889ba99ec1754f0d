"""O-32: the HTTP client pool is the hidden limit."""

import asyncio
from collections.abc import Coroutine

import httpx
import pytest

from tests.kit.guard import COMPLETIONS, guarding
from tests.kit.stub import Call, Stub, answer_at_once, exposition, hold, hold_stream, running_stub

pytestmark = pytest.mark.anyio

ROOMY = exposition(0.1, blocks=100_000)


async def cancelled(tasks: set[asyncio.Task]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def first(count: int, tasks: list[asyncio.Task]) -> tuple[list[httpx.Response], set[asyncio.Task]]:
    """The first `count` answers, and the tasks that are still waiting for theirs."""
    pending, answers = set(tasks), []
    async with asyncio.timeout(3.0):
        while len(answers) < count:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            answers += [task.result() for task in done]
    return answers, pending


def started(work: Coroutine) -> asyncio.Task:
    return asyncio.ensure_future(work)


async def test_a_hundred_and_fifty_streams_run_at_once() -> None:
    """With the default settings 150 streams are open at the backend at the same time."""
    async with running_stub(Stub(answer=hold_stream, page=ROOMY)) as stub, guarding(stub) as guard:
        sent = {started(guard.complete([1] * 16, max_tokens=16, stream=True)) for _ in range(150)}
        await stub.until(lambda: len(stub.hits) == 150)
        assert stub.left == 0
        assert not any(task.done() for task in sent)
        assert guard.backend.ledger.live == 150
        await cancelled(sent)
        await stub.until(lambda: stub.left == 150)


async def test_an_exhausted_pool_is_an_explained_and_counted_503() -> None:
    """Of 20 requests over 10 connections that stay busy, 10 get 503 `queue_timeout` after the set wait, none a 500."""
    settings = {"max_connections": 10, "pool_wait_seconds": 0.1}
    async with running_stub(Stub(answer=hold, page=ROOMY)) as stub, guarding(stub, upstream=settings) as guard:
        sent = [started(guard.complete([1] * 16, max_tokens=16)) for _ in range(20)]
        answers, pending = await first(10, sent)
        for answer in answers:
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "queue_timeout"
            assert int(answer.headers["retry-after"]) >= 1
        assert len(stub.hits) == 10
        assert len(pending) == 10
        assert guard.backend.ledger.live == 10
        labels = {"route": COMPLETIONS, "outcome": "failed", "tier": "0", "mode": "enforce"}
        assert guard.metric("kvguard_requests_total", reason="queue_timeout", **labels) == 10
        await cancelled(pending)
        await stub.until(lambda: stub.left == 10)
    assert guard.backend.ledger.live == 0


async def test_with_patience_an_exhausted_pool_is_a_queue() -> None:
    """With a long wait set, the 10 requests that find no connection are served once the first 10 are done."""
    gate = asyncio.Event()

    async def answer_when_open(call: Call) -> None:
        await gate.wait()
        await answer_at_once(call)

    settings = {"max_connections": 10, "pool_wait_seconds": 60}
    async with (
        running_stub(Stub(answer=answer_when_open, page=ROOMY)) as stub,
        guarding(stub, upstream=settings) as guard,
    ):
        sent = [started(guard.complete([1] * 16, max_tokens=16)) for _ in range(20)]
        await stub.until(lambda: len(stub.hits) == 10)
        await guard.until(lambda: guard.backend.ledger.live == 20)
        assert len(stub.hits) == 10
        gate.set()
        assert [answer.status_code for answer in await asyncio.gather(*sent)] == [200] * 20
        assert len(stub.hits) == 20
