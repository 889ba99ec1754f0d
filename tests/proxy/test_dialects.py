"""Every generating route on real sockets: answers accounted for, and every error in the route's own shape."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.kit.dialects import BY_ROUTE, DIALECTS, MESSAGES, RESPONSES, Dialect
from tests.kit.guard import Guard, guarding
from tests.kit.stub import Call, Stub, broken, exposition, hold, running_stub

pytestmark = pytest.mark.anyio

LEARNS = {"forecast": {"min_answers": 1}}


async def ask(guard: Guard, dialect: Dialect, **fields: Any) -> httpx.Response:
    return await guard.client.post(dialect.route, json=dialect.body(**fields))


def assert_error(answer: httpx.Response, dialect: Dialect, *, status: int, code: str, kind: str) -> None:
    """An error of the route's own shape; `kind` is its class where the API has OpenAI's names."""
    named = {"body_too_large": "request_too_large", "backend_unreachable": "api_error", "internal_error": "api_error"}
    body = answer.json()
    assert answer.status_code == status
    assert body["error"]["code"] == code
    assert body["error"]["type"] == (named.get(code, kind) if dialect.route == MESSAGES else kind)
    assert set(body) == ({"type", "error"} if dialect.route == MESSAGES else {"error"})
    assert set(body["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS, ids=str)
async def test_an_answer_is_settled_by_its_own_usage(dialect: Dialect, stream: bool) -> None:
    """Its three tokens are counted and learned, and nothing of it stays in the ledger."""
    async with running_stub(Stub(answer=dialect.answer)) as stub, guarding(stub, **LEARNS) as guard:
        answer = await ask(guard, dialect, stream=stream, **{dialect.cap: 50})
        assert answer.status_code == 200
        assert guard.backend.occupancy.lengths.expected(cap=50, produced=0) == 3
        assert guard.metric("kvguard_tokens_total", kind="generated") == 3
        assert guard.metric("kvguard_exchanges_total", route=dialect.route, end="complete") == 1
        assert (guard.backend.ledger.live, guard.backend.ledger.held_blocks) == (0, 0)
        assert not [line for line in guard.logs if line["level"] in ("warning", "error")]


@pytest.mark.parametrize("dialect", DIALECTS, ids=str)
async def test_the_ledger_follows_a_stream_token_by_token(dialect: Dialect) -> None:
    """The prompt has one block, and the seventeenth token of the answer makes it three."""
    grown = asyncio.Event()

    async def answer(call: Call) -> None:
        await call.start_stream()
        await call.chunk(dialect.opening + 17 * dialect.token)
        await grown.wait()
        await call.chunk(dialect.ending)
        await call.raw(b"0\r\n\r\n")

    async with running_stub(Stub(answer=answer)) as stub, guarding(stub) as guard:
        asking = asyncio.ensure_future(ask(guard, dialect, stream=True, **{dialect.cap: 64}))
        await guard.until(lambda: guard.backend.ledger.held_blocks == 3)
        grown.set()
        assert (await asking).status_code == 200
        assert guard.backend.ledger.held_blocks == 0


@pytest.mark.parametrize("dialect", DIALECTS, ids=str)
async def test_errors_before_anything_is_forwarded(dialect: Dialect, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong method, a body too large or unreadable, a drain and a fault of kvguard's own."""
    limits = {"max_body_bytes": 300}
    async with running_stub() as stub, guarding(stub, limits=limits) as guard:
        wrong = await guard.client.get(dialect.route)
        assert_error(wrong, dialect, status=405, code="method_not_allowed", kind="invalid_request_error")
        assert wrong.headers["allow"] == "POST"
        large = await ask(guard, dialect, user="x" * 300)
        assert_error(large, dialect, status=413, code="body_too_large", kind="invalid_request_error")
        for stream in (False, True):
            invalid = await ask(guard, dialect, stream=stream, **{dialect.cap: 0})
            assert_error(invalid, dialect, status=400, code="invalid_request", kind="invalid_request_error")
            assert invalid.json()["error"]["param"] == dialect.cap
        monkeypatch.setattr(type(guard.service.controller), "admit", None)
        assert_error(await ask(guard, dialect), dialect, status=500, code="internal_error", kind="server_error")
        monkeypatch.undo()
        guard.service.controller.draining = True
        assert_error(await ask(guard, dialect), dialect, status=503, code="draining", kind="overloaded_error")
        assert not stub.hits


@pytest.mark.parametrize("dialect", DIALECTS, ids=str)
async def test_errors_of_a_backend_that_gives_no_answer(dialect: Dialect) -> None:
    """It breaks off before its head, and then is not there at all."""

    async def leave(call: Call) -> None:
        call.reset()

    async with running_stub(Stub(answer=leave)) as stub, guarding(stub) as guard:
        failed = await ask(guard, dialect, stream=True)
        assert_error(failed, dialect, status=502, code="backend_unreachable", kind="overloaded_error")
        stub.answer = broken
        assert (await ask(guard, dialect)).json() == {"error": {"message": "broken"}}
        assert guard.backend.ledger.live == 0
    async with guarding(stub) as guard:
        absent = await ask(guard, dialect)
        assert_error(absent, dialect, status=502, code="backend_unreachable", kind="overloaded_error")


