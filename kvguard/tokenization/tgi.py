"""Counting by TGI: `/tokenize` for text, `/chat_tokenize` (2.3.0 on) for conversations. Truncation is the caller's.

TGI adds special tokens to text; a conversation is rendered by its own template, which writes them.
"""

import asyncio
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
        bodies = [msgspec.json.encode({"inputs": text}) for text in texts]
        counts: list[int] = []
        for start in range(0, len(bodies), MAX_PARALLEL):
            asked = [self._ask("/tokenize", body) for body in bodies[start : start + MAX_PARALLEL]]
            counts += [len(_decoded(_tokens, answer)) for answer in await asyncio.gather(*asked)]
        return tuple(counts)

    async def count_chat(self, chat: Fields, model: Fields) -> int:
        """Tokens of the rendered conversation."""
        answer = await self._ask("/chat_tokenize", write_fields({**model, **chat}))
        return len(_decoded(self._chat_decoder, answer).tokenize_response)

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
