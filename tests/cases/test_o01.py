"""O-01: the occupancy gauge changed its name."""

import pytest

from tests.kit.guard import guarding
from tests.kit.stub import Stub, exposition, running_stub

pytestmark = pytest.mark.anyio

OLD = exposition(0.5, name="gpu_cache_usage_perc")
NEW = exposition(0.5, name="kv_cache_usage_perc")
BOTH = exposition(0.2, name="gpu_cache_usage_perc") + 'vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.5\n'
NEITHER = exposition()


async def test_either_name_is_read_and_the_newer_is_preferred() -> None:
    """A page with the old name, the new name, or the new one beside an old one that differs says half full."""
    async with running_stub() as stub, guarding(stub) as guard:
        for stub.page in (OLD, NEW, BOTH):
            await guard.scrape()
            assert guard.usage("observed", engine="0") == 0.5
            assert guard.usage("projected") == 0.5
            assert guard.telemetry() == "fresh"


async def test_the_operator_may_name_the_gauge() -> None:
    """A name in the settings replaces the known ones."""
    page = BOTH + 'my:kv_usage{engine="0"} 0.8\n'
    named = {"kv_usage_metric": "my:kv_usage"}
    async with running_stub(Stub(page=page)) as stub, guarding(stub, backend=named) as guard:
        assert guard.usage("observed", engine="0") == 0.8


@pytest.mark.parametrize(
    ("policy", "status", "reason"), [("ledger", 200, None), ("open", 200, None), ("closed", 503, "no_metrics")]
)
async def test_a_gauge_that_vanishes_is_missing_and_not_zero(policy: str, status: int, reason: str | None) -> None:
    """Once the last value is too old, no usage is exported, the state is missing and requests follow its policy."""
    async with running_stub(Stub(page=NEW)) as stub, guarding(stub, telemetry={"when_blind": policy}) as guard:
        stub.page = NEITHER
        await guard.scrape()
        await guard.advance(5.1)
        assert guard.usage("observed", engine="0") is None
        assert guard.telemetry() == "missing"
        answer = await guard.complete([1] * 16)
        assert answer.status_code == status
        assert answer.headers.get("x-kvguard-reason") == reason


async def test_a_gauge_that_never_was_is_missing_at_once() -> None:
    """A first page without a gauge exports no usage observed, and says missing."""
    async with running_stub(Stub(page=NEITHER)) as stub, guarding(stub) as guard:
        assert guard.usage("observed", engine="0") is None
        assert guard.telemetry() == "missing"
