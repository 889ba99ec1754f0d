"""Counting by the engine's own tokenizer: exact for every prompt form it takes, at the price of a round trip.

The engine tokenises for its own requests too, so it is asked about small prompts only, and only so many at a time:
beyond that a count would come too late to be worth it.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Question:
    """What an engine is asked: a body for one of its paths, and the model a backend must serve to be asked."""

    path: str
    body: bytes
    model: str | None = None


class Questions:
    """Asks an engine, everything about one request under one deadline, MAX_OPEN requests at a time."""

    def __init__(self, post: Post, *, timeout_seconds: float) -> None:
        self._post = post
        self._timeout_seconds = timeout_seconds
        self._open = 0

    async def ask(self, questions: Sequence[Question], read: Callable[[bytes], int]) -> tuple[int, ...]:
        """The count that `read` finds in each answer, at most MAX_PARALLEL open at once. Raises CountFailed."""
        counts: list[int] = []
        with self._asking():
            async with asyncio.timeout(self._timeout_seconds):
                for start in range(0, len(questions), MAX_PARALLEL):
                    asked = questions[start : start + MAX_PARALLEL]
                    counts += await asyncio.gather(*(self._ask(question, read) for question in asked))
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

    async def _ask(self, question: Question, read: Callable[[bytes], int]) -> int:
        status, body = await self._post(question.path, question.body, question.model)
        if status != 200:
            raise CountFailed(f"{question.path} answered {status}")
        return read(body)


class EngineCounter:
    """Asks vLLM's `/tokenize`."""

    source = CountSource.ENGINE

    def __init__(self, post: Post, *, timeout_seconds: float) -> None:
        self._questions = Questions(post, timeout_seconds=timeout_seconds)
        self._decoder = msgspec.json.Decoder(_Tokenized)

    async def count_text(self, texts: tuple[str, ...], model: Fields) -> tuple[int, ...]:
        """Tokens of each text."""
        return await self._ask([{**model, "prompt": msgspec.Raw(msgspec.json.encode(text))} for text in texts], model)

    async def count_chats(self, chats: tuple[Fields, ...], model: Fields) -> tuple[int, ...]:
        """Tokens of each rendered conversation."""
        return await self._ask([{**model, **chat} for chat in chats], model)

    async def _ask(self, bodies: Sequence[Fields], model: Fields) -> tuple[int, ...]:
        with _failures_as_counts():
            name = decode(model, "model")
        serving = name if isinstance(name, str) else None
        questions = [Question("/tokenize", write_fields(body), serving) for body in bodies]
        return await self._questions.ask(questions, lambda answer: self._decoder.decode(answer).count)


@contextlib.contextmanager
def _failures_as_counts() -> Iterator[None]:
    try:
        yield
    except (TimeoutError, UpstreamError, InvalidRequest, msgspec.MsgspecError) as error:
        raise CountFailed(str(error)) from error
