"""The seam every counter implements, and the order in which they are asked.

A counter that cannot answer raises `CountFailed`; the estimate always answers, and every answer says who made it.
"""

import enum
import re
from dataclasses import dataclass
from typing import Protocol

from kvguard.protocols.fields import Fields
from kvguard.protocols.request import ChatPrompt, InferenceRequest, TextPrompts, TokenPrompts

# A picture or a recording inside a message; its bytes say nothing of its tokens.
_MEDIA = re.compile(rb"data:[\w.+/-]+;base64,[A-Za-z0-9+/=]+")


class CountSource(enum.Enum):
    """Who counted."""

    IDS = "ids"
    LOCAL = "local"
    ENGINE = "engine"
    ESTIMATE = "estimate"


@dataclass(frozen=True, slots=True)
class TokenCount:
    """Tokens of each prompt."""

    prompts: tuple[int, ...]
    source: CountSource

    @property
    def estimated(self) -> bool:
        return self.source is CountSource.ESTIMATE


class CountFailed(Exception):
    """This counter cannot answer; the next may."""


class TokenCounter(Protocol):
    """Counts text and conversations exactly, or raises CountFailed."""

    source: CountSource

    async def count_text(self, texts: tuple[str, ...], model: Fields) -> tuple[int, ...]:
        """Tokens of each text as a completion prompt, special tokens included."""
        ...

    async def count_chat(self, chat: Fields, model: Fields) -> int:
        """Tokens of the conversation once the chat template is applied."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateRule:
    """Tokens guessed from bytes: deliberately on the high side of the 3.5 to 4.5 bytes a token of usual text has.

    A `data:` URL counts as `media_tokens`, whatever its length.
    """

    bytes_per_token: float = 3.0
    chat_overhead_tokens: int = 16
    media_tokens: int = 1024

    def text(self, text: str) -> int:
        """A guess for one completion prompt."""
        return int(len(text.encode(errors="replace")) / self.bytes_per_token) + 1

    def chat(self, chat: Fields) -> int:
        """A guess for a conversation, from the bytes of everything the template may print."""
        text, media = _MEDIA.subn(b"", b" ".join(bytes(value) for value in chat.values()))
        return int(len(text) / self.bytes_per_token) + media * self.media_tokens + self.chat_overhead_tokens


class PromptCounter:
    """Asks the exact counter, then falls back on the estimate."""

    def __init__(self, exact: TokenCounter, estimate: EstimateRule) -> None:
        self._exact = exact
        self._estimate = estimate

    async def count(self, request: InferenceRequest) -> TokenCount:
        """Tokens of every prompt of the request; never fails."""
        prompt = request.prompt
        if isinstance(prompt, TokenPrompts):
            return TokenCount(prompt.lengths, CountSource.IDS)
        try:
            return TokenCount(await self._count(prompt, request.model_field), self._exact.source)
        except CountFailed:
            return TokenCount(self._guess(prompt), CountSource.ESTIMATE)

    async def _count(self, prompt: TextPrompts | ChatPrompt, model: Fields) -> tuple[int, ...]:
        if isinstance(prompt, TextPrompts):
            return await self._exact.count_text(prompt.texts, model)
        return (await self._exact.count_chat(prompt.fields, model),)

    def _guess(self, prompt: TextPrompts | ChatPrompt) -> tuple[int, ...]:
        if isinstance(prompt, TextPrompts):
            return tuple(self._estimate.text(text) for text in prompt.texts)
        return (self._estimate.chat(prompt.fields),)
