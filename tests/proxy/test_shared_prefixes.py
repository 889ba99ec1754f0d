"""Chats that begin with the same system prompt, through a whole kvguard: held once where the engine shares prefixes."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.kit.guard import CHAT, Guard, guarding
from tests.kit.stub import Stub, exposition, hold_until, running_stub

pytestmark = pytest.mark.anyio

# About four characters a token; with a question and the template 4,100 tokens, 257 blocks of an engine's 1,000.
SYSTEM = "Answer in whole sentences. " * 600
TOKENS, BLOCKS, CHATS = 4100, 1000, 10


def chat(number: int, salt: str | None) -> dict[str, Any]:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"What is {number}?"}]
    salted = {} if salt is None else {"cache_salt": salt}
    return {"model": "tiny", "messages": messages, "max_tokens": 16, "stream": True, **salted}


async def admitted(caching: bool | None, salts: list[str | None], **telemetry: Any) -> tuple[int, int]:
    """How many of these chats, one after the other, are let in while all before are held; and blocks held then."""
    released = asyncio.Event()
    page = exposition(0.0, blocks=BLOCKS, prefix_caching=caching)
    stub = Stub(page=page, tokens=TOKENS, context_tokens=32_768, answer=hold_until(released))
    async with running_stub(stub), guarding(stub, telemetry=telemetry) as guard:
        tasks = [asyncio.ensure_future(guard.client.post(CHAT, json=chat(n, salt))) for n, salt in enumerate(salts)]
        await guard.until(lambda: guard.backend.ledger.live + sum(task.done() for task in tasks) == len(tasks))
        held = guard.backend.ledger.held_blocks
        released.set()
        answers = await asyncio.gather(*tasks)
        await guard.until(lambda: guard.backend.ledger.live == 0)
        assert_empty(guard, answers)
    return sum(answer.status_code == 200 for answer in answers), held


def assert_empty(guard: Guard, answers: list[httpx.Response]) -> None:
    ledger = guard.backend.ledger
    assert (ledger.held_blocks, ledger.shared_blocks, ledger.violations) == (0, 0, 0)
    assert {answer.status_code for answer in answers} <= {200, 503}


@pytest.mark.parametrize("salt", [None, "tenant"])
async def test_chats_that_begin_alike_fit_together(salt: str | None) -> None:
    """All ten are let in at once, for less than the blocks of three."""
    count, held = await admitted(True, [salt] * CHATS)
    assert count == CHATS
    assert 257 < held < 3 * 257


@pytest.mark.parametrize(
    ("caching", "salts", "telemetry"),
    [
        (True, [str(number) for number in range(CHATS)], {}),
        (True, [None] * CHATS, {"count_shared_once": False}),
        (False, [None] * CHATS, {}),
        (None, [None] * CHATS, {}),
    ],
)
async def test_others_count_in_full(caching: bool | None, salts: list[str | None], telemetry: dict[str, Any]) -> None:
    """Each with a salt of its own, against the operator's word, or where no cache is known to be on: three fit."""
    assert await admitted(caching, salts, **telemetry) == (3, 3 * 257)