@pytest.mark.parametrize("path", ["/v1/messages/count_tokens", "/v1/messages/render"])
async def test_what_lies_below_a_route_has_its_errors(path: str) -> None:
    """Reads that fail do so in the words of the API they belong to, and so does what is not there."""
    stub = Stub()
    async with running_stub(stub):
        pass
    dialect = BY_ROUTE[MESSAGES]
    async with guarding(stub, limits={"max_body_bytes": 100}) as guard:
        absent = await guard.client.post(path, json={})
        assert_error(absent, dialect, status=502, code="backend_unreachable", kind="overloaded_error")
        large = await guard.client.post(path, json={"system": "x" * 200})
        assert_error(large, dialect, status=413, code="body_too_large", kind="invalid_request_error")
        wrong = await guard.client.get(path)
        assert_error(wrong, dialect, status=405, code="method_not_allowed", kind="invalid_request_error")
        missing = (await guard.client.post(f"{path}/x")).json()
        assert (missing["type"], missing["error"]["type"]) == ("error", "not_found_error")


@pytest.mark.parametrize(("more", "held"), [({}, 1), ({"previous_response_id": "resp_a"}, 64)])
async def test_history_of_the_engines_own_may_fill_the_context(more: dict[str, str], held: int) -> None:
    """1024 tokens of context are 64 blocks; the prompt that is known has one."""
    stub = Stub(answer=hold, context_tokens=1024, page=exposition(0.0, blocks=1000))
    async with running_stub(stub), guarding(stub) as guard:
        asking = asyncio.ensure_future(ask(guard, BY_ROUTE[RESPONSES], max_output_tokens=1, **more))
        await stub.until(lambda: len(stub.hits) == 1)
        assert guard.backend.ledger.held_blocks == held
        asking.cancel()
        await guard.until(lambda: guard.backend.ledger.live == 0)


@pytest.mark.parametrize(("kind", "learned"), [("function", 3), ("code_interpreter", None)])
async def test_nothing_is_learned_from_several_generations_in_one_call(kind: str, learned: int | None) -> None:
    """The usage of a call whose tools the server runs may be a sum; of any other it is the answer's own."""
    dialect = BY_ROUTE[RESPONSES]
    async with running_stub(Stub(answer=dialect.answer)) as stub, guarding(stub, **LEARNS) as guard:
        for stream in (False, True):
            await ask(guard, dialect, stream=stream, max_output_tokens=50, tools=[{"type": kind, "name": "f"}])
        assert guard.backend.occupancy.lengths.expected(cap=50, produced=0) == learned
        compared = guard.metric("kvguard_prompt_error_tokens_count", source="engine")
        assert (compared or 0) == (2 if learned else 0)
        assert guard.metric("kvguard_tokens_total", kind="generated") == 6
        assert guard.backend.ledger.live == 0


async def test_a_request_that_thinks_keeps_the_room_for_its_budget() -> None:
    """At 0.75 its cap stays above the budget, or the engine would refuse what it would have served."""
    dialect = BY_ROUTE[MESSAGES]
    stub = Stub(page=exposition(0.75, blocks=100_000), answer=dialect.answer)
    async with running_stub(stub), guarding(stub) as guard:
        thinking = {"type": "enabled", "budget_tokens": 1024}
        answer = await ask(guard, dialect, max_tokens=1100, thinking=thinking)
        assert answer.status_code == 200
        assert "x-kvguard-degraded" not in answer.headers
        assert stub.hits[-1].json["max_tokens"] == 1100


async def test_a_stream_in_which_the_engine_reports_an_error() -> None:
    """It passes as it came, with nothing after it, and counts as an upstream error."""
    own = b'event: error\ndata: {"type":"error","error":{"type":"internal_error","message":"no"}}\n\n'
    dialect = BY_ROUTE[MESSAGES]

    async def answer(call: Call) -> None:
        await call.start_stream()
        await call.chunk(dialect.opening + dialect.token + own)
        await call.raw(b"0\r\n\r\n")

    async with running_stub(Stub(answer=answer)) as stub, guarding(stub, **LEARNS) as guard:
        answered = await ask(guard, dialect, stream=True, max_tokens=50)
        assert answered.content == dialect.opening + dialect.token + own
        assert guard.metric("kvguard_exchanges_total", route=MESSAGES, end="upstream_error") == 1
        assert guard.backend.occupancy.lengths.expected(cap=50, produced=0) is None
