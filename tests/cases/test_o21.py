"""O-21: what a rejection must look like."""

import httpx
import pytest

from tests.kit.dialects import DIALECTS, MESSAGES, Dialect
from tests.kit.guard import guarding
from tests.kit.stub import Stub, exposition, running_stub

pytestmark = pytest.mark.anyio


def assert_refusal(answer: httpx.Response, route: str) -> None:
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-kvguard-reason"] == "saturated"
    assert answer.json().get("type") == ("error" if route == MESSAGES else None)
    error = answer.json()["error"]
    assert error["code"] == "saturated"
    assert error["message"]
    assert error["type"] == "overloaded_error"


@pytest.mark.parametrize("dialect", DIALECTS, ids=str)
async def test_a_full_engine_is_an_error_of_the_api_with_a_time_to_come_back(dialect: Dialect) -> None:
    """At 0.97 every route gets a JSON 503 in its own shape with Retry-After and a code, streamed or not."""
    async with running_stub(Stub(page=exposition(0.97))) as stub, guarding(stub) as guard:
        for stream in (False, True):
            assert_refusal(await guard.client.post(dialect.route, json=dialect.body(stream=stream)), dialect.route)
    assert not stub.hits


@pytest.mark.parametrize("dialect", DIALECTS, ids=str)
async def test_a_request_that_does_not_fit_any_more_gets_the_same_answer(dialect: Dialect) -> None:
    """At 0.94 a request of two blocks at the floor is refused in the very same shape as one at a full engine."""
    async with running_stub(Stub(page=exposition(0.94))) as stub, guarding(stub) as guard:
        for stream in (False, True):
            body = dialect.body(stream=stream, **{dialect.cap: 16})
            assert_refusal(await guard.client.post(dialect.route, json=body), dialect.route)
    assert not stub.hits


TGI_INFO = {"version": "2.2.0", "max_total_tokens": 1024, "max_batch_total_tokens": 1601}
FULL = "tgi_batch_current_max_tokens 1552\ntgi_batch_current_size 4\ntgi_queue_size 0\ntgi_request_success 9\n"


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/generate", {"inputs": "hi"}),
        ("/generate_stream", {"inputs": "hi"}),
        ("/", {"inputs": "hi"}),
        ("/", {"inputs": "hi", "stream": True}),
        ("/invocations", {"inputs": "hi"}),
        ("/vertex", {"instances": [{"inputs": "hi"}]}),
    ],
)
async def test_tgis_routes_refuse_in_tgis_words(route: str, body: dict) -> None:
    """At 0.97 its own routes get the object its clients read, streamed or not."""
    stub = Stub(info=TGI_INFO, page=FULL)
    flags = {"tgi": {"attention": "flashinfer"}}
    async with running_stub(stub), guarding(stub, backend=flags) as guard:
        answer = await guard.client.post(route, json=body)
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-kvguard-reason"] == "saturated"
    assert answer.json().keys() == {"error", "error_type"}
    assert answer.json()["error_type"] == "overloaded"
    assert not stub.hits


@pytest.mark.parametrize("stream", [False, True])
async def test_tgis_other_routes_refuse_in_openais(stream: bool) -> None:
    """On `/v1` the error has OpenAI's shape, in front of TGI too."""
    stub = Stub(info=TGI_INFO, page=FULL)
    flags = {"tgi": {"attention": "flashinfer"}}
    async with running_stub(stub), guarding(stub, backend=flags) as guard:
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": stream}
        assert_refusal(await guard.client.post("/v1/chat/completions", json=body), "/v1/chat/completions")
        body = {"prompt": "hi", "stream": stream}
        assert_refusal(await guard.client.post("/v1/completions", json=body), "/v1/completions")
