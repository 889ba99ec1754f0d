"""O-30: upstream dies in the middle of a stream."""

import itertools
import json

import pytest

from tests.kit.guard import CHAT, COMPLETIONS, Guard, guarding
from tests.kit.raw import raw_client
from tests.kit.stub import Behaviour, Call, Driven, Stub, running_stub

pytestmark = pytest.mark.anyio


async def reset(call: Call) -> None:
    """The connection breaks between two events."""
    call.reset()


async def break_an_event(call: Call) -> None:
    """The connection breaks in the middle of an event."""
    await call.chunk(b'data: {"choices": [{"te')
    call.writer.close()


async def close(call: Call) -> None:
    """The connection is closed without the last chunk."""
    call.writer.close()


async def end_without_terminator(call: Call) -> None:
    """HTTP ends properly, the event stream does not."""
    await call.raw(b"0\r\n\r\n")


async def broken_stream(guard: Guard, driven: Driven, die: Behaviour, route: str, identity: str) -> list[str]:
    """The events a client reads of a stream of three tokens that dies after the client has the third."""
    body = {"prompt": [1], "messages": [{"role": "user", "content": "hi"}], "stream": True}
    async with raw_client(guard.service.port) as client:
        await client.request(route, body, x_request_id=identity)
        call = await driven.call()
        await call.start_stream()
        assert (await client.head()).status == 200
        received = b""
        for _ in range(3):
            await call.token()
            received += await client.chunk()
        await die(call)
        driven.done(call)
        while part := await client.chunk():
            received += part
    return [event for event in received.decode().split("\n\n") if event]


async def test_a_stream_that_breaks_ends_with_an_error_event() -> None:
    """Three events, then one with `error.code`, no `[DONE]`, an empty ledger, one count and one warning with the id."""
    driven = Driven()
    deaths = (reset, break_an_event, close, end_without_terminator)
    async with running_stub(Stub(answer=driven)) as stub, guarding(stub) as guard:
        for route, die in itertools.product((COMPLETIONS, CHAT), deaths):
            broken = guard.metric("kvguard_exchanges_total", route=route, end="upstream_error")
            stub.hits.clear()
            identity = f"{route}:{die.__name__}"
            events = await broken_stream(guard, driven, die, route, identity)
            words = [json.loads(event.removeprefix("data: "))["choices"][0]["text"] for event in events[:3]]
            assert words == [" x", " x", " x"]
            assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "backend_unreachable", identity
            assert not [event for event in events if "[DONE]" in event], identity
            assert len(stub.hits) == 1, identity
            assert (guard.backend.ledger.live, guard.backend.ledger.held_blocks) == (0, 0), identity
            assert guard.metric("kvguard_exchanges_total", route=route, end="upstream_error") == broken + 1, identity
        warned = [line["request_id"] for line in guard.logs if line["level"] in ("warning", "error")]
    assert warned == [f"{route}:{die.__name__}" for route in (COMPLETIONS, CHAT) for die in deaths]
