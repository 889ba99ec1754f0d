"""O-03: stale metrics turn an idle backend into a wall of errors."""

import asyncio

import pytest

from tests.kit.guard import Guard, guarding
from tests.kit.stub import Stub, broken, exposition, hold, hold_until, running_stub

pytestmark = pytest.mark.anyio

FULL = exposition(0.97)


async def scrapes_hang(stub: Stub, guard: Guard) -> None:
    """From now on the background scrape gets no answer."""
    stub.scrape = hold
    await guard.advance(0.5)
    await stub.until(lambda: stub.scraping == 1)


async def code_of_a_request(guard: Guard) -> tuple[int, str | None]:
    answer = await guard.complete([1] * 16)
    return answer.status_code, answer.json().get("error", {}).get("code")


@pytest.mark.parametrize(
    ("policy", "after"),
    [("ledger", (200, None)), ("open", (200, None)), ("closed", (503, "stale_metrics"))],
)
async def test_an_old_gauge_is_stale_and_not_full(policy: str, after: tuple[int, str | None]) -> None:
    """A full gauge refuses as saturated while it is fresh; once it is stale the policy for that state decides."""
    telemetry = {"when_blind": policy, "timeout_seconds": 30}
    async with running_stub(Stub(page=FULL)) as stub, guarding(stub, telemetry=telemetry) as guard:
        await scrapes_hang(stub, guard)
        await guard.advance(4.5)
        assert guard.telemetry() == "fresh"
        assert await code_of_a_request(guard) == (503, "saturated")
        await guard.advance(0.1)
        assert guard.telemetry() == "stale"
        assert guard.usage("observed", engine="0") is None
        assert await code_of_a_request(guard) == after


async def test_open_means_open() -> None:
    """Without a fresh gauge the open policy lets requests pass even where kvguard's own ledger is full."""
    async with running_stub() as stub, guarding(stub, telemetry={"when_blind": "open", "timeout_seconds": 30}) as guard:
        released = asyncio.Event()
        stub.answer = hold_until(released)
        await scrapes_hang(stub, guard)
        await guard.advance(5)
        sent = [asyncio.ensure_future(guard.complete([1] * 160, max_tokens=16)) for _ in range(12)]
        await stub.until(lambda: len(stub.hits) == 12)
        released.set()
        assert {answer.status_code for answer in await asyncio.gather(*sent)} == {200}


async def test_one_failed_scrape_changes_nothing() -> None:
    """A failure between two good scrapes moves neither the state, nor the usage, nor the tier, nor the answer."""
    async with running_stub(Stub(page=FULL)) as stub, guarding(stub) as guard:
        for answer_scrape in (None, broken, None):
            stub.scrape = answer_scrape
            await guard.scrape()
            assert guard.telemetry() == "fresh"
            assert guard.usage("observed", engine="0") == 0.97
            assert guard.metric("kvguard_tier", backend="b0") == 3
            assert await code_of_a_request(guard) == (503, "saturated")
        assert guard.metric("kvguard_scrape_failures_total", backend="b0") == 1


async def test_staleness_is_said_once() -> None:
    """However many scrapes fail while the gauge is stale, one warning names that state."""
    async with running_stub(Stub(page=FULL)) as stub, guarding(stub) as guard:
        stub.scrape = broken
        await guard.advance(5.1)
        for _ in range(5):
            await guard.scrape()
        said = [line for line in guard.logs if line["event"] == "telemetry" and line["state"] == "stale"]
        assert len(said) == 1
        assert said[0]["backend"] == "b0"
