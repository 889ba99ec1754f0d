"""kvguard in front of the real vLLM: what it predicts is what the engine does, and the three tiers bite."""

import asyncio
import contextlib
import io
import json
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from kvguard.admission.blocks import blocks_for
from kvguard.admission.tiers import Tier
from kvguard.bootstrap import Service, running
from kvguard.clock import SystemClock
from kvguard.pool.backend import Backend
from kvguard.settings import Settings
from kvguard.telemetry.log import configure_logging
from tests.vllm.server import VllmServer

pytestmark = pytest.mark.anyio
BLOCK = 32
USABLE = 127
MODEL = "tiny"


@dataclass
class Guarded:
    """A kvguard in front of the engine, in real time."""

    service: Service
    engine: VllmServer
    client: httpx.AsyncClient
    log_stream: io.StringIO

    @property
    def backend(self) -> Backend:
        return self.service.controller.backends[0]

    @property
    def logs(self) -> list[dict]:
        return [json.loads(line) for line in self.log_stream.getvalue().splitlines()]

    def decision(self, answer: httpx.Response) -> dict:
        """The log line of the decision on this answer's request."""
        request_id = answer.headers["x-kvguard-request-id"]
        return next(line for line in self.logs if line["event"] == "decision" and line["request_id"] == request_id)

    async def engine_blocks(self) -> int:
        """Blocks in use as the engine's own gauge says now."""
        text = (await self.client.get(f"{self.engine.url}/metrics")).text
        line = next(line for line in text.splitlines() if line.startswith("vllm:kv_cache_usage_perc{"))
        return round(float(line.rpartition(" ")[2]) * USABLE)

    async def until(self, holds: Callable[[], bool], *, seconds: float = 30.0) -> None:
        """Wait for something only the passing of real time brings about, looking after every scrape."""
        async with asyncio.timeout(seconds):
            while not holds():
                await self.client.get(f"http://127.0.0.1:{self.service.admin_port}/healthz")


@contextlib.asynccontextmanager
async def guarded(
    engine: VllmServer, *others: VllmServer, backend: dict[str, object] | None = None, **sections: object
) -> AsyncIterator[Guarded]:
    log_stream = io.StringIO()
    more = [{"url": other.url, "name": f"vllm{number}"} for number, other in enumerate(others, start=2)]
    settings = Settings(
        backends=[{"url": engine.url, "name": "vllm", **(backend or {})}, *more],
        listen={"host": "127.0.0.1", "port": 0, "admin_port": 0, "drain_seconds": 1},
        telemetry={"interval_seconds": 0.1},
        **sections,
    )
    logger = configure_logging("debug", log_stream)
    async with (
        running(settings, clock=SystemClock(), rng=random.Random(1), logger=logger) as service,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{service.port}", timeout=60, trust_env=False) as client,
    ):
        await service.members.ready.wait()
        yield Guarded(service, engine, client, log_stream)


