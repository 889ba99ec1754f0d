"""Prompts that begin alike, in the ledger and in a real vLLM: a shared block is one in both, from the first token."""

import json
from dataclasses import dataclass
from functools import partial

import anyio
import pytest

from tests.vllm.server import MODEL_NAME, VllmServer, parse_metrics
from tests.vllm.test_proxy import Guarded, guarded

pytestmark = pytest.mark.anyio

# Ids of three digits, which fill a sixth stride of 1 KiB; of 32 tokens a block. A few of its own follow in each prompt.
COMMON = [100 + 7 * number % 800 for number in range(1230)]
COMMON_BLOCKS = len(COMMON) // 32
OWN_TOKENS = 20
JSON = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Blocks at one moment while all streams generate: the ledger's before and after, the gauge's in between."""

    before: int
    gauge: int
    after: int
    shared: int


async def stream(guard: Guarded, number: int, salt: str, started: set[int]) -> None:
    """One request until its end; `started` are those whose third token has come."""
    own = [900 - OWN_TOKENS * number - place for place in range(OWN_TOKENS)]
    fields = {"max_tokens": 200, "ignore_eos": True, "stream": True, "cache_salt": salt}
    body, events = json.dumps({"model": MODEL_NAME, "prompt": COMMON + own, **fields}), 0
    async with guard.client.stream("POST", "/v1/completions", content=body, headers=JSON) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            events += line.startswith("data: {")
            if events == 3:
                started.add(number)


async def watch(guard: Guarded, started: set[int], streams: int, seen: list[Seen]) -> None:
    """Compare for as long as all of them generate."""
    ledger, occupancy = guard.backend.ledger, guard.backend.occupancy
    while ledger.live or len(started) < streams:
        before = ledger.held_blocks
        page = parse_metrics((await guard.client.get(f"{guard.engine.url}/metrics")).text)
        if len(started) == ledger.live == streams and page["vllm:num_requests_running"] == streams:
            assert occupancy.capacity is not None
            gauge = round(page["vllm:kv_cache_usage_perc"] * occupancy.capacity.blocks)
            seen.append(Seen(before=before, gauge=gauge, after=ledger.held_blocks, shared=ledger.shared_blocks))
        await anyio.sleep(0.01)


@pytest.mark.parametrize(
    ("salts", "shared"), [("aaaa", COMMON_BLOCKS), ("ab", 0), ("aab", COMMON_BLOCKS)], ids=["one", "two", "mixed"]
)
async def test_the_ledger_holds_what_the_gauge_shows(idle_vllm: VllmServer, salts: str, shared: int) -> None:
    """The ledger's own sum, without any correction by the gauge: with one salt the common blocks once, else apart."""
    seen: list[Seen] = []
    started: set[int] = set()
    async with guarded(idle_vllm) as guard:
        assert guard.backend.occupancy.shares_prefixes
        async with anyio.create_task_group() as tasks:
            for number, salt in enumerate(salts):
                tasks.start_soon(partial(stream, guard, number, salt, started))
            tasks.start_soon(watch, guard, started, len(salts), seen)
        assert (guard.backend.ledger.held_blocks, guard.backend.ledger.violations) == (0, 0)
    assert len(seen) > 5
    for each in seen:
        assert each.shared == shared
        # A stream may lag a token behind the gauge, and with it a block.
        assert each.before - len(salts) <= each.gauge <= each.after + len(salts)
