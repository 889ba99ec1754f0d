"""O-04: unknown is not zero and not full."""

import asyncio
import socket

import pytest

from tests.kit.guard import Guard, guarding
from tests.kit.stub import Stub, exposition, hold_until, running_stub

pytestmark = pytest.mark.anyio


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def refusal(guard: Guard, statuses: set[int]) -> str:
    """The code in the body of a refused request, once header, log and metric have been seen to agree with it."""
    answer = await guard.complete([1] * 16)
    assert answer.status_code in statuses
    code = answer.json()["error"]["code"]
    assert answer.headers["x-kvguard-reason"] == code
    assert guard.logs[-1]["reason"] == code
    tier, outcome = str(guard.logs[-1]["tier"]), guard.logs[-1]["outcome"]
    labels = {"route": "/v1/completions", "outcome": outcome, "tier": tier, "reason": code, "mode": "enforce"}
    assert guard.metric("kvguard_requests_total", **labels) == 1
    return code


@pytest.mark.parametrize("policy", ["ledger", "closed"])
async def test_no_backend_no_gauge_and_no_room_are_three_answers(policy: str) -> None:
    """A backend that is not there, one without metrics and a full one refuse with three different codes."""
    stub = Stub(port=unused_port(), page=exposition(blocks=None))
    async with guarding(stub, telemetry={"when_blind": policy}) as guard:
        codes = [await refusal(guard, {502, 503})]
        async with running_stub(stub):
            await guard.scrape()
            codes.append(await refusal(guard, {503}))
            stub.page = exposition(0.99)
            await guard.scrape()
            codes.append(await refusal(guard, {503}))
            assert stub.hits == []
    assert codes == ["backend_unreachable", "no_metrics", "saturated"]


@pytest.mark.parametrize("policy", ["ledger", "closed"])
async def test_a_gauge_without_a_capacity_is_no_metrics(policy: str) -> None:
    """A ratio of an unknown number of blocks cannot be decided on, however fresh it is."""
    stub = Stub(page=exposition(0.99, blocks=None))
    async with running_stub(stub), guarding(stub, telemetry={"when_blind": policy}) as guard:
        assert await refusal(guard, {503}) == "no_metrics"
        assert stub.hits == []


async def test_without_metrics_a_request_may_pass_by_policy() -> None:
    """Under the open policy a backend without metrics is used; one that is not there still answers as unreachable."""
    stub = Stub(port=unused_port(), page=exposition(blocks=None))
    async with guarding(stub, telemetry={"when_blind": "open"}) as guard:
        answer = await guard.complete([1] * 16)
        assert answer.status_code == 502
        assert answer.json()["error"]["code"] == "backend_unreachable"
        async with running_stub(stub):
            await guard.scrape()
            assert (await guard.complete([1] * 16)).status_code == 200


async def test_what_passed_without_metrics_does_not_look_like_more_than_it_is() -> None:
    """A request admitted before the block size was known counts in blocks once it is, and the cache is not full."""
    stub = Stub(page=exposition(blocks=None))
    async with running_stub(stub), guarding(stub, telemetry={"when_blind": "open"}) as guard:
        released = asyncio.Event()
        stub.answer = hold_until(released)
        early = asyncio.ensure_future(guard.complete([1] * 160))
        await stub.until(lambda: len(stub.hits) == 1)
        stub.page = exposition(0.10)
        await guard.advance(0.1)
        await guard.scrape()
        assert guard.usage("projected") == pytest.approx(0.10)
        released.set()
        assert (await guard.complete([1] * 16)).status_code == 200
        assert (await early).status_code == 200
