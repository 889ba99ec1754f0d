"""The processes of the bench: engines that start anew where a flag changes, and kvguard as a user runs it."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from bench.overload.gates import SaturationGate
from tests.vllm.server import ROOT, VllmServer, free_port, parse_metrics

RESULTS = ROOT / "bench" / "results"
POLL_SECONDS = 0.2
_RUNNING, _WAITING, _USAGE = "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"
_PLUGIN = ("--logits-processors", "forced_length:ForcedLength")
# The cache and its schedule are what is measured. Without a GPU four layers in bfloat16 take four times as long, and a
# slice of seconds then holds too few answers to tell arms apart.
_QUICK_STEPS = ("--dtype", "float32", "--hf-overrides", '{"num_hidden_layers": 1}')


def engine(model: Path, name: str, engine_cpus: frozenset[int], *flags: str) -> VllmServer:
    """A server with the bench's own end of answers."""
    log_path = RESULTS / f"{name}.log"
    return VllmServer(model, extra_args=(*_PLUGIN, *_QUICK_STEPS, *flags), engine_cpus=engine_cpus, log_path=log_path)


class LimitedEngine:
    """The engine with its own admission control, which takes its limit at start only."""

    def __init__(self, model: Path, engine_cpus: frozenset[int]) -> None:
        self._model = model
        self._engine_cpus = engine_cpus
        self._limit: int | None = None
        self._server: VllmServer | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.stop()

    def limited_to(self, limit: int) -> VllmServer:
        """The server under this limit, started anew where it was another."""
        if self._server is None or self._limit != limit:
            if self._server is not None:
                self._server.stop()
            flags = ("--max-num-queued-reqs", str(limit))
            self._server = engine(self._model, "vllm-queue-limit", self._engine_cpus, *flags)
            self._server.start()
            self._limit = limit
        return self._server


async def gauges(client: httpx.AsyncClient, url: str) -> dict[str, float]:
    """What the engine says of its queue and cache."""
    text = (await client.get(f"{url}/metrics")).text
    return parse_metrics("\n".join(line for line in text.splitlines() if line.startswith((_RUNNING, _WAITING, _USAGE))))


async def rest(url: str) -> None:
    """Wait until the engine has nothing left, then empty its prefix cache: the next arm sends the same prompts."""
    async with httpx.AsyncClient(timeout=30) as client:
        while True:
            seen = await gauges(client, url)
            if not seen[_RUNNING] and not seen[_WAITING]:
                break
            await asyncio.sleep(0.2)
        (await client.post(f"{url}/reset_prefix_cache")).raise_for_status()


@contextlib.asynccontextmanager
async def observed(gate: SaturationGate, url: str) -> AsyncIterator[None]:
    """Keep the gate's view of the engine's gauges up to date."""
    async with httpx.AsyncClient(timeout=30) as client:
        await _observe(gate, client, url)
        polling = asyncio.create_task(_observe_on(gate, client, url))
        try:
            yield
        finally:
            polling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await polling


async def _observe_on(gate: SaturationGate, client: httpx.AsyncClient, url: str) -> None:
    while True:
        await asyncio.sleep(POLL_SECONDS)
        await _observe(gate, client, url)


async def _observe(gate: SaturationGate, client: httpx.AsyncClient, url: str) -> None:
    seen = await gauges(client, url)
    gate.observe(waiting=seen[_WAITING], used_ratio=seen[_USAGE])


@contextlib.asynccontextmanager
async def kvguard(name: str, backend: str, config: Path | None, **settings: str) -> AsyncIterator[str]:
    """kvguard as a user runs it, with its default settings unless a file or variables of its environment say else."""
    port, admin = free_port(), free_port()
    command = [sys.executable, "-m", "kvguard", "serve", "--backend", backend, "--host", "127.0.0.1"]
    command += ["--port", str(port), "--admin-port", str(admin)]
    command += ["--config", str(config)] if config else []
    log_path = RESULTS / f"{name}.log"
    with log_path.open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, env={**os.environ, **settings})
        try:
            await _ready(process, f"http://127.0.0.1:{admin}/readyz", log_path)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()


async def _ready(process: "subprocess.Popen[bytes]", url: str, log_path: Path) -> None:
    async with httpx.AsyncClient() as client:
        while process.poll() is None:
            with contextlib.suppress(httpx.TransportError):
                if (await client.get(url)).status_code == 200:
                    return
            await asyncio.sleep(0.1)
    raise RuntimeError(f"kvguard exited while starting, see {log_path}")
