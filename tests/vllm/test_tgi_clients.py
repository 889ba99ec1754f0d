"""Hugging Face's clients, unmodified, through a real kvguard in front of the TGI twin, streaming and not."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.vllm.client_scripts import Told, clients_python, legacy_python, run_client
from tests.vllm.kvguard_process import KvguardProcess, kvguard_process

pytestmark = pytest.mark.anyio

TWIN = "sim+tgi://?max_batch_total_tokens=9000&step_base_seconds=0.001&max_total_tokens=4096"
CLIENTS = {
    "inference_client": {
        "generate",
        "generate plain",
        "generate streamed",
        "generate much",
        "chat",
        "chat streamed",
    },
    "text_generation_client": {"generate", "best of two", "generate streamed", "chat"},
}


@pytest.fixture(scope="module")
def kvguard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KvguardProcess]:
    if not (clients_python().exists() and legacy_python().exists()):
        pytest.fail("no clients here: run `make test-vllm`", pytrace=False)
    with kvguard_process(TWIN, tmp_path_factory.mktemp("kvguard") / "kvguard.log") as running:
        yield running


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_client_gets_its_answers(client: str, kvguard: KvguardProcess) -> None:
    """Every call is answered with text, none says that it failed, and the ledger is empty afterwards."""
    told: Told = await run_client(client, kvguard.url, *sorted(CLIENTS[client]))
    assert told.outcomes.keys() == CLIENTS[client]
    assert [outcome for outcome in told.outcomes.values() if "error" in outcome or not outcome["content"]] == []
    short = [outcome for name, outcome in told.outcomes.items() if name != "generate much"]
    assert all(1 <= outcome.get("tokens", 1) <= 13 for outcome in short), told.text
    assert 'kvguard_ledger_blocks{backend="sim"} 0.0' in kvguard.metrics_text()


async def test_a_stream_that_is_refused_says_so(kvguard: KvguardProcess) -> None:
    """TGI answers 200 to an invalid stream; its client learns that it was invalid, as without a stream."""
    calls = ("generate invalid", "generate invalid streamed")
    told = await run_client("inference_client", kvguard.url, *calls)
    for call in calls:
        assert "max_new_tokens" in told.outcomes[call]["text"], told.text


async def test_a_full_engine_is_one_that_the_client_knows_as_overloaded(tmp_path: Path) -> None:
    """kvguard's own refusal has the type by which TGI's client tells overload, streamed or not."""
    config = tmp_path / "k.yaml"
    config.write_text("tiers: {trim_at: 0.1, restrict_at: 0.15, reject_at: 0.2}\n")
    with kvguard_process(f"{TWIN}&step_base_seconds=0.02", tmp_path / "kvguard.log", config=config) as guard:
        body = {"inputs": "Once upon a time " * 400, "parameters": {"max_new_tokens": 1000}}
        holding = httpx.AsyncClient(timeout=60)
        async with holding as holder, holder.stream("POST", f"{guard.url}/generate_stream", json=body) as held:
            assert held.status_code == 200
            calls = ("generate", "generate streamed")
            told = await run_client("text_generation_client", guard.url, *calls)
    assert [told.outcomes[call]["error"] for call in calls] == ["OverloadedError"] * 2, told.text
