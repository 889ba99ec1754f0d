"""O-05: the gauge lags, a burst walks through."""

import asyncio

import pytest

from tests.kit.guard import guarding
from tests.kit.stub import exposition, hold, running_stub

pytestmark = pytest.mark.anyio


async def test_a_burst_is_stopped_by_the_ledger_while_the_gauge_says_empty() -> None:
    """Of 60 requests of two blocks, those that would reach 95 of 100 blocks are refused, whatever the gauge says."""
    async with running_stub() as stub, guarding(stub) as guard:
        stub.page = exposition(0.0)
        stub.answer = hold
        sent = [asyncio.ensure_future(guard.complete([1] * 16, max_tokens=16)) for _ in range(60)]
        await stub.until(lambda: len(stub.hits) == 47)
        pending, refused = set(sent), 0
        while refused < 13:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                answer = task.result()
                assert answer.status_code == 503
                assert answer.json()["error"]["code"] == "saturated"
                refused += 1
        assert len(stub.hits) == 47
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        await stub.until(lambda: stub.left == 47)
    assert guard.backend.ledger.held_blocks == 0
