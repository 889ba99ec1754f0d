"""O-13: one HTTP request, many sequences."""

import asyncio

import pytest

from tests.kit.guard import guarding
from tests.kit.stub import Stub, exposition, hold_until, running_stub

pytestmark = pytest.mark.anyio

PROMPTS = [[1] * 10, [1] * 20, [1] * 30]


async def test_every_prompt_and_copy_counts() -> None:
    """Three prompts, two answers each, take (2 + 3 + 4) x 2 blocks and six sequences."""
    async with running_stub() as stub, guarding(stub) as guard:
        released = asyncio.Event()
        stub.answer = hold_until(released)
        sent = asyncio.ensure_future(guard.complete(PROMPTS, n=2, max_tokens=20))
        await stub.until(lambda: len(stub.hits) == 1)
        assert guard.metric("kvguard_inflight_requests", backend="b0") == 1
        assert guard.metric("kvguard_inflight_sequences", backend="b0") == 6
        assert guard.usage("peak") == pytest.approx(0.18)
        assert guard.logs[-1]["predicted_blocks"] == 18
        released.set()
        assert (await sent).status_code == 200
        assert guard.metric("kvguard_inflight_sequences", backend="b0") == 0


async def test_what_is_refused_as_many_passes_as_one() -> None:
    """With 85 of 100 blocks taken those 18 blocks are refused, and one prompt with one answer is admitted."""
    async with running_stub(Stub(page=exposition(0.85))) as stub, guarding(stub) as guard:
        many = await guard.complete(PROMPTS, n=2, max_tokens=20)
        assert many.status_code == 503
        assert many.json()["error"]["code"] == "saturated"
        assert stub.hits == []
        for prompt in PROMPTS:
            assert (await guard.complete(prompt, n=1, max_tokens=20)).status_code == 200
