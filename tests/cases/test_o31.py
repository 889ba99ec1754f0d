"""O-31: silence longer than the load balancer's patience."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest

from tests.kit.guard import CHAT, COMPLETIONS, Guard, guarding
from tests.kit.raw import RawClient, raw_client
from tests.kit.stub import Call, Driven, Stub, running_stub

pytestmark = pytest.mark.anyio

BEAT = b": keep-alive\n\n"
EVENTS = [{"choices": [{"index": 0, "text": f" word{number}", "finish_reason": None}]} for number in range(3)]
ASKING = {"stream": True, "stream_options": {"include_usage": True}}


@dataclass
class Silent:
    """A stream whose events the test sends, through kvguard to a client that asked for one."""

    guard: Guard
    client: RawClient
    stub: Stub
    driven: Driven
    call: Call

    async def until_idle(self) -> None:
        await self.guard.until(lambda: self.guard.backend.ledger.live == 0)


@contextlib.asynccontextmanager
async def asked(seconds: float = 1.0, *, route: str = COMPLETIONS, **fields: object) -> AsyncIterator[Silent]:
    """The request has reached the backend, which has not answered yet."""
    driven = Driven()
    body = {"prompt": [1], "messages": [{"role": "user", "content": "hi"}], **(fields or ASKING)}
    async with (
        running_stub(Stub(answer=driven)) as stub,
        guarding(stub, streams={"heartbeat_seconds": seconds}) as guard,
        raw_client(guard.service.port) as client,
    ):
        await client.request(route, body)
        yield Silent(guard, client, stub, driven, await driven.call())


@contextlib.asynccontextmanager
async def streaming(seconds: float = 1.0, **fields: object) -> AsyncIterator[Silent]:
    """The stream has begun, and the client has its head."""
    async with asked(seconds, **fields) as silent:
        await silent.call.start_stream()
        assert (await silent.client.head()).status == 200
        await silent.guard.clock.settle()
        yield silent


def event(value: dict | str) -> bytes:
    return f"data: {value if isinstance(value, str) else json.dumps(value)}\n\n".encode()


def parsed(stream: bytes) -> Iterator[bytes]:
    """What a parser of event streams makes of it: comments are none of its business."""
    for block in stream.split(b"\n\n"):
        data = [line[5:].strip() for line in block.split(b"\n") if line.startswith(b"data:")]
        if data:
            yield b"\n".join(data)


def waiting() -> list[str]:
    """The tasks that wait for a block of an answer, or for silence to have lasted."""
    names = [task.get_coro().__qualname__ for task in asyncio.all_tasks()]
    return sorted(name for name in names if name in ("or_end", "ManualClock.sleep"))


async def whole(client: RawClient) -> bytes:
    parts = []
    while part := await client.chunk():
        parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize("route", [COMPLETIONS, CHAT])
async def test_comments_bridge_a_long_prefill(route: str) -> None:
    """With an interval of 1 s and a first event after 3.5 s there are three, and the events are the backend's own."""
    async with streaming(route=route) as silent:
        for _ in range(3):
            await silent.guard.advance(1.0)
            assert await silent.client.chunk() == BEAT
        await silent.guard.advance(0.5)
        for value in EVENTS:
            await silent.call.event(value)
        await silent.call.end_stream()
        silent.driven.done(silent.call)
        rest = await whole(silent.client)
        assert rest == b"".join(map(event, [*EVENTS, "[DONE]"]))
        assert list(parsed(BEAT * 3 + rest)) == [*(json.dumps(value).encode() for value in EVENTS), b"[DONE]"]


async def test_comments_come_between_events_too() -> None:
    """Every event starts the interval anew."""
    async with streaming() as silent:
        await silent.guard.advance(0.9)
        await silent.call.event(EVENTS[0])
        assert await silent.client.chunk() == event(EVENTS[0])
        await silent.guard.clock.settle()
        await silent.guard.advance(0.9)
        await silent.call.event(EVENTS[1])
        assert await silent.client.chunk() == event(EVENTS[1])
        await silent.guard.clock.settle()
        await silent.guard.advance(1.0)
        assert await silent.client.chunk() == BEAT


