"""A whole kvguard in front of the TGI twin, with four times as many clients at once as its cache holds."""

import asyncio
from types import SimpleNamespace

import httpx
import pytest

from tests.kit.guard import Guard, guarding

pytestmark = pytest.mark.anyio

# Sixteen permits, which twice as many clients would exceed; a cache for about eight of their requests.
TWIN = "sim+tgi://?max_batch_total_tokens=2001&max_total_tokens=512&max_batch_prefill_tokens=512&max_concurrent_requests=16"
BODY = {"inputs": "load " * 60, "parameters": {"max_new_tokens": 160}}


async def answered(guard: Guard, calls: list[asyncio.Task[httpx.Response]]) -> list[httpx.Response]:
    """Let time pass until every call has its answer."""
    while not all(call.done() for call in calls):
        await guard.advance(0.1)
    return [call.result() for call in calls]


@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
async def test_overload_is_refused_in_order_and_tgi_never_has_to(path: str) -> None:
    """All three tiers act, nothing but 200 and an orderly 503 comes back, the cache is never promised twice, and the
    ledger is empty in the end.
    """
    highest = 0.0
    async with guarding(SimpleNamespace(url=TWIN)) as guard:
        answers: list[httpx.Response] = []
        for _ in range(3):
            calls = []
            for _ in range(11):
                calls.append(asyncio.create_task(guard.client.post(path, json=BODY)))
                await guard.advance(0.05)
                highest = max(highest, guard.usage("projected") or 0.0)
            answers += await answered(guard, calls)
        await guard.until(lambda: guard.backend.ledger.live == 0)
        await guard.scrape()
        assert guard.backend.ledger.held_blocks == guard.backend.ledger.violations == 0
        assert guard.usage("observed", engine="0") == 0.0
        entered = {tier: guard.metric("kvguard_tier_transitions_total", backend="b0", tier=tier) for tier in "12"}
    assert {answer.status_code for answer in answers} == {200, 503}
    assert {answer.headers["x-kvguard-tier"] for answer in answers} == {"0", "1", "2", "3"}
    assert all(entered.values())
    assert highest < 0.95
    for answer in answers:
        if answer.status_code == 503:
            assert answer.json()["error_type"] == "overloaded"
            assert int(answer.headers["retry-after"]) >= 1


async def test_permits_are_kvguards_to_refuse() -> None:
    """Where the cache would hold many more, the seventeenth request is told when to come back, not 429."""
    twin = TWIN.replace("2001", "200000")
    async with guarding(SimpleNamespace(url=twin)) as guard:
        calls = []
        for _ in range(20):
            calls.append(asyncio.create_task(guard.client.post("/generate", json=BODY)))
            await guard.clock.settle()
        await guard.until(lambda: guard.backend.ledger.live == 16)
        answers = await answered(guard, calls)
    statuses = [answer.status_code for answer in answers]
    assert (statuses.count(200), statuses.count(503)) == (16, 4)
