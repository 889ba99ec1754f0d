"""The routes of pooling models, on the real engine with the same model made to embed."""

import httpx
import pytest

from tests.vllm.server import VllmServer
from tests.vllm.test_proxy import BLOCK, MODEL, guarded

pytestmark = pytest.mark.anyio

CONVERSATION = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "one, two, three"}]
LONG = "many words " * 3000


COUNTED = [
    {"input": "hello there"},
    {"input": ["hello", "there you are", "x" * 200]},
    {"input": ["hello", "there"], "add_special_tokens": False},
    {"input": [7] * 33},
    {"input": [[7] * 33, [8]]},
    {"input": ["1", "2"]},
    {"input": LONG, "truncate_prompt_tokens": -1},
    {"input": [LONG, "x"], "truncate_prompt_tokens": 40},
    {"messages": CONVERSATION},
    {"messages": CONVERSATION, "add_generation_prompt": True},
    {"messages": CONVERSATION, "add_special_tokens": True},
    {"messages": [CONVERSATION, CONVERSATION[1:]]},
    {"input": CONVERSATION},
    {"input": [CONVERSATION, CONVERSATION[1:]]},
]


@pytest.mark.parametrize("body", COUNTED, ids=lambda body: "+".join(body))
async def test_embeddings_are_counted_to_the_token(pooling_server: VllmServer, body: dict[str, object]) -> None:
    """Text, ids and conversations, cut or whole, one or several, by what the engine says it used."""
    async with guarded(pooling_server, tokens={"engine_max_bytes": 100_000}) as guard:
        answer = await guard.client.post("/v1/embeddings", json={"model": MODEL, **body})
        assert answer.status_code == 200, answer.text
        usage = answer.json()["usage"]
        assert guard.decision(answer)["prompt_tokens"] == usage["prompt_tokens"]
        assert usage.get("completion_tokens", 0) == 0
        assert guard.backend.ledger.live == 0


ROOMY = [
    ("/v2/embed", {"texts": ["hello", "there"]}),
    ("/v2/embed", {"texts": ["hello"], "truncate": "NONE"}),
    ("/v2/embed", {"inputs": [{"content": [{"type": "text", "text": "hello"}]}]}),
    ("/score", {"queries": "hello", "documents": ["there", "you are"]}),
    ("/score", {"text_1": ["a", "b"], "text_2": ["c", "d"]}),
    ("/v1/score", {"data_1": "a", "data_2": "b"}),
    ("/score", {"queries": "a", "items": "b", "instruction": "be brief"}),
    ("/rerank", {"query": "hello", "documents": ["there", "you are" * 100]}),
    ("/v1/rerank", {"query": "hello", "documents": "there"}),
    ("/v2/rerank", {"query": LONG, "documents": ["there"], "truncate_prompt_tokens": 40}),
]


@pytest.mark.parametrize(("route", "body"), ROOMY)
async def test_the_others_have_room_for_what_the_engine_uses(
    pooling_server: VllmServer, route: str, body: dict[str, object]
) -> None:
    """Blocks enough for the tokens it names, where it names any."""
    async with guarded(pooling_server) as guard:
        answer = await guard.client.post(route, json={"model": MODEL, **body})
        assert answer.status_code == 200, answer.text
        used = answer.json().get("usage", answer.json().get("meta", {}).get("billed_units", {}))
        tokens = used.get("prompt_tokens", used.get("input_tokens"))
        assert tokens <= guard.decision(answer)["predicted_blocks"] * BLOCK


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/v1/embeddings", {"input": ["a", [1]]}),
        ("/v1/embeddings", {"input": [1.5]}),
        ("/v1/embeddings", {"input": [["a"]]}),
        ("/v1/embeddings", {}),
        ("/v1/embeddings", {"input": "x", "truncate_prompt_tokens": -2}),
        ("/v2/embed", {"texts": []}),
        ("/v2/embed", {"texts": ["a"], "images": ["b"]}),
        ("/score", {"queries": ["a", "b"], "documents": ["c"]}),
        ("/score", {"queries": "a", "documents": []}),
        ("/score", {"queries": [1], "documents": ["a"]}),
        ("/rerank", {"query": ["a"], "documents": ["b"]}),
        ("/rerank", {"query": "a", "documents": [{"text": "b"}]}),
    ],
)
async def test_what_is_refused_the_engine_refuses(
    pooling_server: VllmServer, route: str, body: dict[str, object]
) -> None:
    """A 400 here is one there."""
    async with guarded(pooling_server) as guard, httpx.AsyncClient(base_url=pooling_server.url) as engine:
        for client in (guard.client, engine):
            answer = await client.post(route, json={"model": MODEL, **body})
            assert answer.status_code == 400, answer.text