def varied_requests() -> list[tuple[str, dict]]:
    """Thirty requests of every kind of text, half completions and half chat."""
    texts = [
        "Hello",
        "The quick brown fox jumps over the lazy dog.",
        "naïve café, Größe, Ærø, œuvre",
        "日本語のテキストを数える",
        "Привет, мир! Как дела?",
        "مرحبا بالعالم",
        "🎉👩‍👩‍👧‍👦🏳️‍🌈",
        "def f(x):\n    return {'a': [x ** 2 for _ in range(10)]}\n",
        "SELECT * FROM t WHERE a <> 'b' AND c >= 1.5e-3;",
        '<html><body class="x">&nbsp;</body></html>',
        "   leading and   inner    spaces\t\ttabs\r\n\r\n",
        "a" * 500,
        "0123456789 " * 40,
        "lorem ipsum dolor sit amet " * 60,
        "\x00\x01 control \x7f",
    ]
    completions = [("/v1/completions", {"prompt": text}) for text in texts]
    chats: list[tuple[str, dict]] = []
    for number, text in enumerate(texts):
        messages = [{"role": "user", "content": text}]
        if number % 3 == 1:
            messages = [{"role": "system", "content": "Be brief."}, *messages]
        if number % 3 == 2:
            messages += [{"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "Go on."}]
        chats.append(("/v1/chat/completions", {"messages": messages}))
    return completions + chats


@pytest.mark.parametrize("source", ["engine", "local"])
async def test_counted_tokens_are_the_engines_usage(vllm_server: VllmServer, vllm_model: Path, source: str) -> None:
    """For thirty varied requests the count equals usage.prompt_tokens, whoever counts."""
    tokens = {"tokenizer": vllm_model} if source == "local" else {}
    async with guarded(vllm_server, tokens=tokens) as guard:
        for path, body in varied_requests():
            answer = await guard.client.post(path, json={"model": MODEL, "max_tokens": 2, **body})
            assert answer.status_code == 200, answer.text
            assert guard.decision(answer)["prompt_tokens"] == answer.json()["usage"]["prompt_tokens"], body
        counts = guard.service.registry.get_sample_value("kvguard_token_counts_total", {"source": source})
        exact = guard.service.registry.get_sample_value(
            "kvguard_prompt_error_tokens_bucket", {"le": "0.0", "source": source}
        )
        assert counts == exact == 30


# Prompt and output tokens: within a block, at, below and above every kind of boundary, short and long. The last block
# is entered some tokens before the end, because the gauge never shows the last step: its blocks are free by then.
SHAPES = [
    (1, 40),
    (16, 48),
    (31, 40),
    (32, 40),
    (33, 40),
    (64, 65),
    (100, 61),
    (255, 34),
    (256, 64),
    (511, 50),
    (1000, 98),
    (1500, 60),
]


async def test_predicted_blocks_are_the_engines(vllm_server: VllmServer) -> None:
    """For twelve shapes the gauge at its highest shows the blocks predicted; a reservation has one more at a boundary.

    The last token of an answer never gets KV, so an answer that ends one token into a block never takes that block.
    """
    async with guarded(vllm_server) as guard:
        for prompt, output in SHAPES:
            body = {"model": MODEL, "prompt": [7 + (prompt + i) % 900 for i in range(prompt)], "max_tokens": output}
            highest = 0
            async with guard.client.stream(
                "POST", "/v1/completions", json={**body, "stream": True, "ignore_eos": True}
            ) as answer:
                async for _ in answer.aiter_lines():
                    highest = max(highest, await guard.engine_blocks())
            predicted = guard.decision(answer)["predicted_blocks"]
            exact = blocks_for(prompt + output - 1, BLOCK)
            assert highest == exact, (prompt, output)
            assert predicted - exact == ((prompt + output) % BLOCK == 1), (prompt, output)


async def hold(guard: Guarded, prompt: int, output: int, seed: int) -> "asyncio.Task[int]":
    """A stream that runs for a while: it is admitted when this returns."""
    ids = [7 + (seed * 131 + i * 7) % 900 for i in range(prompt)]
    body = {"model": MODEL, "prompt": ids, "max_tokens": output, "stream": True, "ignore_eos": True}
    admitted = asyncio.get_running_loop().create_future()

    async def run() -> int:
        async with guard.client.stream("POST", "/v1/completions", json=body) as answer:
            admitted.set_result(answer.status_code)
            async for _ in answer.aiter_raw():
                pass
            return answer.status_code

    task = asyncio.ensure_future(run())
    assert await admitted == 200
    return task


async def test_the_tiers_bite_under_rising_load_and_let_go(idle_vllm: VllmServer) -> None:
    """TRIM lowers the cap vLLM receives, RESTRICT gives one sequence, REJECT gives 503; then all is as before."""
    async with guarded(idle_vllm) as guard:

        async def caps_received() -> float:
            return idle_vllm.metrics()["vllm:request_params_max_tokens_sum"]

        held = [await hold(guard, 928, 90, seed) for seed in range(3)]
        before = await caps_received()
        trimmed = await guard.client.post(
            "/v1/completions", json={"model": MODEL, "prompt": [9] * 64, "max_tokens": 1024}
        )
        assert trimmed.status_code == 200
        assert trimmed.headers["x-kvguard-tier"] == "1"
        assert trimmed.headers["x-kvguard-degraded"] == "max_tokens=1024->512"
        assert trimmed.json()["usage"]["completion_tokens"] <= 512
        await asyncio.gather(*held)
        assert await caps_received() - before == 512 + 3 * 90
        await guard.until(lambda: guard.backend.occupancy.idle(0.0) and guard.backend.tier.tier is Tier.NORMAL)

        held = [await hold(guard, 928, 90, seed) for seed in range(3, 6)]
        held.append(await hold(guard, 640, 30, 6))
        beams = {"model": MODEL, "prompt": [9] * 16, "max_tokens": 16, "use_beam_search": True, "n": 4}
        restricted, refused = await asyncio.gather(
            guard.client.post("/v1/completions", json={**beams, "temperature": 0}),
            guard.client.post("/v1/completions", json={"model": MODEL, "prompt": [9] * 700, "max_tokens": 8}),
        )
        assert restricted.status_code == 200, restricted.text
        assert restricted.headers["x-kvguard-tier"] == "2"
        assert restricted.headers["x-kvguard-degraded"] == "use_beam_search=true->false;n=4->1"
        assert len(restricted.json()["choices"]) == 1
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "saturated"
        assert int(refused.headers["retry-after"]) >= 1
        await asyncio.gather(*held)

        await guard.until(lambda: guard.backend.tier.tier is Tier.NORMAL)
        assert (guard.backend.ledger.held_blocks, guard.backend.ledger.live) == (0, 0)
        assert guard.backend.ledger.violations == 0
        untouched = await guard.client.post("/v1/completions", json={"model": MODEL, "prompt": "x", "max_tokens": 600})
        assert "x-kvguard-degraded" not in untouched.headers


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_blocks_within_a_second(vllm_server: VllmServer, stream: bool) -> None:
    """vLLM's gauge is back at 0 a second after the client closed its connection."""
    async with guarded(vllm_server) as guard:
        body = {"model": MODEL, "prompt": [7] * 1000, "max_tokens": 900, "stream": stream, "ignore_eos": True}
        asking = asyncio.ensure_future(guard.client.post("/v1/completions", json=body))
        async with asyncio.timeout(30):
            while await guard.engine_blocks() < 32:
                pass
        asking.cancel()
        async with asyncio.timeout(1):
            while await guard.engine_blocks() > 0:
                pass
        await guard.until(lambda: guard.backend.ledger.live == 0, seconds=1)
        assert guard.logs[-1]["end"] == "cancelled"
