"""A whole kvguard whose requests may wait for blocks: what clients, metrics and the ledger see."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.kit.guard import COMPLETIONS, Guard, guarding
from tests.kit.raw import raw_client
from tests.kit.stub import Call, Stub, completion, running_stub

pytestmark = pytest.mark.anyio

ROOM = {"max_requests": 2, "max_seconds": 2.0}
# A backend of a hundred blocks: two such prompts do not fit.
LONG, SHORT = [1] * 16 * 60, [1] * 16


class Held:
    """A stub that answers a request when it is let go."""

    def __init__(self) -> None:
        self.stub = Stub(answer=self._answer)
        self.prompts: list[int] = []
        self._gates: list[asyncio.Event] = []

    async def _answer(self, call: Call) -> None:
        gate = asyncio.Event()
        self.prompts.append(len(call.hit.json["prompt"]))
        self._gates.append(gate)
        await gate.wait()
        await call.reply(200, completion())

    def let_go(self, number: int) -> None:
        self._gates[number].set()


def waiting(guard: Guard) -> float | None:
    return guard.metric("kvguard_waiting_requests")


def waits(guard: Guard, end: str) -> float | None:
    return guard.metric("kvguard_wait_seconds_count", end=end)


async def asked(guard: Guard, prompt: list[int] = LONG, **fields: Any) -> asyncio.Task[httpx.Response]:
    """Send a request and let kvguard take it as far as it goes."""
    return asyncio.ensure_future(guard.complete(prompt, max_tokens=16, **fields))


async def test_a_request_waits_until_it_fits() -> None:
    """It reaches the backend when the answer before it has ended, and its client sees nothing but a later answer."""
    held = Held()
    async with running_stub(held.stub) as stub, guarding(stub, waiting=ROOM) as guard:
        first = await asked(guard)
        await guard.until(lambda: held.prompts == [960])
        second = await asked(guard)
        await guard.until(lambda: waiting(guard) == 1)
        await guard.advance(0.5)
        assert held.prompts == [960]
        held.let_go(0)
        await guard.until(lambda: len(held.prompts) == 2)
        held.let_go(1)
        assert [(await each).status_code for each in (first, second)] == [200, 200]
        assert (waiting(guard), waits(guard, "admitted"), guard.backend.ledger.live) == (0, 1, 0)
        assert guard.metric("kvguard_wait_seconds_sum", end="admitted") == pytest.approx(0.5)


async def test_without_a_room_a_full_cache_is_a_503_at_once() -> None:
    """That is the default."""
    held = Held()
    async with running_stub(held.stub) as stub, guarding(stub) as guard:
        first = await asked(guard)
        await guard.until(lambda: len(held.prompts) == 1)
        refused = await guard.complete(LONG, max_tokens=16)
        assert (refused.status_code, refused.headers["x-kvguard-reason"]) == (503, "saturated")
        assert waits(guard, "timed_out") == 0
        held.let_go(0)
        await first


async def test_who_has_waited_long_enough_is_told_when_to_come_back() -> None:
    """503 with a reason of its own and Retry-After."""
    held = Held()
    async with running_stub(held.stub) as stub, guarding(stub, waiting=ROOM) as guard:
        first = await asked(guard)
        await guard.until(lambda: len(held.prompts) == 1)
        second = await asked(guard)
        await guard.until(lambda: waiting(guard) == 1)
        await guard.advance(2.0)
        refused = await second
        assert (refused.status_code, refused.headers["x-kvguard-reason"]) == (503, "queue_timeout")
        assert int(refused.headers["retry-after"]) >= 1
        assert (waiting(guard), waits(guard, "timed_out")) == (0, 1)
        held.let_go(0)
        await first


async def test_waiting_is_no_refusal() -> None:
    """However often a waiter is asked about, demand counts it as nothing, and nobody is told to come back later."""
    held = Held()
    async with running_stub(held.stub) as stub, guarding(stub, waiting=ROOM) as guard:
        first = await asked(guard)
        await guard.until(lambda: len(held.prompts) == 1)
        second = await asked(guard)
        await guard.until(lambda: waiting(guard) == 1)
        for _ in range(5):
            guard.service.controller.on_freed()
        assert guard.backend.refused_blocks.value(guard.clock.now()) == 0
        assert guard.backend.turn_seconds(0.0, latest_seconds=30.0, now=guard.clock.now()) == 0.0
        for number in range(2):
            await guard.until(lambda number=number: len(held.prompts) == number + 1)
            held.let_go(number)
        assert [(await each).status_code for each in (first, second)] == [200, 200]


async def test_only_so_many_wait() -> None:
    """The third is refused as saturated, before its body is read if the tier already says so."""
    held = Held()
    async with running_stub(held.stub) as stub, guarding(stub, waiting=ROOM) as guard:
        running = [await asked(guard)]
        await guard.until(lambda: len(held.prompts) == 1)
        for number in (1, 2):
            running.append(await asked(guard))
            await guard.until(lambda number=number: waiting(guard) == number)
        refused = await guard.complete(LONG, max_tokens=16)
        assert (refused.status_code, refused.headers["x-kvguard-reason"]) == (503, "saturated")
        for number in range(3):
            await guard.until(lambda number=number: len(held.prompts) == number + 1)
            held.let_go(number)
        assert [(await each).status_code for each in running] == [200] * 3


async def test_a_client_that_leaves_gives_up_its_place() -> None:
    """Nothing of it reaches the backend, and nothing stays reserved."""
    held = Held()
    async with running_stub(held.stub) as stub, guarding(stub, waiting=ROOM) as guard:
        first = await asked(guard)
        await guard.until(lambda: len(held.prompts) == 1)
        async with raw_client(guard.service.port) as client:
            await client.request(COMPLETIONS, {"model": "tiny", "max_tokens": 16, "prompt": LONG})
            await guard.until(lambda: waiting(guard) == 1)
        await guard.until(lambda: waiting(guard) == 0)
        held.let_go(0)
        await first
        assert (held.prompts, waits(guard, "left"), guard.backend.ledger.live) == ([960], 1, 0)


async def test_a_short_request_does_not_overtake() -> None:
    """Although it would fit beside the running one, it goes after those of its class that came before."""
    held = Held()
    async with running_stub(held.stub) as stub, guarding(stub, waiting=ROOM) as guard:
        running = [await asked(guard)]
        await guard.until(lambda: len(held.prompts) == 1)
        running.append(await asked(guard))
        await guard.until(lambda: waiting(guard) == 1)
        running.append(await asked(guard, SHORT))
        await guard.until(lambda: waiting(guard) == 2)
        held.let_go(0)
        await guard.until(lambda: len(held.prompts) == 3)
        assert held.prompts == [960, 960, 16]
        for number in (1, 2):
            held.let_go(number)
        assert [(await each).status_code for each in running] == [200] * 3


async def test_classes_go_by_rank_and_tenants_by_turn() -> None:
    """A critical request goes first, then two tenants in turn, whoever sent more before."""
    held = Held()
    keys = {"a": "tenant-a", "b": "tenant-b", "c": "tenant-c"}
    identity = {
        "tenant_header": "x-tenant",
        "priority_header": "x-priority",
        "trusted_proxies": ["127.0.0.1"],
    }
    room = {"max_requests": 9, "max_seconds": 9.0}
    async with running_stub(held.stub) as stub, guarding(stub, waiting=room, identity=identity) as guard:
        running = [await asked(guard)]
        await guard.until(lambda: len(held.prompts) == 1)
        order = (("a", "normal", 61), ("a", "normal", 62), ("b", "normal", 63), ("c", "critical", 64))
        for number, (key, priority, blocks) in enumerate(order, 1):
            headers = {"x-tenant": keys[key], "x-priority": priority}
            running.append(await asked(guard, [1] * 16 * blocks, headers=headers))
            await guard.until(lambda number=number: waiting(guard) == number)
        for number in range(5):
            await guard.until(lambda number=number: len(held.prompts) == number + 1)
            held.let_go(number)
        assert [(await each).status_code for each in running] == [200] * 5
        assert [prompt // 16 for prompt in held.prompts] == [60, 64, 61, 63, 62]
