"""O-45: "why was my request refused?"."""

import pytest

from tests.kit.dialects import DIALECTS, Dialect
from tests.kit.guard import Guard, guarding
from tests.kit.stub import Stub, exposition, running_stub

pytestmark = pytest.mark.anyio

ID = {"X-Request-Id": "abc-1"}


def lines_of(guard: Guard, request_id: str) -> list[dict]:
    return [line for line in guard.logs if line.get("request_id") == request_id]


@pytest.mark.parametrize("dialect", DIALECTS, ids=str)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_and_the_line_that_explains_it_have_the_clients_id(dialect: Dialect, stream: bool) -> None:
    """At 0.94 the 503 carries the id, and one line of the log has it with reason, usage and predicted blocks."""
    async with running_stub(Stub(page=exposition(0.94))) as stub, guarding(stub) as guard:
        body = dialect.body(stream=stream, **{dialect.cap: 16})
        answer = await guard.client.post(dialect.route, json=body, headers=ID)
        assert (answer.status_code, answer.headers["x-request-id"], answer.headers["x-kvguard-request-id"]) == (
            503,
            "abc-1",
            "abc-1",
        )
        (line,) = lines_of(guard, "abc-1")
        assert (line["event"], line["outcome"], line["reason"]) == ("decision", "rejected", "saturated")
        assert line["usage"]["observed"] == 0.94
        assert line["predicted_blocks"] == 2
        assert not stub.hits


@pytest.mark.parametrize("dialect", DIALECTS, ids=str)
async def test_a_request_refused_before_it_is_read_is_explained_too(dialect: Dialect) -> None:
    """At 0.97 nothing of it is known, but when and why."""
    async with running_stub(Stub(page=exposition(0.97))) as stub, guarding(stub) as guard:
        answer = await guard.client.post(dialect.route, json=dialect.body(), headers=ID)
        assert answer.headers["x-request-id"] == "abc-1"
        (line,) = lines_of(guard, "abc-1")
        assert (line["reason"], line["usage"]["observed"], line["route"]) == ("saturated", 0.97, dialect.route)


@pytest.mark.parametrize("dialect", DIALECTS, ids=str)
async def test_the_engine_receives_the_id_and_makes_one_where_there_is_none(dialect: Dialect) -> None:
    """At 0.10 a sane id goes on as it came; what is no id is replaced, and the client is told by what."""
    async with running_stub(Stub(page=exposition(0.10), answer=dialect.answer)) as stub, guarding(stub) as guard:
        for sent in (ID, {}, {"X-Request-Id": "no id\tat all"}):
            answer = await guard.client.post(dialect.route, json=dialect.body(), headers=sent)
            told = answer.headers["x-kvguard-request-id"]
            assert (answer.status_code, stub.hits[-1].headers["x-request-id"]) == (200, told)
            assert (told == "abc-1") is (sent is ID)
            assert [line["event"] for line in lines_of(guard, told)][:1] == ["decision"]
