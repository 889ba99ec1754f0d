"""Counting by TGI: `/tokenize` for text, `/chat_tokenize` (2.3.0 on) for conversations. Truncation is the caller's.

TGI adds special tokens to text; a conversation is rendered by its own template, which writes them.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec

from kvguard.errors import UpstreamError
from kvguard.protocols.fields import Fields, write_fields
from kvguard.tokenization.counter import CountFailed, CountSource
from kvguard.tokenization.engine import MAX_PARALLEL, Post

T = TypeVar("T")

_tokens: Final = msgspec.json.Decoder(list[msgspec.Raw])


class _ChatTokenized(msgspec.Struct):
    tokenize_response: list[msgspec.Raw]


class TgiCounter:
    """Asks TGI, everything about one request under one deadline."""

    source = CountSource.ENGINE

    def __init__(self, post: Post, *, timeout_seconds: float) -> None:
        self._post = post
        self._timeout_seconds = timeout_seconds
        self._chat_decoder = msgspec.json.Decoder(_ChatTokenized)

    async def count_text(self, texts: tuple[str, ...], model: Fields) -> tuple[int, ...]:
        """Tokens of each text; at most MAX_PARALLEL questions are open at once."""
        answers = await self._ask_all("/tokenize", [msgspec.json.encode({"inputs": text}) for text in texts])
        return tuple(len(_decoded(_tokens, answer)) for answer in answers)

    async def count_chats(self, chats: tuple[Fields, ...], model: Fields) -> tuple[int, ...]:
        """Tokens of each rendered conversation, asked about like texts."""
        answers = await self._ask_all("/chat_tokenize", [write_fields({**model, **chat}) for chat in chats])
        return tuple(len(_decoded(self._chat_decoder, answer).tokenize_response) for answer in answers)

    async def _ask_all(self, path: str, bodies: Sequence[bytes]) -> list[bytes]:
        answers: list[bytes] = []
        for start in range(0, len(bodies), MAX_PARALLEL):
            answers += await asyncio.gather(*(self._ask(path, body) for body in bodies[start : start + MAX_PARALLEL]))
        return answers

    async def _ask(self, path: str, body: bytes) -> bytes:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                status, answer = await self._post(path, body, None)
        except (TimeoutError, UpstreamError) as error:
            raise CountFailed(str(error)) from error
        if status != 200:
            raise CountFailed(f"{path} answered {status}")
        return answer


def _decoded(decoder: "msgspec.json.Decoder[T]", answer: bytes) -> T:
    try:
        return decoder.decode(answer)
    except msgspec.MsgspecError as error:
        raise CountFailed(str(error)) from error
