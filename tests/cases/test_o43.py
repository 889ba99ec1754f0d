"""O-43: shedding must not hide demand from the autoscaler."""

import pytest

from tests.admission.build import demand
from tests.kit.guard import guarding
from tests.kit.stub import Stub, exposition, running_stub

pytestmark = pytest.mark.anyio


async def test_what_is_refused_still_counts_as_demand() -> None:
    """Fifty refused requests of 32 tokens on a full cache of 1,600: demand above 1, and below once it is quiet."""
    async with running_stub(Stub(page=exposition(0.94))) as stub, guarding(stub) as guard:
        refused = [await guard.complete([1] * 16, max_tokens=16) for _ in range(50)]
        assert {answer.status_code for answer in refused} == {503}
        assert guard.metric("kvguard_tokens_total", kind="rejected") == 1600
        assert (guard.metric("kvguard_demand_ratio", backend="b0") or 0.0) > 1.0
        await guard.advance(60)
        await guard.scrape()
        assert (guard.metric("kvguard_demand_ratio", backend="b0") or 0.0) < 1.0


async def test_what_is_refused_unread_counts_as_what_such_requests_hold() -> None:
    """Once REJECT is in force nobody reads bodies; demand rises by the blocks of the requests in flight."""
    async with running_stub(Stub(page=exposition(0.0))) as stub, guarding(stub) as guard:
        backend, now = guard.backend, guard.clock.now()
        before = backend.refused_blocks.value(now)
        backend.reserve(demand(16 * 96, cap=1), now)
        answers = [await guard.complete([1] * 16, max_tokens=16) for _ in range(2)]
        assert {answer.headers.get("x-kvguard-reason") for answer in answers} == {"saturated"}
        assert backend.refused_blocks.value(now) - before >= 2 * 90
