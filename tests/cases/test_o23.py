"""O-23: kvguard must not multiply requests."""

import pytest

from tests.kit.guard import Guard, guarding
from tests.kit.stub import HEAD_JSON, Call, Stub, answer_at_once, exposition, hold, running_stub

pytestmark = pytest.mark.anyio


async def begin_and_reset(call: Call) -> None:
    """Send an answer's head, then drop the connection."""
    await call.raw(f"HTTP/1.1 200 OK\r\n{HEAD_JSON}content-length: 100\r\n\r\n".encode())
    call.reset()


async def leave_a_connection(guard: Guard, stub: Stub) -> None:
    """Have a request answered, so that its connection is there for the next."""
    stub.answer = answer_at_once
    assert (await guard.complete([1])).status_code == 200
    stub.hits.clear()


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
async def test_an_answer_is_passed_on_and_never_asked_for_again(connection: str) -> None:
    """Each error of the backend reaches the client as it is after one attempt, on a fresh or a reused connection."""

    async def fail(call: Call) -> None:
        await call.reply(status, body, f"{HEAD_JSON}connection: {connection}\r\n")
        call.closing = connection == "close"

    async with running_stub(Stub(answer=fail)) as stub, guarding(stub) as guard:
        for status in (500, 502, 503, 429):
            body = {"error": {"message": "the engine's own words", "code": status}}
            stub.hits.clear()
            answer = await guard.complete([1])
            assert answer.status_code == status
            assert answer.json() == body
            assert len(stub.hits) == 1
            assert guard.backend.ledger.live == 0


async def test_a_read_timeout_is_not_retried() -> None:
    """A backend that took the request and stays silent gets it exactly once; the client gets 502."""
    async with running_stub() as stub, guarding(stub, upstream={"idle_timeout_seconds": 0.3}) as guard:
        for reused in (False, True):
            if reused:
                await leave_a_connection(guard, stub)
            stub.answer = hold
            answer = await guard.complete([1])
            assert answer.status_code == 502
            assert answer.json()["error"]["code"] == "backend_unreachable"
            assert len(stub.hits) == 1
            assert guard.backend.ledger.live == 0


async def test_an_answer_that_began_is_not_retried() -> None:
    """A backend that dies after the head of its answer gets the request exactly once, on any connection."""
    async with running_stub() as stub, guarding(stub) as guard:
        for reused in (False, True):
            if reused:
                await leave_a_connection(guard, stub)
            stub.answer = begin_and_reset
            assert (await guard.complete([1])).status_code == 502
            assert len(stub.hits) == 1


async def test_another_backend_is_no_reason_to_ask_again() -> None:
    """With a second one beside it that would take the request, an error or a broken connection still ends it."""

    async def fail(call: Call) -> None:
        if status is None:
            await begin_and_reset(call)
        else:
            await call.reply(status, {"error": {"message": "the engine's own words"}})

    other = Stub(page=exposition(0.5))
    async with running_stub(Stub(answer=fail)) as stub, running_stub(other), guarding(stub, other) as guard:
        for status in (500, 502, 503, 429, None):
            stub.hits.clear()
            answer = await guard.complete([1])
            assert answer.status_code == (status or 502)
            assert (len(stub.hits), other.hits) == (1, [])
