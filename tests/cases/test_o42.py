"""O-42: try it before it bites: shadow mode."""

from dataclasses import replace
from typing import Any

import pytest

from kvguard.admission.tiers import Tier
from tests.kit.guard import COMPLETIONS, Guard, guarding
from tests.kit.stub import Call, Stub, answer_at_once, exposition, running_stub

pytestmark = pytest.mark.anyio

TRUSTED = {"priority_header": "x-priority", "trusted_proxies": ["127.0.0.1"]}
BODY = b'{ "model":"tiny", "prompt":[1,1,1,1], "max_tokens" : 100,\n "n":2, "use_beam_search":true }'


def requests(guard: Guard, outcome: str, tier: Tier, reason: str, mode: str) -> float | None:
    labels = {"route": COMPLETIONS, "outcome": outcome, "tier": str(int(tier)), "reason": reason, "mode": mode}
    return guard.metric("kvguard_requests_total", **labels)


async def send(guard: Guard, **headers: str) -> int:
    """The request whose bytes no JSON writer would make again."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return (await guard.client.post(COMPLETIONS, content=BODY, headers=named)).status_code


@pytest.mark.parametrize(
    "shadow",
    [
        {"mode": "shadow"},
        {"backend": {"mode": "shadow"}},
        {"classes": [{"name": "normal", "shadow": True}]},
    ],
)
@pytest.mark.parametrize(
    ("gauge", "outcome", "tier", "reason"),
    [
        (0.97, "rejected", Tier.REJECT, "saturated"),
        (0.75, "degraded", Tier.TRIM, ""),
        (0.10, "admitted", Tier.NORMAL, ""),
    ],
)
async def test_what_would_be_done_is_reported_and_nothing_is_done(
    shadow: dict[str, Any], gauge: float, outcome: str, tier: Tier, reason: str
) -> None:
    """Every request passes byte for byte, whatever the load; what it would have met is counted and logged apart."""
    async with running_stub(Stub(page=exposition(gauge))) as stub, guarding(stub, **shadow) as guard:
        answer = await guard.client.post(COMPLETIONS, content=BODY)
        assert (answer.status_code, answer.headers["x-kvguard-tier"]) == (200, "0")
        assert "x-kvguard-degraded" not in answer.headers
        assert [hit.body for hit in stub.hits] == [BODY]
        assert requests(guard, outcome, tier, reason, "shadow") == 1
        assert requests(guard, "rejected", Tier.REJECT, "saturated", "enforce") == 0
        for kind in ("trimmed", "rejected"):
            assert guard.metric("kvguard_tokens_total", kind=kind) == 0
        assert guard.metric("kvguard_retry_after_seconds_count") == 0
        (line,) = [line for line in guard.logs if line["event"] == "decision"]
        assert (line["mode"], line["outcome"], line["tier"], line.get("reason", "")) == (
            "shadow",
            outcome,
            tier,
            reason,
        )
        assert ("changes" in line) is (outcome == "degraded")
        assert guard.backend.refused_blocks.value(guard.clock.now()) == 0


async def test_only_what_is_in_shadow_passes() -> None:
    """One class is tried out while another is refused; a backend may be enforced although the rest is not."""
    classes = [{"name": "new", "shadow": True}]
    stub = Stub(page=exposition(0.97))
    async with running_stub(stub), guarding(stub, identity=TRUSTED, classes=classes) as guard:
        assert [await send(guard), await send(guard, x_priority="new")] == [503, 200]
    for mode, status, shown in (("enforce", 503, 0), ("shadow", 200, 1)):
        async with running_stub(stub), guarding(stub, mode="shadow", backend={"mode": mode}) as guard:
            assert await send(guard) == status
            assert guard.metric("kvguard_shadow_mode", backend="b0") == shown


async def test_a_full_backend_in_shadow_takes_what_a_full_enforced_one_refuses() -> None:
    """What would pass somewhere goes there first; only if nobody has room the one in shadow gets it."""
    full, shadowed = Stub(page=exposition(0.97)), Stub(page=exposition(0.98))
    async with running_stub(full), running_stub(shadowed), guarding(full, shadowed) as guard:
        controller = guard.service.controller
        controller.governance = replace(controller.governance, shadowed=frozenset({"b1"}))
        assert await send(guard) == 200
        assert (len(full.hits), len(shadowed.hits)) == (0, 1)
        full.page = exposition(0.10)
        await guard.scrape()
        assert await send(guard) == 200
        assert (len(full.hits), len(shadowed.hits)) == (1, 1)


async def test_the_ledger_holds_what_was_not_degraded() -> None:
    """The reservation is that of the unchanged request, and ends with it."""
    async with running_stub(Stub(page=exposition(0.75))) as stub, guarding(stub, mode="shadow") as guard:
        seen = []

        async def look(call: Call) -> None:
            seen.append(guard.backend.ledger.reserved_blocks)
            await answer_at_once(call)

        stub.answer = look
        assert await send(guard) == 200
        assert seen == [2 * 7]
        assert guard.backend.ledger.live == 0


async def test_what_cannot_be_read_is_refused_all_the_same() -> None:
    """A body that is no request cannot be counted, and draining is no policy."""
    async with running_stub() as stub, guarding(stub, mode="shadow") as guard:
        assert (await guard.client.post(COMPLETIONS, content=b"{")).status_code == 400
        guard.service.controller.draining = True
        assert await send(guard) == 503
        assert stub.hits == []
