"""O-21: what a rejection must look like."""

import httpx
import pytest

from tests.kit.guard import guarding
from tests.kit.stub import Stub, exposition, running_stub

pytestmark = pytest.mark.anyio


def assert_refusal(answer: httpx.Response) -> None:
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-kvguard-reason"] == "saturated"
    error = answer.json()["error"]
    assert error["code"] == "saturated"
    assert error["message"]
    assert error["type"] == "overloaded_error"


async def test_a_full_engine_is_an_openai_error_with_a_time_to_come_back() -> None:
    """At 0.97 chat and completions get a JSON 503 with Retry-After and a code, streamed or not."""
    async with running_stub(Stub(page=exposition(0.97))) as stub, guarding(stub) as guard:
        for stream in (False, True):
            assert_refusal(await guard.chat(stream=stream))
            assert_refusal(await guard.complete(stream=stream))
    assert not stub.hits


async def test_a_request_that_does_not_fit_any_more_gets_the_same_answer() -> None:
    """At 0.94 a request of two blocks at the floor is refused in the very same shape as one at a full engine."""
    async with running_stub(Stub(page=exposition(0.94))) as stub, guarding(stub) as guard:
        for stream in (False, True):
            assert_refusal(await guard.chat(max_tokens=16, stream=stream))
            assert_refusal(await guard.complete([1] * 16, max_tokens=16, stream=stream))
    assert not stub.hits
