"""Real clients, unmodified, through a real kvguard in front of the real vLLM: they get what vLLM gives."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.vllm.client_scripts import Told, clients_python, run_client
from tests.vllm.hop import recording_hop
from tests.vllm.kvguard_process import KvguardProcess, kvguard_process
from tests.vllm.server import VllmServer

pytestmark = pytest.mark.anyio

# What each client has to tell of, so that a call that is left out is missed.
CALLS = {
    "openai_sdk": {
        "chat",
        "chat streamed",
        "chat streamed with usage",
        "chat with a tool",
        "chat with a tool streamed",
        "completion",
        "completion streamed",
        "completion streamed with usage",
        "response",
        "response streamed",
    },
    "anthropic_sdk": {"message", "message streamed", "message with a tool", "message with a tool streamed", "count"},
    "litellm_sdk": {"chat", "chat streamed", "chat streamed with usage"},
    "langchain_chat": {"chat", "chat streamed"},
    "curl": {"chat", "chat streamed", "chat with retries"},
    "bench_serve": {"completions", "chat"},
    "locust": {f"chat {number}" for number in range(6)},
}


@pytest.fixture(scope="module")
def kvguard(vllm_server: VllmServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KvguardProcess]:
    if not clients_python().exists():
        pytest.fail("no clients here: run `make test-vllm`", pytrace=False)
    with kvguard_process(vllm_server.url, tmp_path_factory.mktemp("kvguard") / "kvguard.log") as running:
        yield running


async def fresh(engine: VllmServer) -> None:
    """Empty the prefix cache: what was computed in other parts may come out differently in its last bits."""
    async with httpx.AsyncClient(base_url=engine.url) as client, asyncio.timeout(30):
        while not (await client.post("/reset_prefix_cache")).raise_for_status().json()["success"]:
            pass


def says_something(outcome: dict) -> bool:
    """Whether the call was answered, with text or a tool call."""
    return "error" not in outcome and any(outcome.get(name) for name in ("content", "tools", "tokens"))


def counted(kvguard: KvguardProcess, bucket: str) -> dict[str, float]:
    """Prompts kvguard has compared with the engine's usage so far, by who counted them."""
    pattern = rf'^kvguard_prompt_error_tokens_{bucket}source="(\w+)"\}} (\S+)$'
    return {source: float(count) for source, count in re.findall(pattern, kvguard.metrics_text(), re.MULTILINE)}


@pytest.mark.parametrize("client", CALLS)
async def test_a_client_gets_through_kvguard_what_the_engine_gives(
    client: str, vllm_server: VllmServer, kvguard: KvguardProcess, vllm_model: Path, tmp_path: Path
) -> None:
    """Content, finish reason, usage and tool calls are those of the same calls made to vLLM.

    Tools included, every prompt was counted to the token before it was sent.
    """

    async def run(port: int) -> Told:
        await fresh(vllm_server)
        async with recording_hop(port) as hop:
            try:
                return await run_client(client, hop.url, model=vllm_model)
            finally:
                transcript = f"{client} to port {port}\n{hop.transcript()}\n"
                (tmp_path / f"{port}.txt").write_text(transcript)
                print(transcript)

    direct = await run(vllm_server.port)
    through = await run(kvguard.port)
    print(through.text)
    assert set(direct.outcomes) == CALLS[client]
    assert all(map(says_something, direct.outcomes.values())), direct.text
    assert through.outcomes == direct.outcomes
    assert counted(kvguard, "count{") == counted(kvguard, 'bucket{le="0.0",')
    assert sum(counted(kvguard, "count{").values()) > 0
