"""Counting by TGI: `/tokenize` for text, `/chat_tokenize` (2.3.0 on) for conversations. Truncation is the caller's.

TGI adds special tokens to text; a conversation is rendered by its own template, which writes them.
"""

from typing import Final

import msgspec

from kvguard.protocols.fields import Fields, write_fields
from kvguard.tokenization.counter import CountSource
from kvguard.tokenization.engine import Post, Question, Questions

_tokens: Final = msgspec.json.Decoder(list[msgspec.Raw])


class _ChatTokenized(msgspec.Struct):
    tokenize_response: list[msgspec.Raw]


_chats: Final = msgspec.json.Decoder(_ChatTokenized)


class TgiCounter:
    """Asks TGI."""

    source = CountSource.ENGINE

    def __init__(self, post: Post, *, timeout_seconds: float) -> None:
        self._questions = Questions(post, timeout_seconds=timeout_seconds)

    async def count_text(self, texts: tuple[str, ...], model: Fields) -> tuple[int, ...]:
        """Tokens of each text."""
        questions = [Question("/tokenize", msgspec.json.encode({"inputs": text})) for text in texts]
        return await self._questions.ask(questions, lambda answer: len(_tokens.decode(answer)))

    async def count_chats(self, chats: tuple[Fields, ...], model: Fields) -> tuple[int, ...]:
        """Tokens of each rendered conversation."""
        questions = [Question("/chat_tokenize", write_fields({**model, **chat})) for chat in chats]
        return await self._questions.ask(questions, lambda answer: len(_chats.decode(answer).tokenize_response))
