"""O-26: trimming must be visible and must never break a valid request."""

import itertools
import json

import pytest

from tests.kit.dialects import DIALECTS, Dialect
from tests.kit.guard import CHAT, guarding
from tests.kit.stub import Stub, exposition, running_stub

pytestmark = pytest.mark.anyio

# A target of 256 whatever was asked for; the cache is large, so that the gauge alone makes the tier.
TARGET_256 = {"trim_factor": 1.0, "max_output_tokens": 256}
CAPS = [
    ({"max_tokens": 100}, {"max_tokens": 100}, None),
    ({"max_tokens": 256}, {"max_tokens": 256}, None),
    ({"max_tokens": 1024}, {"max_tokens": 256}, "max_tokens=1024->256"),
    ({}, {"max_tokens": 256}, "max_tokens=unset->256"),
    ({"max_completion_tokens": 1024}, {"max_completion_tokens": 256}, "max_completion_tokens=1024->256"),
]
FLOORS = [
    ({"max_tokens": 1024, "min_tokens": 400}, 400),
    ({"max_tokens": 300, "min_tokens": 300}, 300),
    ({"max_tokens": 65}, 64),
    ({"max_tokens": 64}, 64),
    ({"max_tokens": 8}, 8),
]


async def test_a_trim_lowers_the_cap_and_says_so() -> None:
    """At 0.75 caps above 256 become 256, and exactly then the answer's head names tier, field, old and new value."""
    async with (
        running_stub(Stub(page=exposition(0.75, blocks=100_000))) as stub,
        guarding(stub, degrade=TARGET_256) as guard,
    ):
        for (asked, forwarded, header), stream in itertools.product(CAPS, (False, True)):
            answer = await guard.chat(stream=stream, temperature=0.3, **asked)
            assert answer.status_code == 200
            assert answer.headers["x-kvguard-tier"] == "1"
            assert answer.headers.get("x-kvguard-degraded") == header
            messages = [{"role": "user", "content": "hi"}]
            rest = {"model": "tiny", "messages": messages, "stream": stream, "temperature": 0.3}
            rest |= {"stream_options": {"include_usage": True}} if stream else {}
            assert stub.hits[-1].json == {**rest, **forwarded}


@pytest.mark.parametrize("dialect", DIALECTS, ids=str)
async def test_a_trim_lowers_the_cap_of_every_route_by_its_name(dialect: Dialect) -> None:
    """At 0.75 and at 0.90 only the cap changes, where it is above 256 or open, and the head of the answer says it."""
    open_cap = [] if dialect.cap_required or "prompt" in dialect.prompt else [({}, 256, f"{dialect.cap}=unset->256")]
    caps = [({dialect.cap: 100}, 100, None), ({dialect.cap: 1024}, 256, f"{dialect.cap}=1024->256"), *open_cap]
    async with (
        running_stub(Stub(page=exposition(0.75, blocks=100_000), answer=dialect.answer)) as stub,
        guarding(stub, degrade=TARGET_256) as guard,
    ):
        for gauge, (asked, cap, header), stream in itertools.product((0.75, 0.9), caps, (False, True)):
            stub.page = exposition(gauge, blocks=100_000)
            await guard.scrape()
            body = dialect.body(stream=stream, temperature=0.3, **asked)
            answer = await guard.client.post(dialect.route, json=body)
            assert answer.status_code == 200
            assert answer.headers["x-kvguard-tier"] == ("1" if gauge < 0.85 else "2")
            assert answer.headers.get("x-kvguard-degraded") == header
            forwarded = {name: value for name, value in stub.hits[-1].json.items() if name != "stream_options"}
            assert forwarded == {**body, dialect.cap: cap}
        assert guard.backend.ledger.live == 0


async def test_a_trim_is_counted_by_its_kind() -> None:
    """After one trim of 1024 to 256 the counters show one degraded request and 768 trimmed tokens."""
    async with (
        running_stub(Stub(page=exposition(0.75, blocks=100_000))) as stub,
        guarding(stub, degrade=TARGET_256) as guard,
    ):
        await guard.chat(max_tokens=100)
        await guard.chat(max_tokens=1024)
        labels = {"route": CHAT, "outcome": "degraded", "tier": "1", "reason": "", "mode": "enforce"}
        assert guard.metric("kvguard_requests_total", **labels) == 1
        assert guard.metric("kvguard_tokens_total", kind="trimmed") == 768


async def test_a_trim_stops_at_the_floor_and_at_what_the_client_insists_on() -> None:
    """With a target below the floor of 64 no cap falls below the floor or `min_tokens`, and none ever rises."""
    async with (
        running_stub(Stub(page=exposition(0.75, blocks=100_000))) as stub,
        guarding(stub, degrade={"trim_factor": 0.01, "max_output_tokens": 256, "floor_tokens": 64}) as guard,
    ):
        for asked, cap in FLOORS:
            assert (await guard.chat(**asked)).status_code == 200
            assert stub.hits[-1].json["max_tokens"] == cap, asked


async def test_below_the_threshold_nothing_is_touched() -> None:
    """At 0.60 no header speaks of a degradation and the body reaches the backend byte for byte."""
    request = {"messages": [{"content": "hi", "role": "user"}], "x_unknown": 1.50}
    async with (
        running_stub(Stub(page=exposition(0.60, blocks=100_000))) as stub,
        guarding(stub, degrade=TARGET_256) as guard,
    ):
        for asked in ({"max_tokens": 1024}, {}):
            body = json.dumps({**request, **asked}, indent=3).encode()
            answer = await guard.client.post(CHAT, content=body, headers={"content-type": "application/json"})
            assert answer.status_code == 200
            assert "x-kvguard-degraded" not in answer.headers
            assert answer.headers["x-kvguard-tier"] == "0"
            assert stub.hits[-1].body == body


@pytest.mark.parametrize("dialect", DIALECTS, ids=str)
async def test_below_the_threshold_every_route_passes_byte_for_byte(dialect: Dialect) -> None:
    """At 0.60 the request reaches the backend, and the answer the client, as they were sent, streamed or not."""
    async with (
        running_stub(Stub(page=exposition(0.60, blocks=100_000), answer=dialect.answer)) as stub,
        guarding(stub, streams={"ask_usage": False}, degrade=TARGET_256) as guard,
    ):
        for stream in (False, True):
            body = json.dumps(dialect.body(stream=stream, x_unknown=1.5, **{dialect.cap: 1024}), indent=3).encode()
            answer = await guard.client.post(dialect.route, content=body, headers={"content-type": "application/json"})
            assert stub.hits[-1].body == body
            assert answer.content == (dialect.streamed() if stream else json.dumps(dialect.whole).encode())
            assert "x-kvguard-degraded" not in answer.headers
