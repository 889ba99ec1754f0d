"""Counting by the engine's own `/tokenize`: exact for every prompt form it takes, at the price of a round trip."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from kvguard.errors import UpstreamError
from kvguard.protocols.fields import Fields, write_fields
from kvguard.tokenization.counter import CountFailed, CountSource

MAX_PARALLEL = 8

# Posts a JSON body to a path of some backend; gives status and body, raises UpstreamError.
Post = Callable[[str, bytes], Awaitable[tuple[int, bytes]]]


class _Tokenized(msgspec.Struct):
    count: int


class EngineCounter:
    """Asks `/tokenize`, each question under a deadline."""

    source = CountSource.ENGINE

    def __init__(self, post: Post, *, timeout_seconds: float) -> None:
        self._post = post
        self._timeout_seconds = timeout_seconds
        self._decoder = msgspec.json.Decoder(_Tokenized)

    async def count_text(self, texts: tuple[str, ...], model: Fields) -> tuple[int, ...]:
        """Tokens of each text; at most MAX_PARALLEL questions are open at once."""
        counts: list[int] = []
        for start in range(0, len(texts), MAX_PARALLEL):
            batch = texts[start : start + MAX_PARALLEL]
            asked = (self._ask({**model, "prompt": msgspec.Raw(msgspec.json.encode(text))}) for text in batch)
            counts += await asyncio.gather(*asked)
        return tuple(counts)

    async def count_chat(self, chat: Fields, model: Fields) -> int:
        """Tokens of the rendered conversation."""
        return await self._ask({**model, **chat})

    async def _ask(self, fields: Fields) -> int:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                status, body = await self._post("/tokenize", write_fields(fields))
            if status != 200:
                raise CountFailed(f"/tokenize answered {status}")
            return self._decoder.decode(body).count
        except (TimeoutError, UpstreamError, msgspec.MsgspecError) as error:
            raise CountFailed(str(error)) from error
