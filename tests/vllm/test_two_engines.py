"""Two real engines behind one kvguard, of which one is killed under load and started again."""

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from tests.vllm.engines import QUICK
from tests.vllm.server import VllmServer, last_cpu
from tests.vllm.test_proxy import Guarded, guarded

pytestmark = pytest.mark.anyio

CLIENTS = 8


@dataclass
class Load:
    """Clients that ask again as soon as they were answered, and what they saw: each answer by its phase and kind."""

    guard: Guarded
    phase: str = "both"
    seen: Counter[tuple[str, str]] = field(default_factory=Counter)
    stopping: bool = False

    async def client(self, number: int) -> None:
        rng = random.Random(number)
        while not self.stopping:
            phase = self.phase
            body = {
                "model": "tiny",
                "prompt": [number + 1] * rng.randint(16, 64),
                "max_tokens": rng.randint(16, 48),
                "ignore_eos": True,
                "stream": rng.random() < 0.5,
            }
            answer = await self.guard.client.post("/v1/completions", json=body)
            self.seen[phase, kind(answer, streamed=body["stream"])] += 1

    def count(self, phase: str, *kinds: str) -> int:
        return sum(number for (when, what), number in self.seen.items() if when == phase and what in kinds)


def kind(answer: httpx.Response, *, streamed: bool) -> str:
    """What a client makes of an answer."""
    if answer.status_code != 200:
        return f"{answer.status_code} {answer.json()['error']['code']}"
    if not streamed:
        return "whole"
    return "whole" if answer.text.rstrip().endswith("data: [DONE]") else "broken off"


async def test_one_is_killed_under_load_and_comes_back(
    vllm_server: VllmServer, vllm_model: Path, tmp_path: Path
) -> None:
    """Clients see no more failures than requests the killed engine had; the rest are served by the other, then by both
    again, and the ledgers are empty at the end.
    """
    other = VllmServer(
        vllm_model, num_blocks=128, extra_args=QUICK, engine_cpus=last_cpu(), log_path=tmp_path / "second.log"
    )
    with other:
        async with guarded(vllm_server, other) as guard:
            first, second = guard.service.controller.backends
            load = Load(guard)
            clients = [asyncio.ensure_future(load.client(number)) for number in range(CLIENTS)]
            await guard.until(lambda: load.count("both", "whole") >= 30 and second.ledger.live > 0)
            in_flight = second.ledger.live
            assert other._process is not None
            os.killpg(other._process.pid, signal.SIGKILL)
            load.phase = "one"
            await guard.until(lambda: load.count("one", "whole") >= 30)
            # Clients and kvguard go on while servers end and start.
            await asyncio.to_thread(other.stop)
            third = VllmServer(
                vllm_model,
                num_blocks=64 + 1,
                extra_args=QUICK,
                engine_cpus=last_cpu(),
                port=other.port,
                log_path=tmp_path / "third.log",
            )
            await asyncio.to_thread(third.start)
            try:
                await guard.until(back_on(second), seconds=60)
                load.phase = "again"
                await guard.until(lambda: load.count("again", "whole") >= 30 and second.ledger.live > 0)
                load.stopping = True
                await asyncio.wait(clients)
            finally:
                await asyncio.to_thread(third.stop)
    failures = {key: number for key, number in load.seen.items() if key[1] != "whole"}
    print(f"in flight on the killed engine: {in_flight}; seen by clients: {dict(load.seen)}")
    assert set(failures) <= {
        (phase, what) for phase in ("both", "one") for what in ("broken off", "502 backend_unreachable")
    }
    assert sum(failures.values()) <= CLIENTS
    assert [(each.ledger.live, each.ledger.held_blocks, each.ledger.violations) for each in (first, second)] == [
        (0, 0, 0)
    ] * 2
    assert second.occupancy.capacity.blocks == 64
    for task in clients:
        task.result()


def back_on(backend: object) -> Callable[[], bool]:
    """Whether the engine that came back, half as large, was found."""
    return lambda: backend.occupancy.capacity.blocks == 64
