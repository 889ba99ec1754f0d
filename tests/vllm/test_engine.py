"""What kvguard assumes of vLLM's paged KV cache, read off a real one."""

import json
import math
from dataclasses import dataclass, replace

import anyio
import httpx
import pytest

from tests.vllm.server import MODEL_NAME, VllmServer, parse_metrics

pytestmark = pytest.mark.anyio

NUM_BLOCKS = 128
BLOCK_TOKENS = 32
USABLE_BLOCKS = NUM_BLOCKS - 1  # vLLM keeps one block as its null block, and the gauge does not count it
PROMPT_TOKENS = 100
USAGE = "vllm:kv_cache_usage_perc"
GENERATED = "vllm:generation_tokens_total"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """Two numbers the engine sets together: blocks in use now, tokens produced since it started."""

    held_blocks: float
    generated_tokens: int


async def scrape(client: httpx.AsyncClient) -> Scrape:
    metrics = parse_metrics((await client.get("/metrics")).raise_for_status().text)
    return Scrape(held_blocks=metrics[USAGE] * USABLE_BLOCKS, generated_tokens=int(metrics[GENERATED]))


async def stream_completion(client: httpx.AsyncClient, *, produced_tokens: int) -> dict[str, int]:
    """Read one completion of exact lengths to its end; the usage its last chunk reports."""
    body = {
        "model": MODEL_NAME,
        "prompt": list(range(300, 300 + PROMPT_TOKENS)),
        "max_tokens": produced_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    usage: dict[str, int] = {}
    async with client.stream("POST", "/v1/completions", json=body) as response:
        async for line in response.raise_for_status().aiter_lines():
            if line.startswith("data: {"):
                usage = json.loads(line.removeprefix("data: ")).get("usage") or usage
    return usage


async def watched_completion(client: httpx.AsyncClient, *, produced_tokens: int) -> list[Scrape]:
    """Scrapes taken while one completion runs, each counting only the tokens that completion has produced so far."""
    before = (await scrape(client)).generated_tokens
    seen: list[Scrape] = []

    async def watch() -> None:
        while True:
            now = await scrape(client)
            seen.append(replace(now, generated_tokens=now.generated_tokens - before))
            await anyio.sleep(0.01)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        usage = await stream_completion(client, produced_tokens=produced_tokens)
        tasks.cancel_scope.cancel()
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (PROMPT_TOKENS, produced_tokens)
    return [each for each in seen if 0 < each.generated_tokens < produced_tokens]


def computed_blocks(*, produced_tokens: int) -> int:
    """Blocks of a sequence whose newest token has been produced but not yet computed on."""
    return math.ceil((PROMPT_TOKENS + produced_tokens - 1) / BLOCK_TOKENS)


def test_cache_config_shows_the_blocks_asked_for(vllm_server: VllmServer) -> None:
    """The capacity kvguard reads from the exposition is the one the engine was started with."""
    config = vllm_server.cache_config()
    assert (config["num_gpu_blocks"], config["block_size"]) == (str(NUM_BLOCKS), str(BLOCK_TOKENS))


# The last block is in use for some thirty tokens before each of these ends: no scrape interval here misses it.
@pytest.mark.parametrize(("produced_tokens", "blocks"), [(60, 5), (61, 5), (156, 8), (157, 8)])
async def test_a_request_ends_with_blocks_for_all_but_its_last_token(
    idle_vllm: VllmServer, vllm_client: httpx.AsyncClient, produced_tokens: int, blocks: int
) -> None:
    """The most a request ever holds is its prompt and output less one token, in whole blocks."""
    seen = await watched_completion(vllm_client, produced_tokens=produced_tokens)
    assert max(each.held_blocks for each in seen) == pytest.approx(blocks)
    assert blocks == computed_blocks(produced_tokens=produced_tokens)


async def test_a_request_grows_a_block_at_a_time(idle_vllm: VllmServer, vllm_client: httpx.AsyncClient) -> None:
    """Every scrape shows the blocks of the tokens produced by then: nothing is held ahead of need."""
    seen = await watched_completion(vllm_client, produced_tokens=300)
    assert len(seen) > 10
    assert [each.held_blocks for each in seen] == pytest.approx(
        [computed_blocks(produced_tokens=each.generated_tokens) for each in seen]
    )


async def test_an_ended_request_holds_nothing(idle_vllm: VllmServer, vllm_client: httpx.AsyncClient) -> None:
    """The gauge is back at zero once the request has ended, although its blocks stay in the prefix cache."""
    await stream_completion(vllm_client, produced_tokens=60)
    with anyio.fail_after(5):
        while (await scrape(vllm_client)).held_blocks > 0:  # noqa: ASYNC110 - nothing tells when a gauge moves
            await anyio.sleep(0.02)
