"""O-30: upstream dies in the middle of a stream."""

import itertools
import json

import pytest

from tests.kit.dialects import DIALECTS, Dialect
from tests.kit.guard import Guard, guarding
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


async def broken_stream(guard: Guard, driven: Driven, die: Behaviour, dialect: Dialect, identity: str) -> list[str]:
    """The events a client reads of a stream of three tokens that dies after the client has the third."""
    async with raw_client(guard.service.port) as client:
        await client.request(dialect.route, dialect.body(stream=True), x_request_id=identity)
        call = await driven.call()
        await call.start_stream()
        assert (await client.head()).status == 200
        received = b""
        for part in (dialect.opening, *3 * [dialect.token]):
            if part:
                await call.chunk(part)
                received += await client.chunk()
        await die(call)
        driven.done(call)
        while part := await client.chunk():
            received += part
    return [event for event in received.decode().split("\n\n") if event]


async def test_a_stream_that_breaks_ends_with_an_error_event() -> None:
    """Three tokens, an event with `error.code` in the API's own form, no terminator, an empty ledger, one count and
    one warning with the id.
    """
    driven = Driven()
    deaths = (reset, break_an_event, close, end_without_terminator)
    async with running_stub(Stub(answer=driven)) as stub, guarding(stub) as guard:
        for dialect, die in itertools.product(DIALECTS, deaths):
            route = dialect.route
            broken = guard.metric("kvguard_exchanges_total", route=route, end="upstream_error")
            stub.hits.clear()
            identity = f"{route}:{die.__name__}"
            events = await broken_stream(guard, driven, die, dialect, identity)
            token = dialect.token.decode().strip()
            assert events.count(token) == 3, identity
            assert "".join(events[: events.index(token) + 3]) == (
                (dialect.opening + 3 * dialect.token).decode().replace("\n\n", "")
            )
            name, _, data = events[-1].rpartition("data: ")
            assert name == ("event: error\n" if token.startswith("event: ") else ""), identity
            assert json.loads(data)["error"]["code"] == "backend_unreachable", identity
            assert not [event for event in events if event in dialect.ending.decode().split("\n\n")], identity
            assert len(stub.hits) == 1, identity
            assert (guard.backend.ledger.live, guard.backend.ledger.held_blocks) == (0, 0), identity
            assert guard.metric("kvguard_exchanges_total", route=route, end="upstream_error") == broken + 1, identity
        warned = [line["request_id"] for line in guard.logs if line["event"] == "end" and line["level"] != "debug"]
    assert warned == [f"{dialect.route}:{die.__name__}" for dialect in DIALECTS for die in deaths]
