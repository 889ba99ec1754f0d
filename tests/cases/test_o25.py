"""O-25: refuse before doing the expensive part."""

import json

import pytest

from tests.kit.guard import CHAT, COMPLETIONS, guarding
from tests.kit.raw import raw_client, request_head
from tests.kit.stub import Stub, exposition, running_stub

pytestmark = pytest.mark.anyio

BODY_BYTES = 8 * 1024 * 1024
COUNTERS = ("ids", "local", "engine", "learned")


async def test_a_full_engine_refuses_before_the_body_is_there() -> None:
    """At 0.99 the 503 to a body of 8 MB arrives before its first byte is sent, and nothing is tokenised."""
    async with running_stub(Stub(page=exposition(0.99))) as stub, guarding(stub) as guard:
        for route in (CHAT, COMPLETIONS):
            async with raw_client(guard.service.port) as client:
                await client.send(request_head(route, content_length=str(BODY_BYTES)))
                answer = await client.answer()
            assert answer.status == 503
            assert answer.json["error"]["code"] == "saturated"
        assert not any(guard.metric("kvguard_token_counts_total", source=source) for source in COUNTERS)
    assert not stub.tokenized
    assert not stub.hits


async def test_a_client_that_sends_its_body_all_the_same_reads_the_answer() -> None:
    """A body of 8 MB sent whole at 0.99 is answered 503, and its connection serves the next request."""
    text = "x" * BODY_BYTES
    body = json.dumps({"prompt": text, "messages": [{"role": "user", "content": text}]}).encode()
    async with (
        running_stub(Stub(page=exposition(0.99))) as stub,
        guarding(stub) as guard,
        raw_client(guard.service.port) as client,
    ):
        for route in (CHAT, COMPLETIONS):
            await client.request(route, body)
            assert (await client.answer()).status == 503
            await client.request("/v1/models", method="GET")
            assert (await client.answer()).status == 200
    assert not stub.tokenized


async def test_a_client_that_asks_first_is_spared_the_upload() -> None:
    """With `Expect: 100-continue` the answer at 0.99 is the 503 itself, without an invitation to send."""
    async with (
        running_stub(Stub(page=exposition(0.99))) as stub,
        guarding(stub) as guard,
        raw_client(guard.service.port) as client,
    ):
        await client.send(request_head(CHAT, content_length=str(BODY_BYTES), expect="100-continue"))
        assert (await client.answer()).status == 503
