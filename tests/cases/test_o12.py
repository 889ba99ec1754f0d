"""O-12: no output cap in the request."""

from typing import Any

import pytest

from tests.kit.guard import Guard, guarding
from tests.kit.stub import Stub, exposition, running_stub

pytestmark = pytest.mark.anyio

SETTINGS: dict[str, Any] = {"tokens": {"assumed_output_tokens": 256}, "degrade": {"max_output_tokens": 256}}


def predicted_blocks(guard: Guard) -> int:
    return [line["predicted_blocks"] for line in guard.logs if line["event"] == "decision"][-1]


async def test_an_omitted_cap_is_reserved_for_as_the_route_resolves_it() -> None:
    """100 prompt tokens reserve the assumption in chat and 16 in completions; below tier 1 the body is untouched."""
    async with running_stub(Stub(tokens=100, context_tokens=2048)) as stub, guarding(stub, **SETTINGS) as guard:
        for send, fields, blocks in (
            (guard.chat, {}, 23),
            (guard.complete, {}, 8),
            (guard.chat, {"max_completion_tokens": 50}, 10),
        ):
            answer = await send("a prompt", **fields)
            assert answer.status_code == 200
            assert predicted_blocks(guard) == blocks
            assert stub.hits[-1].body == answer.request.content


async def test_a_tier_makes_the_cap_explicit() -> None:
    """At 0.75 chat goes out with a cap of 256 in every cap field that was there, or in one of its own."""
    # 1000 blocks: the case states no capacity, and of 100 blocks 75 and these 23 would reach the refusal threshold.
    stub = Stub(page=exposition(0.75, blocks=1000), tokens=100, context_tokens=2048)
    async with running_stub(stub), guarding(stub, **SETTINGS) as guard:
        for asked, sent in (
            ({}, {"max_tokens": 256}),
            ({"max_tokens": 1024}, {"max_tokens": 256}),
            ({"max_completion_tokens": 1024}, {"max_completion_tokens": 256}),
            ({"max_tokens": 2000, "max_completion_tokens": 1024}, {"max_tokens": 256, "max_completion_tokens": 256}),
            ({"max_completion_tokens": 50}, {"max_completion_tokens": 50}),
        ):
            answer = await guard.chat("a prompt", **asked)
            assert answer.status_code == 200
            assert answer.headers["x-kvguard-tier"] == "1"
            assert ("x-kvguard-degraded" in answer.headers) == (asked != sent)
            assert {name: value for name, value in stub.hits[-1].json.items() if name.startswith("max_")} == sent