async def test_none_comes_inside_an_event() -> None:
    """While half an event has passed there is silence, and a comment again once it is whole."""
    async with streaming() as silent:
        for part in (b'data: {"choices":', b" []}\n"):
            await silent.call.chunk(part)
            assert await silent.client.chunk() == part
            await silent.guard.clock.settle()
            await silent.guard.advance(5.0)
        await silent.call.chunk(b"\n")
        assert await silent.client.chunk() == b"\n"
        await silent.guard.clock.settle()
        await silent.guard.advance(1.0)
        assert await silent.client.chunk() == BEAT


async def test_one_comes_before_a_chunk_that_is_held_back() -> None:
    """Where the usage is taken out, the last chunk waits for what follows it, however long that takes."""
    last = {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}
    text = json.dumps(last, separators=(",", ":"))
    async with streaming(stream=True) as silent:
        await silent.guard.advance(1.0)
        assert await silent.client.chunk() == BEAT
        await silent.call.event(text)
        await silent.guard.until(lambda: silent.guard.backend.ledger.prefill_tokens == 0)  # it has been read
        for _ in range(2):
            await silent.guard.advance(1.0)
            assert await silent.client.chunk() == BEAT
        await silent.call.event({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})
        await silent.call.end_stream()
        silent.driven.done(silent.call)
        assert await whole(silent.client) == event(text) + event("[DONE]")


async def test_none_comes_before_the_head() -> None:
    """Until the backend's status is known nothing is sent: what it says then is still the answer."""
    async with asked() as silent:
        await silent.guard.advance(10.0)
        await silent.call.reply(500, {"error": {"message": "no"}})
        silent.driven.done(silent.call)
        answer = await silent.client.answer()
        assert (answer.status, answer.json) == (500, {"error": {"message": "no"}})


async def test_none_comes_into_an_answer_that_is_no_stream() -> None:
    """JSON has no comments."""
    async with asked(stream=False) as silent:
        body = json.dumps({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        await silent.call.raw(head.encode() + body[:5])
        await silent.guard.clock.settle()
        await silent.guard.advance(10.0)
        await silent.call.raw(body[5:])
        silent.driven.done(silent.call)
        assert (await silent.client.answer()).body == body


async def test_switched_off_the_stream_is_the_backends_byte_for_byte() -> None:
    """Which is the default: however long the silence, nothing is added."""
    async with streaming(0) as silent:
        parts = [event(EVENTS[0]), b": its own comment\n\n", b"data:", b" [DONE]\n\n"]
        for part in parts:
            await silent.guard.advance(100.0)
            await silent.call.chunk(part)
            assert await silent.client.chunk() == part
        await silent.call.raw(b"0\r\n\r\n")
        silent.driven.done(silent.call)
        assert await silent.client.chunk() == b""


async def test_a_client_that_leaves_during_silence_ends_it() -> None:
    """The backend is let go, the ledger is empty, and nothing of the waiting stays behind."""
    async with streaming() as silent:
        await silent.guard.advance(1.0)
        assert await silent.client.chunk() == BEAT
        assert waiting() == ["ManualClock.sleep", "or_end"]
        silent.client.leave()
        await silent.until_idle()
        await silent.stub.until(lambda: silent.stub.left == 1)
        await silent.guard.clock.settle()
        assert waiting() == []


async def test_a_backend_that_breaks_during_silence_is_told() -> None:
    """After the comments comes the error event, and no success terminator."""
    async with streaming() as silent:
        await silent.guard.advance(1.0)
        assert await silent.client.chunk() == BEAT
        silent.call.reset()
        silent.driven.done(silent.call)
        [said] = parsed(await whole(silent.client))
        assert waiting() == []
        assert json.loads(said)["error"]["code"] == "backend_unreachable"
        await silent.until_idle()
