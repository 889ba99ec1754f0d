"""O-07: thresholds flap."""

import pytest

from tests.kit.guard import Guard, guarding
from tests.kit.stub import Stub, exposition, running_stub

pytestmark = pytest.mark.anyio

# The background scrape stays out of the way: the test feeds every sample itself.
FED_BY_HAND = {"interval_seconds": 1000, "stale_after_seconds": 2000}


def changes(guard: Guard) -> list[tuple[str, str]]:
    return [(line["before"], line["after"]) for line in guard.logs if line["event"] == "tier"]


async def test_a_gauge_around_a_threshold_changes_the_tier_once() -> None:
    """Twenty samples of 0.84 and 0.86 enter tier 2 once and never leave it; 0.79 leaves it once."""
    async with (
        running_stub(Stub(page=exposition(0.84))) as stub,
        guarding(stub, telemetry=FED_BY_HAND, tiers={"exit_margin": 0.05, "min_dwell_seconds": 1}) as guard,
    ):
        tiers = []
        for sample in range(20):
            stub.page = exposition(0.84 if sample % 2 == 0 else 0.86)
            await guard.advance(2)
            await guard.scrape()
            tiers.append((await guard.complete([1], max_tokens=1)).headers["x-kvguard-tier"])
        assert set(tiers[1:]) == {"2"}
        assert changes(guard) == [("normal", "trim"), ("trim", "restrict")]
        stub.page = exposition(0.79)
        await guard.advance(2)
        await guard.scrape()
        assert changes(guard)[2:] == [("restrict", "trim")]
        assert guard.metric("kvguard_tier_transitions_total", backend="b0", tier="2") == 1
        assert guard.metric("kvguard_tier_transitions_total", backend="b0", tier="1") == 2


async def test_a_tier_is_kept_for_its_minimum_time() -> None:
    """However far the gauge falls, a tier is left only once its minimum time has passed."""
    async with (
        running_stub(Stub(page=exposition(0.86))) as stub,
        guarding(stub, telemetry=FED_BY_HAND, tiers={"min_dwell_seconds": 10}) as guard,
    ):
        stub.page = exposition(0.0)
        await guard.advance(9)
        await guard.scrape()
        assert guard.metric("kvguard_tier", backend="b0") == 2
        await guard.advance(1)
        await guard.scrape()
        assert guard.metric("kvguard_tier", backend="b0") == 0
