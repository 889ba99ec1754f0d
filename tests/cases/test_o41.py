"""O-41: two proxy replicas in front of one backend."""

import asyncio
import contextlib

import pytest

from tests.kit.guard import Guard, guarding
from tests.kit.stub import Stub, exposition, hold, running_stub

pytestmark = pytest.mark.anyio


async def burst(guard: Guard) -> list[asyncio.Future]:
    """60 requests of two blocks at once, all of them decided on; those that are held stay open."""
    before = guard.backend.ledger.live
    sent = [asyncio.ensure_future(guard.complete([1] * 16, max_tokens=16)) for _ in range(60)]
    await guard.until(lambda: sum(task.done() for task in sent) + guard.backend.ledger.live - before == 60)
    return sent


@contextlib.asynccontextmanager
async def replicas(share: float):
    """Two kvguards in front of a backend of 100 blocks whose gauge says 0 for ever."""
    stub = Stub(page=exposition(0.0), answer=hold)
    async with running_stub(stub), guarding(stub, share=share) as one, guarding(stub, share=share) as other:
        yield one, other


@pytest.mark.parametrize(("share", "admitted"), [(1.0, 47), (0.5, 23), (0.25, 11)])
async def test_each_replica_claims_its_part_of_the_headroom(share: float, admitted: int) -> None:
    """With half of it each, two admit together what one alone would; the rest of each burst is told to come back."""
    async with replicas(share) as guards:
        sent = [task for guard in guards for task in await burst(guard)]
        assert [guard.backend.ledger.live for guard in guards] == [admitted, admitted]
        refused = [task.result() for task in sent if task.done()]
        assert {answer.headers["x-kvguard-reason"] for answer in refused} == {"saturated"}
        for task in sent:
            task.cancel()
        await asyncio.gather(*sent, return_exceptions=True)
        for guard in guards:
            await guard.until(lambda guard=guard: guard.backend.ledger.live == 0)
            assert guard.backend.ledger.fresh.held == guard.backend.ledger.violations == 0


async def test_what_the_gauge_has_shown_counts_once() -> None:
    """After a look that shows what both have sent, what is left is shared anew."""
    stub = Stub(page=exposition(0.0), answer=hold)
    async with running_stub(stub), guarding(stub, share=0.5) as one, guarding(stub, share=0.5) as other:
        first = [task for guard in (one, other) for task in await burst(guard)]
        stub.page = exposition(0.46)  # 23 blocks of prompt each
        for guard in (one, other):
            await guard.clock.advance(0.5)
            await guard.scrape()
            assert guard.usage("projected") == pytest.approx(0.46)
        before = one.backend.ledger.live
        second = await burst(one)
        assert one.backend.ledger.live > before
        for task in (*first, *second):
            task.cancel()
        await asyncio.gather(*first, *second, return_exceptions=True)
