"""O-02: data-parallel engines: the last series wins."""

import pytest

from tests.kit.guard import guarding
from tests.kit.stub import exposition, running_stub

pytestmark = pytest.mark.anyio

IN_ORDER = exposition(0.96, 0.10)
SWAPPED = "\n".join(reversed(IN_ORDER.splitlines())) + "\n"


async def test_the_worst_engine_decides_in_whatever_order_they_are_listed() -> None:
    """One engine at 0.96 refuses requests though the other is at 0.10, and both are exported."""
    async with running_stub() as stub, guarding(stub) as guard:
        for stub.page in (IN_ORDER, SWAPPED):
            await guard.scrape()
            answer = await guard.complete([1] * 16)
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "saturated"
            assert guard.usage("projected") == pytest.approx(0.96)
            assert guard.usage("observed", engine="0") == 0.96
            assert guard.usage("observed", engine="1") == 0.10
        assert stub.hits == []


async def test_the_mean_is_an_option() -> None:
    """Under the mean rule the same pool is 0.53 full in either order and a request passes unchanged."""
    async with running_stub() as stub, guarding(stub, telemetry={"engine_rule": "mean"}) as guard:
        for stub.page in (IN_ORDER, SWAPPED):
            await guard.scrape()
            assert guard.usage("projected") == pytest.approx(0.53)
            answer = await guard.complete([1] * 16)
            assert answer.status_code == 200
            assert answer.headers["x-kvguard-tier"] == "0"
            await guard.advance(1)
