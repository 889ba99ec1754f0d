"""O-22: meshes retry 503 by themselves."""

import pytest

from tests.kit.guard import COMPLETIONS, guarding
from tests.kit.stub import Call, Stub, exposition, refusing_stub, running_stub

pytestmark = pytest.mark.anyio

STATUS_429 = {"status": {"saturated": 429}}


async def hang_up(call: Call) -> None:
    """Read the request and close without a byte."""
    call.closing = True


async def test_the_status_of_saturation_is_a_setting() -> None:
    """With 429 set, refusals before and after reading the body are 429 with Retry-After; the reason stays."""
    async with running_stub() as stub, guarding(stub, reject=STATUS_429) as guard:
        for gauge in (0.94, 0.97):
            stub.page = exposition(gauge)
            await guard.scrape()
            answer = await guard.complete([1] * 16, max_tokens=16)
            assert answer.status_code == 429
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.headers["x-kvguard-reason"] == "saturated"
            assert answer.json()["error"]["code"] == "saturated"
        labels = {"route": COMPLETIONS, "outcome": "rejected", "tier": "3", "mode": "enforce"}
        assert guard.metric("kvguard_requests_total", reason="saturated", **labels) == 2
    assert not stub.hits


async def test_a_dead_backend_keeps_its_own_status() -> None:
    """With 429 set for saturation, a backend that refuses connections is still 502."""
    with refusing_stub() as stub:
        async with guarding(stub, reject=STATUS_429) as guard:
            answer = await guard.complete([1])
    assert answer.status_code == 502
    assert answer.json()["error"]["code"] == "backend_unreachable"


async def test_a_backend_that_hangs_up_keeps_its_own_status() -> None:
    """With 429 set for saturation, a backend that closes without an answer is still 502."""
    async with running_stub(Stub(answer=hang_up)) as stub, guarding(stub, reject=STATUS_429) as guard:
        answer = await guard.complete([1])
    assert answer.status_code == 502
    assert answer.json()["error"]["code"] == "backend_unreachable"
