"""O-23, O-25, O-27, O-29, O-48 and O-49 on every route that answers in text; their own files go deeper on two."""

import json

import pytest

from tests.kit.dialects import DIALECTS, Dialect
from tests.kit.guard import guarding
from tests.kit.raw import raw_client
from tests.kit.stub import Call, Driven, Stub, exposition, hold, running_stub

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("dialect", DIALECTS, ids=str)]

CANARY = "canary-7d1f"


@pytest.mark.parametrize("status", [400, 404, 429, 500, 502, 503])
async def test_an_answer_of_the_engines_own_passes_and_is_not_asked_for_again(dialect: Dialect, status: int) -> None:
    """O-23: status and body as they came, one hit; the backend stays reachable, and 429 and 503 name a time."""
    body = {"error": {"message": "no"}}

    async def answer(call: Call) -> None:
        await call.reply(status, body)

    async with running_stub(Stub(answer=answer)) as stub, guarding(stub) as guard:
        for stream in (False, True):
            got = await guard.client.post(dialect.route, json=dialect.body(stream=stream))
            assert (got.status_code, got.json()) == (status, body)
            assert ("retry-after" in got.headers) is (status in (429, 503))
        assert len(stub.hits) == 2
        assert guard.telemetry() == "fresh"
        assert guard.backend.ledger.live == 0


async def test_a_full_engine_costs_nothing_to_say_so(dialect: Dialect) -> None:
    """O-25: at 0.99 neither the body nor a tokenizer is looked at."""
    async with running_stub(Stub(page=exposition(0.99))) as stub, guarding(stub) as guard:
        async with raw_client(guard.service.port) as client:
            await client.send(f"POST {dialect.route} HTTP/1.1\r\nhost: x\r\ncontent-length: 8000000\r\n\r\n".encode())
            assert (await client.answer()).status == 503
        assert (stub.hits, stub.tokenized) == ([], [])


async def test_a_client_that_leaves_takes_the_generation_with_it(dialect: Dialect) -> None:
    """O-27: before the answer and in the middle of it, streamed or not; nothing stays in the ledger."""
    driven = Driven()
    async with running_stub(Stub(answer=driven)) as stub, guarding(stub) as guard:
        async with raw_client(guard.service.port) as client:
            await client.request(dialect.route, dialect.body(stream=True))
            call = await driven.call()
            await call.start_stream()
            await call.chunk(dialect.opening + dialect.token)
            await client.head()
            client.leave()
            await stub.until(lambda: stub.left == 1)
        stub.answer = hold
        for left, stream in ((2, False), (3, True)):
            async with raw_client(guard.service.port) as client:
                await client.request(dialect.route, dialect.body(stream=stream))
                await stub.until(lambda seen=left: len(stub.hits) == seen)
                client.leave()
                await stub.until(lambda seen=left: stub.left == seen)
        await guard.until(lambda: guard.backend.ledger.live == 0)
        assert guard.metric("kvguard_exchanges_total", route=dialect.route, end="cancelled") == 3


async def test_every_event_passes_at_once(dialect: Dialect) -> None:
    """O-29: each is with the client before the next is sent, under headers that keep others from buffering."""
    driven = Driven()
    async with (
        running_stub(Stub(answer=driven)) as stub,
        guarding(stub) as guard,
        raw_client(guard.service.port) as client,
    ):
        await client.request(dialect.route, dialect.body(stream=True))
        call = await driven.call()
        await call.start_stream()
        headers = (await client.head()).headers
        assert (headers["x-accel-buffering"], headers["cache-control"]) == ("no", "no-cache")
        for _ in range(5):
            await call.chunk(dialect.token)
            assert await client.chunk() == dialect.token


async def test_headers_that_clients_must_not_set_go_nowhere(dialect: Dialect) -> None:
    """O-48: neither kvguard's own nor those of one connection reach the engine."""
    async with running_stub(Stub(answer=dialect.answer)) as stub, guarding(stub) as guard:
        sent = {"x-kvguard-tier": "0", "connection": "x-hop", "x-hop": "1", "x-mine": "1"}
        assert (await guard.client.post(dialect.route, json=dialect.body(), headers=sent)).status_code == 200
        seen = stub.hits[-1].headers
        assert ("x-kvguard-tier" in seen, "x-hop" in seen, seen["x-mine"]) == (False, False, "1")


async def test_nothing_of_a_request_is_written_anywhere(dialect: Dialect) -> None:
    """O-49: accepted, trimmed, refused or unreadable, prompt and key are in no log and no metric."""
    text = json.dumps(dialect.body(stream=False, user=CANARY)).replace('"hi"', f'"{CANARY}"')
    for gauge in (0.1, 0.75, 0.97):
        async with running_stub(Stub(page=exposition(gauge), answer=dialect.answer)) as stub, guarding(stub) as guard:
            for body in (text, text[:-1], f'{{"{CANARY}": {text}'):
                await guard.client.post(
                    dialect.route, content=body, headers={"authorization": f"Bearer {CANARY}", "x-api-key": CANARY}
                )
            metrics = (await guard.admin.get("/metrics")).text
            assert CANARY not in guard.log_stream.getvalue() + metrics
