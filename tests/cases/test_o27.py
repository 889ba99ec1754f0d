"""O-27: client gone, generation goes on."""

import itertools

import pytest

from tests.kit.guard import CHAT, COMPLETIONS, Guard, guarding
from tests.kit.raw import raw_client
from tests.kit.stub import Driven, Stub, hold, running_stub

pytestmark = pytest.mark.anyio

SOON_SECONDS = 5.0


def body_of(*, stream: bool) -> dict:
    messages = [{"role": "user", "content": "hi"}]
    return {"model": "tiny", "prompt": [1] * 16, "messages": messages, "max_tokens": 100, "stream": stream}


async def assert_cancelled(guard: Guard, route: str, *, count: int) -> None:
    """The clients that left are counted as just that, nothing is held for them and nobody is warned."""
    await guard.until(lambda: guard.metric("kvguard_exchanges_total", route=route, end="cancelled") == count)
    assert guard.metric("kvguard_exchanges_total", route=route, end="complete") == 0
    assert guard.metric("kvguard_exchanges_total", route=route, end="upstream_error") == 0
    ledger = guard.backend.ledger
    assert (ledger.live, ledger.sequences, ledger.held_blocks) == (0, 0, 0)
    assert not [line for line in guard.logs if line["level"] in ("warning", "error")]


async def test_a_client_that_leaves_a_stream_takes_the_generation_with_it() -> None:
    """After three tokens of a stream the client leaves and the backend sees its peer go, with nothing more to send."""
    driven = Driven()
    async with running_stub(Stub(answer=driven)) as stub, guarding(stub) as guard:
        for left, route in enumerate((COMPLETIONS, CHAT)):
            async with raw_client(guard.service.port) as client:
                await client.request(route, body_of(stream=True))
                call = await driven.call()
                await call.start_stream()
                assert (await client.head()).status == 200
                for _ in range(3):
                    await call.token()
                    assert await client.chunk()
                assert (guard.backend.ledger.live, stub.left) == (1, left)
                client.leave()
                await stub.until(lambda seen=left + 1: stub.left == seen, seconds=SOON_SECONDS)
            await assert_cancelled(guard, route, count=1)


async def test_a_client_that_leaves_before_the_answer_takes_the_generation_with_it() -> None:
    """The client leaves while the backend has not sent a byte, streamed or not, and the backend sees its peer go."""
    async with running_stub(Stub(answer=hold)) as stub, guarding(stub) as guard:
        for left, (route, stream) in enumerate(itertools.product((COMPLETIONS, CHAT), (False, True))):
            async with raw_client(guard.service.port) as client:
                await client.request(route, body_of(stream=stream))
                await stub.until(lambda seen=left + 1: len(stub.hits) == seen)
                assert (guard.backend.ledger.live, stub.left) == (1, left)
                client.leave()
                await stub.until(lambda seen=left + 1: stub.left == seen, seconds=SOON_SECONDS)
            await assert_cancelled(guard, route, count=left % 2 + 1)


async def test_a_client_that_leaves_half_an_answer_takes_the_generation_with_it() -> None:
    """The client leaves in the middle of a non-streamed body, and the backend sees its peer go."""
    driven = Driven()
    async with (
        running_stub(Stub(answer=driven)) as stub,
        guarding(stub) as guard,
        raw_client(guard.service.port) as client,
    ):
        await client.request(COMPLETIONS, body_of(stream=False))
        call = await driven.call()
        await call.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{")
        assert (await client.head()).status == 200
        client.leave()
        await stub.until(lambda: stub.left == 1, seconds=SOON_SECONDS)
        await assert_cancelled(guard, COMPLETIONS, count=1)
