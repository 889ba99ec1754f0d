"""Streams as other servers frame them: with a length, compressed, in pieces of any size."""

import gzip

import pytest

from tests.kit.guard import COMPLETIONS, guarding
from tests.kit.stub import Call, Stub, running_stub
from tests.proxy.test_stream_usage import DONE, EVENTS, USAGE, generated

pytestmark = pytest.mark.anyio


async def test_a_stream_with_a_length_ends_where_its_events_do() -> None:
    """A length that counts the usage that is taken out must not be promised to the client."""

    async def answer(call: Call) -> None:
        await call.reply(200, EVENTS + USAGE + DONE, "content-type: text/event-stream\r\n")

    async with running_stub(Stub(answer=answer)) as stub, guarding(stub) as guard:
        answered = await guard.complete(stream=True)
        assert answered.content == EVENTS + DONE
        assert "content-length" not in answered.headers
        assert generated(guard) == 2


async def test_a_stream_shorter_than_its_length_ends_with_an_error() -> None:
    """There is room for it."""

    async def answer(call: Call) -> None:
        await call.raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 10000\r\n\r\n" + EVENTS)
        call.closing = True

    async with running_stub(Stub(answer=answer)) as stub, guarding(stub) as guard:
        answered = await guard.complete(stream=True)
        assert answered.content.startswith(EVENTS + b'data: {"error":')


@pytest.mark.parametrize("encoding", ["gzip", "GZIP"])
async def test_a_compressed_stream_passes_as_it_is(encoding: str) -> None:
    """Nothing in it can be read, and no event could be added to it; what it held is not learned."""
    body = gzip.compress(EVENTS + DONE)

    async def answer(call: Call) -> None:
        await call.reply(200, body, f"content-type: text/event-stream\r\ncontent-encoding: {encoding}\r\n")

    async with running_stub(Stub(answer=answer)) as stub, guarding(stub) as guard:
        answered = await guard.complete(stream=True)
        assert answered.content == EVENTS + DONE
        assert guard.metric("kvguard_exchanges_total", route=COMPLETIONS, end="complete") == 1
        assert not generated(guard)


async def test_usage_is_taken_out_of_a_stream_that_comes_byte_by_byte() -> None:
    """Wherever the network cuts it."""

    async def answer(call: Call) -> None:
        await call.start_stream()
        for byte in EVENTS + USAGE + DONE:
            await call.chunk(bytes([byte]))
        await call.raw(b"0\r\n\r\n")

    async with running_stub(Stub(answer=answer)) as stub, guarding(stub) as guard:
        answered = await guard.complete(stream=True)
        assert answered.content == EVENTS + DONE
        assert generated(guard) == 2
