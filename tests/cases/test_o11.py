"""O-11: only the prompt was reserved."""

import asyncio

import pytest

from tests.kit.guard import guarding
from tests.kit.stub import hold_until, running_stub

pytestmark = pytest.mark.anyio


async def test_the_output_to_come_is_reserved_with_the_prompt() -> None:
    """Of five requests that hold one block now and 20 in the end, the one that would fill the cache is refused."""
    async with running_stub() as stub, guarding(stub, degrade={"floor_tokens": 304}) as guard:
        released = asyncio.Event()
        stub.answer = hold_until(released)
        sent = []
        for number in range(1, 5):
            sent.append(asyncio.ensure_future(guard.complete([1] * 16, max_tokens=304)))
            await stub.until(lambda n=number: len(stub.hits) == n)
        assert guard.usage("projected") == pytest.approx(0.04)
        assert guard.usage("peak") == pytest.approx(0.80)
        fifth = await guard.complete([1] * 16, max_tokens=304)
        assert fifth.status_code == 503
        assert fifth.json()["error"]["code"] == "saturated"
        assert [hit.json["max_tokens"] for hit in stub.hits] == [304] * 4
        released.set()
        assert [answer.status_code for answer in await asyncio.gather(*sent)] == [200] * 4
        assert guard.usage("peak") == 0
