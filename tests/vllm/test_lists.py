"""The routes beside completions and chat, on the real engine: what was counted is what it says it used."""

import json

import httpx
import pytest

from kvguard.admission.population import ANYBODY
from tests.vllm.server import VllmServer
from tests.vllm.test_proxy import MODEL, guarded

pytestmark = pytest.mark.anyio

CONVERSATIONS = [
    [{"role": "user", "content": "hello there"}],
    [{"role": "system", "content": "be brief"}, {"role": "user", "content": "one, two, three"}],
    [{"role": "user", "content": "x " * 50}],
]
ROUTES = [
    ("/v1/chat/completions/batch", {"messages": CONVERSATIONS, "max_tokens": 4, "ignore_eos": True}, 12),
    ("/v1/chat/completions/batch", {"messages": CONVERSATIONS[:1], "max_tokens": 9, "min_tokens": 9}, 9),
    (
        "/v1/chat/completions/batch",
        {"messages": CONVERSATIONS, "max_tokens": 4, "ignore_eos": True, "truncate_prompt_tokens": 5},
        12,
    ),
    ("/inference/v1/generate", {"token_ids": [7] * 33, "sampling_params": {"max_tokens": 5, "ignore_eos": True}}, 5),
    (
        "/inference/v1/generate",
        {"token_ids": [7] * 33, "sampling_params": {"max_tokens": 5, "min_tokens": 5, "n": 3}, "max_tokens": 2},
        15,
    ),
]
SCORES = [
    ({"query": [1, 2, 3], "items": [[4], [5, 6]], "label_token_ids": [1]}, 2),
    ({"query": [1] * 2000, "items": [[4] * 100], "label_token_ids": [1]}, 1),
]


@pytest.fixture(scope="module")
def scoring_vllm(vllm_server: VllmServer) -> VllmServer:
    """The server after its first scores, for which it compiles a minute long."""
    for body, _ in SCORES:
        url = f"{vllm_server.url}/generative_scoring"
        httpx.post(url, json={"model": MODEL, **body}, timeout=240).raise_for_status()
    return vllm_server


@pytest.mark.parametrize(("route", "body", "generated"), ROUTES)
async def test_what_is_counted_is_what_the_engine_uses(
    idle_vllm: VllmServer, route: str, body: dict[str, object], generated: int
) -> None:
    """Prompt tokens to the token, and as many generated as the fields say, wherever they stand."""
    async with guarded(idle_vllm) as guard:
        answer = await guard.client.post(route, json={"model": MODEL, **body})
        assert answer.status_code == 200, answer.text
        usage = answer.json()["usage"]
        assert guard.decision(answer)["prompt_tokens"] == usage["prompt_tokens"]
        assert usage["completion_tokens"] == generated
        assert guard.backend.ledger.live == 0


@pytest.mark.parametrize(("body", "generated"), SCORES)
async def test_scores_are_counted_as_they_are_cut(
    scoring_vllm: VllmServer, body: dict[str, object], generated: int
) -> None:
    """One token for each item, and no prompt longer than the context has room for."""
    async with guarded(scoring_vllm) as guard:
        answer = await guard.client.post("/generative_scoring", json={"model": MODEL, **body})
        assert answer.status_code == 200, answer.text
        usage = answer.json()["usage"]
        assert guard.decision(answer)["prompt_tokens"] == usage["prompt_tokens"]
        assert usage["completion_tokens"] == generated


async def test_a_batch_asked_to_stream_answers_in_one_piece_and_counts_its_last_step(idle_vllm: VllmServer) -> None:
    """So its usage is no length, and nothing is learned from it."""
    body = {"model": MODEL, "messages": CONVERSATIONS, "max_tokens": 6, "ignore_eos": True, "stream": True}
    async with guarded(idle_vllm, forecast={"min_answers": 1}) as guard:
        answer = await guard.client.post("/v1/chat/completions/batch", json=body)
        assert answer.headers["content-type"] == "application/json"
        assert answer.json()["usage"]["completion_tokens"] < 3 * 6
        assert guard.backend.occupancy.lengths.learned(ANYBODY, cap=6, produced=0) is None


@pytest.mark.parametrize("asks", [False, True])
async def test_token_ids_are_streamed_like_completions(idle_vllm: VllmServer, asks: bool) -> None:
    """An event a token, the end that is looked for, and the usage only for who asked for it."""
    params = {"max_tokens": 5, "ignore_eos": True}
    body = {"model": MODEL, "token_ids": [7] * 33, "sampling_params": params, "stream": True}
    options = {"stream_options": {"include_usage": True}} if asks else {}
    async with guarded(idle_vllm) as guard:
        answer = await guard.client.post("/inference/v1/generate", json={**body, **options})
        events = [line[5:].strip() for line in answer.text.split("\n") if line.startswith("data:")]
        assert events.pop() == "[DONE]"
        chunks = [json.loads(event) for event in events]
        assert [len(choice["token_ids"]) for chunk in chunks for choice in chunk["choices"]] == [1] * 5
        assert [bool(chunk["choices"]) for chunk in chunks] == [True] * 5 + [False] * asks
        value = guard.service.registry.get_sample_value
        assert value("kvguard_tokens_total", {"kind": "generated"}) == 5
        assert value("kvguard_prompt_error_tokens_bucket", {"le": "0.0", "source": "ids"}) == 1


@pytest.mark.parametrize(
    "body",
    [
        {"messages": CONVERSATIONS, "n": 2},
        {"messages": CONVERSATIONS, "use_beam_search": True},
        {"messages": CONVERSATIONS[0]},
        {"messages": [CONVERSATIONS[0], []]},
    ],
)
async def test_what_is_refused_the_engine_refuses(idle_vllm: VllmServer, body: dict[str, object]) -> None:
    """A batch with several answers, beams, or no conversations."""
    async with guarded(idle_vllm) as guard, httpx.AsyncClient(base_url=idle_vllm.url) as engine:
        for client in (guard.client, engine):
            answer = await client.post("/v1/chat/completions/batch", json={"model": MODEL, "max_tokens": 1, **body})
            assert answer.status_code == 400
