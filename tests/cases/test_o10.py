"""O-10: a request that can never fit."""

import pytest

from tests.kit.guard import guarding
from tests.kit.stub import Stub, running_stub

pytestmark = pytest.mark.anyio


async def test_a_prompt_larger_than_the_cache_is_refused_for_good() -> None:
    """1700 prompt tokens in front of 1600 get 400 too_large and no Retry-After, and nothing behind them waits."""
    async with running_stub(Stub(tokens=1700, context_tokens=4096)) as stub, guarding(stub) as guard:
        for prompt in ([1] * 1700, "counted by the engine"):
            answer = await guard.complete(prompt, max_tokens=16)
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "too_large"
            assert answer.json()["error"]["type"] == "invalid_request_error"
            assert "retry-after" not in answer.headers
        assert stub.hits == []
        assert (await guard.complete([1] * 20)).status_code == 200


async def test_the_whole_cache_is_the_limit() -> None:
    """A prompt that fills an idle cache to the last block passes; one token more does not."""
    async with running_stub(Stub(context_tokens=4096)) as stub, guarding(stub) as guard:
        assert (await guard.complete([1] * 1600, max_tokens=1)).status_code == 200
        assert (await guard.complete([1] * 1601, max_tokens=1)).status_code == 400
