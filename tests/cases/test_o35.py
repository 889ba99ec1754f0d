"""O-35: rollouts cut running answers."""

import asyncio
import json
import signal

import httpx
import pytest

from tests.kit.guard import COMPLETIONS
from tests.kit.process import process
from tests.kit.raw import raw_client
from tests.kit.stub import Stub, hold_stream, hold_until, running_stub

pytestmark = pytest.mark.anyio

STREAM = {"model": "tiny", "prompt": [1], "max_tokens": 8, "stream": True}


async def test_a_running_stream_is_finished_and_new_work_refused() -> None:
    """After SIGTERM the stream comes whole, a new request gets 503 on a connection that ends, the exit code is 0."""
    released = asyncio.Event()
    async with (
        running_stub(Stub(answer=hold_until(released))) as stub,
        process(stub.url, LISTEN__PRESTOP_SECONDS=0.05) as guard,
        httpx.AsyncClient(trust_env=False, timeout=60) as client,
    ):
        base = f"http://127.0.0.1:{guard.port}"
        await guard.told("ready")
        running = asyncio.ensure_future(client.post(base + COMPLETIONS, json=STREAM))
        await stub.until(lambda: len(stub.hits) == 1)
        guard.send(signal.SIGTERM)
        assert (await guard.told("stopping"))["in_flight"] == 1
        assert (await guard.told("draining"))["in_flight"] == 1
        ready = await client.get(f"http://127.0.0.1:{guard.admin_port}/readyz")
        assert (ready.status_code, ready.json()["status"]) == (503, "draining")
        refused = await client.post(base + COMPLETIONS, json=STREAM)
        assert (refused.status_code, refused.headers["connection"]) == (503, "close")
        assert refused.headers["x-kvguard-reason"] == "draining"
        released.set()
        answer = await running
        assert (answer.status_code, answer.text.endswith("data: [DONE]\n\n")) == (200, True)
        assert await guard.ended() == 0
        assert (await guard.told("drained"))["cut"] == 0


@pytest.mark.parametrize("second", [None, signal.SIGTERM, signal.SIGINT])
async def test_an_endless_stream_ends_with_an_error_event(second: signal.Signals | None) -> None:
    """At the drain limit, or with a second signal before it, the process says so in the stream and exits with 0."""
    seconds = 0.2 if second is None else 3600
    async with (
        running_stub(Stub(answer=hold_stream)) as stub,
        process(stub.url, LISTEN__PRESTOP_SECONDS=0, LISTEN__DRAIN_SECONDS=seconds) as guard,
        raw_client(guard.port, deadline_seconds=60) as client,
    ):
        await guard.told("ready")
        await client.request(COMPLETIONS, STREAM)
        assert (await client.head()).status == 200
        assert b"text" in await client.chunk()
        guard.send(signal.SIGTERM)
        await guard.told("draining")
        if second is not None:
            guard.send(second)
        last = await client.chunk()
        assert json.loads(last.split(b"data: ")[1])["error"]["code"] == "draining"
        assert await client.chunk() == b""
        assert await guard.ended() == 0
        assert (await guard.told("drained"))["cut"] == 1
        assert (await guard.told("stopped"))["reservations"] == 0


async def test_an_interrupt_waits_for_no_load_balancer() -> None:
    """Ctrl-C on an idle process ends it although the wait before the drain is an hour."""
    async with running_stub() as stub, process(stub.url, LISTEN__PRESTOP_SECONDS=3600) as guard:
        await guard.told("ready")
        guard.send(signal.SIGINT)
        assert await guard.ended() == 0
        assert "stopping" not in {line["event"] for line in guard.lines}
