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


async def test_offered_tokens_are_those_admitted_trimmed_and_refused() -> None:
    """A whole request, one that is trimmed, one refused for its size and one refused unread: all that was asked for is
    counted, and each token as what became of it.
    """
    async with running_stub(Stub(page=exposition(0.1))) as stub, guarding(stub) as guard:
        for ratio, tokens, status in ((0.1, 100, 200), (0.72, 100, 200), (0.94, 64, 503), (0.97, 100, 503)):
            stub.page = exposition(ratio)
            await guard.scrape()
            answer = await guard.complete([1] * 20, max_tokens=tokens)
            assert answer.status_code == status
        kinds = ("prompt", "requested", "trimmed", "rejected")
        counted = {kind: guard.metric("kvguard_tokens_total", kind=kind) for kind in kinds}
        usual = (120 + 120 + 84) / 3
        assert counted == {"prompt": 40, "requested": 200, "trimmed": 36, "rejected": pytest.approx(84 + usual)}
