"""O-44: one tenant fills the cache."""

import asyncio
from collections import Counter

import pytest

from tests.kit.guard import guarding
from tests.kit.stub import Stub, exposition, hold, running_stub

pytestmark = pytest.mark.anyio

TRUSTED = {"tenant_header": "x-tenant", "priority_header": "x-priority", "trusted_proxies": ["127.0.0.1"]}


async def test_a_tenant_gets_no_more_than_its_share() -> None:
    """Of 60 requests of two blocks half a cache of a hundred takes 25; another tenant's first passes."""
    tenants = [{"name": "A", "max_share": 0.5}, {"name": "B", "max_share": 0.5}]
    async with running_stub() as stub, guarding(stub, identity=TRUSTED, tenants=tenants) as guard:
        stub.answer = hold
        headers = {"x-tenant": "A"}
        sent = [asyncio.ensure_future(guard.complete([1] * 16, max_tokens=16, headers=headers)) for _ in range(60)]
        refused: Counter = Counter()
        pending = set(sent)
        while refused.total() < 35:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            refused.update((task.result().status_code, task.result().headers["x-kvguard-reason"]) for task in done)
            assert all("retry-after" in task.result().headers for task in done)
        assert refused == {(429, "tenant_share"): 35}
        await stub.until(lambda: len(stub.hits) == 25)
        assert guard.metric("kvguard_tenant_blocks", backend="b0", tenant="A") == 50
        sent.append(asyncio.ensure_future(guard.complete([1] * 16, max_tokens=16, headers={"x-tenant": "B"})))
        await stub.until(lambda: len(stub.hits) == 26)
        for task in sent:
            task.cancel()
        await asyncio.gather(*sent, return_exceptions=True)
        await stub.until(lambda: stub.left == 26)
        await guard.until(lambda: guard.backend.ledger.live == 0)
        assert guard.backend.ledger.tenants == {}
        counted = {"tenant": "A", "priority": "normal", "outcome": "rejected", "mode": "enforce"}
        assert guard.metric("kvguard_caller_requests_total", **counted) == 35


@pytest.mark.parametrize(
    ("gauge", "low", "normal", "critical"),
    [(0.50, 200, 200, 200), (0.82, 503, 200, 200), (0.96, 503, 503, 200), (0.99, 503, 503, 503)],
)
async def test_low_priority_traffic_is_refused_first(gauge: float, low: int, normal: int, critical: int) -> None:
    """With its own REJECT at 0.80 a class is refused at a load that others still pass; the exempt always pass."""
    classes = [
        {"name": "low", "tiers": {"trim_at": 0.6, "restrict_at": 0.7, "reject_at": 0.80}},
        {"name": "critical", "tiers": {"reject_at": 0.98}},
        {"name": "exempt", "exempt": True},
    ]
    stub = Stub(page=exposition(gauge))
    async with running_stub(stub), guarding(stub, identity=TRUSTED, classes=classes) as guard:
        for name, status in (("low", low), ("normal", normal), ("critical", critical), ("exempt", 200)):
            answer = await guard.complete([1], max_tokens=1, headers={"x-priority": name})
            assert answer.status_code == status, name
        refused = [line for line in guard.logs if line["event"] == "decision" and line["outcome"] == "rejected"]
        assert [line["priority"] for line in refused] == [
            name for name, status in (("low", low), ("normal", normal), ("critical", critical)) if status == 503
        ]
