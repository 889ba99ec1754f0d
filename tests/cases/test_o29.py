"""O-29: buffered server-sent events."""

import json

import pytest

from tests.kit.guard import CHAT, COMPLETIONS, guarding
from tests.kit.raw import raw_client
from tests.kit.stub import Driven, Stub, running_stub

pytestmark = pytest.mark.anyio


async def test_every_event_arrives_before_the_next_is_sent() -> None:
    """Headers that forbid buffering arrive before the first event, and each of five events before the next exists."""
    driven = Driven()
    async with (
        running_stub(Stub(answer=driven)) as stub,
        guarding(stub) as guard,
        raw_client(guard.service.port) as client,
    ):
        for route in (COMPLETIONS, CHAT):
            body = {"prompt": [1], "messages": [{"role": "user", "content": "hi"}], "stream": True}
            await client.request(route, body, accept_encoding="gzip, deflate, br, zstd")
            call = await driven.call()
            await call.start_stream()
            head = await client.head()
            assert head.status == 200
            assert head.headers["content-type"].startswith("text/event-stream")
            assert head.headers["x-accel-buffering"] == "no"
            assert head.headers["cache-control"] == "no-cache"
            assert "content-encoding" not in head.headers
            for number in range(5):
                value = {"choices": [{"index": 0, "text": f" word{number}"}]}
                await call.event(value)
                assert await client.chunk() == f"data: {json.dumps(value)}\n\n".encode()
            await call.end_stream()
            driven.done(call)
            assert await client.chunk() == b"data: [DONE]\n\n"
            assert await client.chunk() == b""


async def test_part_of_an_event_is_not_held_back() -> None:
    """A block that ends in the middle of an event is passed on as it is, without waiting for the rest."""
    driven = Driven()
    async with (
        running_stub(Stub(answer=driven)) as stub,
        guarding(stub) as guard,
        raw_client(guard.service.port) as client,
    ):
        await client.request(COMPLETIONS, {"prompt": [1], "stream": True, "stream_options": {"include_usage": True}})
        call = await driven.call()
        await call.start_stream()
        await client.head()
        for part in (b"da", b'ta: {"cho', b'ices": []}\n', b"\n: comment", b"\n\n"):
            await call.chunk(part)
            assert await client.chunk() == part
