"""The condition of the real vLLM: frozen, asleep, paused, and busy with a prompt of many steps."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from kvguard.admission.condition import EngineState
from tests.vllm.server import VllmServer
from tests.vllm.test_proxy import Guarded, guarded

pytestmark = pytest.mark.anyio

SIGNALS = {"stall_seconds": 2, "probe_seconds": 60}


def engine_core(server: VllmServer) -> int:
    """The process that runs the engine: the one of the server's group that calls itself so."""
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            with contextlib.suppress(OSError):
                in_group = os.getpgid(int(directory.name)) == server._process.pid
                if in_group and b"EngineCore" in (directory / "cmdline").read_bytes():
                    return int(directory.name)
    raise AssertionError("no engine core")


@contextlib.contextmanager
def frozen(server: VllmServer) -> Iterator[None]:
    """The engine stands still, while its API server answers as ever."""
    process = engine_core(server)
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


@contextlib.asynccontextmanager
async def streaming(guard: Guarded, tokens: int) -> AsyncIterator[asyncio.Task[httpx.Response]]:
    """A long stream under way, read to its end by a task."""
    body = {"model": "tiny", "prompt": [1] * 16, "max_tokens": tokens, "ignore_eos": True, "stream": True}
    task = asyncio.ensure_future(guard.client.post("/v1/completions", json=body))
    try:
        yield task
    finally:
        task.cancel()


def state(guard: Guarded) -> EngineState:
    return guard.backend.watch.condition.state


async def short(guard: Guarded) -> httpx.Response:
    return await guard.client.post("/v1/completions", json={"model": "tiny", "prompt": [1] * 16, "max_tokens": 2})


async def refused(guard: Guarded) -> bool:
    answer = await short(guard)
    return answer.status_code == 503 and answer.json()["error"]["code"] == "backend_stalled"


@pytest.mark.parametrize("busy_before", [True, False])
async def test_a_frozen_engine_is_found_out_and_forgiven(
    idle_vllm: VllmServer, vllm_client: httpx.AsyncClient, busy_before: bool
) -> None:
    """In the middle of a stream, or before it ever said that it had work; it recovers with its first token."""
    async with guarded(idle_vllm, signals=SIGNALS) as guard:
        assert (await short(guard)).status_code == 200
        with contextlib.ExitStack() as stack:
            if not busy_before:
                stack.enter_context(frozen(idle_vllm))
            async with streaming(guard, 600) as stream:
                if busy_before:
                    await guard.until(lambda: any(r.produced > 5 for r in guard.backend.ledger._live.values()))
                    stack.enter_context(frozen(idle_vllm))
                assert (await vllm_client.get("/metrics")).status_code == 200
                await guard.until(lambda: state(guard) is EngineState.STALLED)
                assert await refused(guard)
                stack.close()
                await guard.until(lambda: state(guard) is EngineState.WORKING)
                assert (await short(guard)).status_code == 200
                assert (await stream).status_code == 200


async def test_a_sleeping_engine_says_so(idle_vllm: VllmServer, vllm_client: httpx.AsyncClient) -> None:
    """From the next scrape on, and no longer than it sleeps."""
    async with guarded(idle_vllm, signals=SIGNALS) as guard:
        await guard.until(lambda: state(guard) is EngineState.IDLE)
        (await vllm_client.post("/sleep", params={"level": 0})).raise_for_status()
        try:
            await guard.until(lambda: state(guard) is EngineState.SLEEPING)
            assert await refused(guard)
        finally:
            (await vllm_client.post("/wake_up")).raise_for_status()
        await guard.until(lambda: state(guard) is EngineState.IDLE)
        assert (await short(guard)).status_code == 200


async def test_a_paused_engine_is_stalled_once_somebody_waits_there(
    idle_vllm: VllmServer, vllm_client: httpx.AsyncClient
) -> None:
    """Requests are taken and not begun, and the counters stand still."""
    async with guarded(idle_vllm, signals=SIGNALS) as guard:
        (await vllm_client.post("/pause")).raise_for_status()
        try:
            async with streaming(guard, 2) as stream:
                await guard.until(lambda: state(guard) is EngineState.STALLED)
                assert await refused(guard)
                (await vllm_client.post("/resume")).raise_for_status()
                assert (await stream).status_code == 200
                await guard.until(lambda: not state(guard).alarming)
        finally:
            await vllm_client.post("/resume")
