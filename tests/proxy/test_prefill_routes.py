"""Routes that generate nothing, or a token that is nobody's to lower, all the way through."""

import asyncio
import json
from typing import Any

import pytest

from kvguard.protocols.pooling import AROUND_TOKENS
from kvguard.tokenization.counter import MAX_QUESTIONS
from tests.kit.guard import Guard, guarding
from tests.kit.stub import Call, Stub, exposition, hold, running_stub

pytestmark = pytest.mark.anyio

EMBEDDINGS = "/v1/embeddings"
USED = {"object": "list", "data": [], "usage": {"prompt_tokens": 32, "total_tokens": 32, "completion_tokens": 0}}
RANKED = {"id": "x", "results": [], "usage": {"prompt_tokens": 32, "total_tokens": 32}}
BILLED = {"id": "x", "embeddings": {}, "meta": {"billed_units": {"input_tokens": 32}}}


def answering(value: dict[str, Any]) -> Stub:
    async def answer(call: Call) -> None:
        await call.reply(200, value)

    return Stub(answer=answer)


async def held(guard: Guard, stub: Stub, route: str, body: dict[str, Any]) -> int:
    """Blocks that the request holds while the backend works on it."""
    request = guard.client.build_request("POST", route, json=body)
    before = len(stub.hits)
    sent = asyncio.ensure_future(guard.client.send(request))
    await stub.until(lambda: len(stub.hits) > before)
    blocks = guard.backend.ledger.held_blocks
    sent.cancel()
    await guard.until(lambda: guard.backend.ledger.live == 0)
    return blocks


@pytest.mark.parametrize(
    ("route", "body", "answer"),
    [
        (EMBEDDINGS, {"input": [1] * 32}, USED),
        ("/v2/embed", {"texts": ["x"]}, BILLED),
        ("/pooling", {"input": [1] * 32}, USED),
        ("/rerank", {"query": "q", "documents": ["d", "e"]}, RANKED),
    ],
)
@pytest.mark.parametrize(("gauge", "tier"), [(0.1, 0), (0.75, 1), (0.90, 2)])
async def test_they_pass_unchanged_at_every_tier_but_the_last(
    route: str, body: dict[str, Any], answer: dict[str, Any], gauge: float, tier: int
) -> None:
    """Nothing is lowered, nothing generated is counted, no length is learned, and nothing is held afterwards."""
    stub = answering(answer)
    stub.page = exposition(gauge, blocks=10_000)
    async with running_stub(stub), guarding(stub, degrade={"collapse_n": True}) as guard:
        sent = json.dumps({**body, "model": "tiny", "n": 4, "best_of": 4, "max_tokens": 900})
        answered = await guard.client.post(route, content=sent)
        assert (answered.status_code, answered.headers["x-kvguard-tier"]) == (200, str(tier))
        assert "x-kvguard-degraded" not in answered.headers
        assert answered.json() == answer
        assert stub.hits[-1].body == sent.encode()
        for kind in ("requested", "trimmed", "generated"):
            assert guard.metric("kvguard_tokens_total", kind=kind) == 0, kind
        assert guard.metric("kvguard_exchanges_total", route=route, end="complete") == 1
        assert guard.backend.occupancy.lengths.expected(cap=0, produced=0) is None
        assert guard.backend.ledger.live == guard.backend.ledger.violations == 0


@pytest.mark.parametrize(
    ("route", "body", "blocks"),
    [
        (EMBEDDINGS, {"input": [1] * 33}, 3),
        (EMBEDDINGS, {"input": [[1] * 16, [1] * 17]}, 3),
        (EMBEDDINGS, {"input": ["a", "b"]}, 2),
        (EMBEDDINGS, {"input": ["a", "b"], "truncate_prompt_tokens": 0}, 0),
        (EMBEDDINGS, {"input": [[1], [1]], "padding": "max_length"}, 2 * 2048 // 16),
        ("/v2/embed", {"texts": ["a"], "input_type": "x"}, (16 + AROUND_TOKENS) // 16),
        # A query and two documents of 16 tokens: both pairs, and the query once more.
        ("/rerank", {"query": "q", "documents": ["d", "e"]}, (5 * 16 + 4 * AROUND_TOKENS) // 16),
        ("/generative_scoring", {"query": [1] * 10, "items": [[1] * 6, [1] * 7], "label_token_ids": [1]}, 3),
        ("/inference/v1/generate", {"token_ids": [1] * 17, "sampling_params": {"n": 2}}, 4),
        ("/v1/chat/completions/batch", {"messages": [[{"role": "user", "content": "x"}]] * 3, "max_tokens": 1}, 3),
    ],
)
async def test_what_they_hold(route: str, body: dict[str, Any], blocks: int) -> None:
    """The blocks of all their prompts at once; a stub's text has 16 tokens, a block as many."""
    async with running_stub(Stub(page=exposition(0.0, blocks=1000), answer=hold)) as stub, guarding(stub) as guard:
        assert await held(guard, stub, route, body) == blocks


async def test_more_prompts_than_an_engine_is_asked_about_are_guessed() -> None:
    """A thousand conversations or texts pass without a question while they wait; a few are counted."""
    conversation = [{"role": "user", "content": "x"}]
    async with running_stub(answering(USED)) as stub, guarding(stub, telemetry={"when_blind": "open"}) as guard:
        for count in (MAX_QUESTIONS, MAX_QUESTIONS + 1):
            stub.tokenized.clear()
            for route, body in (
                (EMBEDDINGS, {"input": ["x"] * count}),
                ("/v1/chat/completions/batch", {"messages": [conversation] * count, "max_tokens": 1}),
            ):
                asked = len(stub.tokenized)
                await guard.client.post(route, json=body)
                assert len(stub.tokenized) - asked == (count if count <= MAX_QUESTIONS else 0), route


async def test_what_does_not_fit_is_refused() -> None:
    """Prompts that would cross the last threshold are turned away before the engine hears of them."""
    stub = answering(USED)
    stub.page = exposition(0.90)
    async with running_stub(stub), guarding(stub) as guard:
        assert (await guard.client.post(EMBEDDINGS, json={"input": [[1] * 16] * 4})).status_code == 200
        answered = await guard.client.post(EMBEDDINGS, json={"input": [[1] * 16] * 5})
        assert (answered.status_code, answered.json()["error"]["code"]) == (503, "saturated")
        assert "retry-after" in answered.headers
        assert len(stub.hits) == 1
        assert guard.metric("kvguard_tokens_total", kind="rejected") == 80
