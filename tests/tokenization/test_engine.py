"""The engine's own tokenizer over the wire."""

import asyncio
import json

import msgspec
import pytest

from kvguard.errors import UpstreamBroken
from kvguard.tokenization.counter import CountFailed
from kvguard.tokenization.engine import MAX_OPEN, MAX_PARALLEL, EngineCounter

pytestmark = pytest.mark.anyio
MODEL = {"model": msgspec.Raw(b'"m"')}


async def test_each_text_is_asked_as_a_prompt_of_the_model() -> None:
    """The counts come back in the order of the texts, however many there are."""
    asked = []
    running = most = 0

    async def post(path: str, body: bytes, model: str | None) -> tuple[int, bytes]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        asked.append((path, json.loads(body)))
        assert model == "m"
        turn = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(turn.set_result, None)
        await turn
        running -= 1
        return 200, json.dumps({"count": len(json.loads(body)["prompt"]), "tokens": []}).encode()

    texts = tuple("x" * size for size in range(1, 20))
    counts = await EngineCounter(post, timeout_seconds=5).count_text(texts, MODEL)
    assert counts == tuple(range(1, 20))
    assert {path for path, _ in asked} == {"/tokenize"}
    assert asked[0][1] == {"model": "m", "prompt": "x"}
    assert most == MAX_PARALLEL


async def test_a_conversation_is_passed_on_as_it_came() -> None:
    """Every field the template may look at reaches the engine byte for byte."""
    bodies = []

    async def post(path: str, body: bytes, model: str | None) -> tuple[int, bytes]:
        bodies.append(body)
        return 200, b'{"count": 7}'

    chat = {"messages": msgspec.Raw(b'[{"content": "\\u00e9"}]'), "tools": msgspec.Raw(b"[1e2]")}
    assert await EngineCounter(post, timeout_seconds=5).count_chats((chat,), MODEL) == (7,)
    assert bodies == [b'{"model":"m","messages":[{"content": "\\u00e9"}],"tools":[1e2]}']
    assert await EngineCounter(post, timeout_seconds=5).count_chats((chat,) * 20, MODEL) == (7,) * 20


@pytest.mark.parametrize(
    ("status", "body"), [(404, b'{"count": 1}'), (200, b"<html>"), (200, b"{}"), (200, b'{"count": "many"}')]
)
async def test_any_other_answer_is_a_failed_count(status: int, body: bytes) -> None:
    """An answer that is not a count never becomes a number."""

    async def post(path: str, _: bytes, model: str | None) -> tuple[int, bytes]:
        return status, body

    with pytest.raises(CountFailed):
        await EngineCounter(post, timeout_seconds=5).count_text(("a",), MODEL)


async def test_a_dead_or_silent_engine_is_a_failed_count() -> None:
    """Neither a broken connection nor silence past the deadline reaches the request as an error."""

    async def broken(path: str, _: bytes, model: str | None) -> tuple[int, bytes]:
        raise UpstreamBroken("gone")

    async def silent(path: str, _: bytes, model: str | None) -> tuple[int, bytes]:
        await asyncio.Event().wait()
        raise AssertionError

    for post, seconds in ((broken, 5), (silent, 0.01)):
        with pytest.raises(CountFailed):
            await EngineCounter(post, timeout_seconds=seconds).count_text(("a",), MODEL)


async def test_only_so_many_requests_are_counted_at_a_time() -> None:
    """Beyond that a count would come too late: it fails at once, and works again once others are through."""
    waiting: list[asyncio.Future[None]] = []

    async def post(path: str, body: bytes, model: str | None) -> tuple[int, bytes]:
        turn = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        await turn
        return 200, b'{"count": 1}'

    counter = EngineCounter(post, timeout_seconds=60)
    counts = [asyncio.ensure_future(counter.count_text(("a",), MODEL)) for _ in range(MAX_OPEN)]
    while len(waiting) < MAX_OPEN:
        turn = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(turn.set_result, None)
        await turn
    with pytest.raises(CountFailed, match=f"{MAX_OPEN} requests"):
        await counter.count_text(("a",), MODEL)
    for turn in waiting:
        turn.set_result(None)
    assert await asyncio.gather(*counts) == [(1,)] * MAX_OPEN
    count = asyncio.ensure_future(counter.count_text(("a",), MODEL))
    while len(waiting) == MAX_OPEN:
        turn = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(turn.set_result, None)
        await turn
    waiting[-1].set_result(None)
    assert await count == (1,)
