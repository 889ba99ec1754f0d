"""O-15: beams as the engines really take them."""

import itertools
import json
from typing import Any

import httpx
import pytest

from tests.kit.guard import CHAT, COMPLETIONS, Guard, guarding
from tests.kit.stub import Stub, exposition, running_stub

pytestmark = pytest.mark.anyio

ROUTES = (COMPLETIONS, CHAT)
PROMPT_OF = {COMPLETIONS: {"prompt": [1]}, CHAT: {"messages": [{"role": "user", "content": "hi"}]}}
BEAM_SEARCH = {"use_beam_search": True, "n": 4, "temperature": 0}
NUM_BEAMS = {"num_beams": 4}
SAMPLING = {"n": 4, "temperature": 0.8}


def body_of(route: str, fields: dict[str, Any]) -> bytes:
    # Written with spaces, so that a body that was taken apart and put together again shows.
    return json.dumps({"model": "tiny", **PROMPT_OF[route], "max_tokens": 8, **fields}).encode()


async def post(guard: Guard, route: str, fields: dict[str, Any], *, tier: str) -> httpx.Response:
    answer = await guard.client.post(route, content=body_of(route, fields))
    assert answer.status_code == 200
    assert answer.headers["x-kvguard-tier"] == tier
    return answer


async def test_tier_2_takes_beams_away() -> None:
    """At 0.86 beams in any spelling reach the engine as one sequence, in a body otherwise as the client wrote it."""
    async with running_stub(Stub(page=exposition(0.86), tokens=1)) as stub, guarding(stub) as guard:
        for route in ROUTES:
            for fields, changed, announced in (
                (BEAM_SEARCH, {"use_beam_search": False, "n": 1}, "use_beam_search=true->false;n=4->1"),
                (NUM_BEAMS, {"num_beams": 1}, "num_beams=4->1"),
                ({"best_of": 4, "n": 2}, {"best_of": 2}, "best_of=4->2"),
            ):
                answer = await post(guard, route, fields, tier="2")
                assert answer.headers["x-kvguard-degraded"] == announced
                assert stub.hits[-1].json == {**json.loads(body_of(route, fields)), **changed}


async def test_sampling_several_answers_is_no_beam_search() -> None:
    """At 0.86 plain sampling with n is forwarded byte for byte."""
    async with running_stub(Stub(page=exposition(0.86), tokens=1)) as stub, guarding(stub) as guard:
        for route in ROUTES:
            answer = await post(guard, route, SAMPLING, tier="2")
            assert "x-kvguard-degraded" not in answer.headers
            assert stub.hits[-1].body == body_of(route, SAMPLING)


async def test_tier_1_leaves_sequences_alone() -> None:
    """At 0.80 beams and sampling alike are forwarded byte for byte."""
    async with running_stub(Stub(page=exposition(0.80), tokens=1)) as stub, guarding(stub) as guard:
        for route, fields in itertools.product(ROUTES, (BEAM_SEARCH, NUM_BEAMS, SAMPLING)):
            answer = await post(guard, route, fields, tier="1")
            assert "x-kvguard-degraded" not in answer.headers
            assert stub.hits[-1].body == body_of(route, fields)
