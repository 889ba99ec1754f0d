"""TGI's own tokenizer over the wire; the answers have the form of recorded ones."""

import json

import msgspec
import pytest

from kvguard.errors import UpstreamBroken
from kvguard.tokenization.counter import CountFailed, CountSource
from kvguard.tokenization.tgi import TgiCounter

pytestmark = pytest.mark.anyio

TOKEN = {"id": 3, "text": "a", "start": 0, "stop": 1}


async def test_text_and_conversations_are_asked_at_their_own_routes() -> None:
    """Every text by itself, in order; a conversation as it came."""
    asked: list[tuple[str, dict]] = []

    async def post(path: str, body: bytes, model: str | None) -> tuple[int, bytes]:
        asked.append((path, json.loads(body)))
        tokens = [TOKEN] * (len(json.loads(body)["inputs"]) if path == "/tokenize" else 4)
        answer = tokens if path == "/tokenize" else {"tokenize_response": tokens, "templated_text": "a"}
        return 200, json.dumps(answer).encode()

    counter = TgiCounter(post, timeout_seconds=5)
    texts = tuple("x" * size for size in range(1, 20))
    assert await counter.count_text(texts, {}) == tuple(range(1, 20))
    chat = {"messages": msgspec.Raw(b'[{"role": "user", "content": "hi"}]')}
    assert await counter.count_chats((chat,), {"model": msgspec.Raw(b'"tgi"')}) == (4,)
    assert await counter.count_chats((chat,) * 20, {}) == (4,) * 20
    assert asked[0] == ("/tokenize", {"inputs": "x"})
    messages = [{"role": "user", "content": "hi"}]
    assert asked[19] == ("/chat_tokenize", {"model": "tgi", "messages": messages})
    assert asked[20:] == [("/chat_tokenize", {"messages": messages})] * 20
    assert counter.source is CountSource.ENGINE


@pytest.mark.parametrize(
    ("status", "body"), [(422, b"[]"), (200, b"<html>"), (200, b"{}"), (200, b'{"tokenize_response": 1}')]
)
async def test_any_other_answer_is_a_failed_count(status: int, body: bytes) -> None:
    """An answer that is no list of tokens never becomes a number."""

    async def post(path: str, _: bytes, model: str | None) -> tuple[int, bytes]:
        return status, body

    counter = TgiCounter(post, timeout_seconds=5)
    with pytest.raises(CountFailed):
        await counter.count_text(("a",), {})
    with pytest.raises(CountFailed):
        await counter.count_chats(({"messages": msgspec.Raw(b"[]")},), {})


async def test_a_broken_server_is_a_failed_count() -> None:
    """Nobody answers."""

    async def post(path: str, _: bytes, model: str | None) -> tuple[int, bytes]:
        raise UpstreamBroken("gone")

    with pytest.raises(CountFailed, match="gone"):
        await TgiCounter(post, timeout_seconds=5).count_text(("a",), {})
