"""Counting by the engine's own `/tokenize`: exact for every prompt form it takes, at the price of a round trip.

The engine tokenises for its own requests too, so it is asked about small prompts only, and only so many at a time:
beyond that a count would come too late to be worth it.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Annotated

import msgspec

from kvguard.errors import InvalidRequest, UpstreamError
from kvguard.protocols.fields import Fields, decode, write_fields
from kvguard.tokenization.counter import CountFailed, CountSource

MAX_PARALLEL = 8
MAX_OPEN = 32

# Posts a JSON body to a path of a backend that serves a model; gives status and body, raises UpstreamError.
Post = Callable[[str, bytes, str | None], Awaitable[tuple[int, bytes]]]


class _Tokenized(msgspec.Struct):
    count: Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class EngineCounter:
    """Asks `/tokenize`, everything about one request under one deadline, MAX_OPEN requests at a time."""

    source = CountSource.ENGINE

    def __init__(self, post: Post, *, timeout_seconds: float) -> None:
        self._post = post
        self._timeout_seconds = timeout_seconds
        self._open = 0
        self._decoder = msgspec.json.Decoder(_Tokenized)

    async def count_text(self, texts: tuple[str, ...], model: Fields) -> tuple[int, ...]:
        """Tokens of each text; at most MAX_PARALLEL questions are open at once."""
        return await self._ask_all([{**model, "prompt": msgspec.Raw(msgspec.json.encode(text))} for text in texts])

    async def count_chats(self, chats: tuple[Fields, ...], model: Fields) -> tuple[int, ...]:
        """Tokens of each rendered conversation, asked about like texts."""
        return await self._ask_all([{**model, **chat} for chat in chats])

    async def _ask_all(self, questions: Sequence[Fields]) -> tuple[int, ...]:
        counts: list[int] = []
        with self._asking():
            async with asyncio.timeout(self._timeout_seconds):
                for start in range(0, len(questions), MAX_PARALLEL):
                    counts += await asyncio.gather(*map(self._ask, questions[start : start + MAX_PARALLEL]))
        return tuple(counts)

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        if self._open >= MAX_OPEN:
            raise CountFailed(f"{MAX_OPEN} requests are being counted")
        self._open += 1
        try:
            with _failures_as_counts():
                yield
        finally:
            self._open -= 1

    async def _ask(self, fields: Fields) -> int:
        name = decode(fields, "model")
        model = name if isinstance(name, str) else None
        status, body = await self._post("/tokenize", write_fields(fields), model)
        if status != 200:
            raise CountFailed(f"/tokenize answered {status}")
        return self._decoder.decode(body).count


@contextlib.contextmanager
def _failures_as_counts() -> Iterator[None]:
    try:
        yield
    except (TimeoutError, UpstreamError, InvalidRequest, msgspec.MsgspecError) as error:
        raise CountFailed(str(error)) from error
