"""The seam every counter implements, and the order in which they are asked.

An exact counter that cannot answer, or not soon enough, raises `CountFailed`, and the next is asked; what was learned
always answers. Every answer says who made it and how many more tokens there may be.
"""

import contextlib
import enum
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvguard.protocols.fields import Fields
from kvguard.protocols.prompts import (
    ChatPrompt,
    OpenEndedPrompt,
    PairedPrompts,
    Prompt,
    PromptList,
    SharedPrompts,
    Single,
    TextPrompts,
    TokenPrompts,
)
from kvguard.protocols.request import InferenceRequest
from kvguard.tokenization.learned import LearnedRatios, PromptKind
from kvguard.tokenization.media import MediaAllowance
from kvguard.tokenization.media_families import NO_TOKENS, MediaTokens

MAX_QUESTIONS = 64  # to an engine about one request
MAX_RENDERED = 256  # conversations of one request that are rendered while it waits


class CountSource(enum.Enum):
    """Who counted."""

    IDS = "ids"
    LOCAL = "local"
    ENGINE = "engine"
    LEARNED = "learned"


@dataclass(frozen=True, slots=True)
class TokenCount:
    """Tokens of each prompt, and by how many each may be too low; no slack where the count is exact."""

    prompts: tuple[int, ...]
    source: CountSource
    slack: tuple[int, ...] = ()

    @property
    def total(self) -> int:
        """Tokens of all prompts, as the engine's usage sums them."""
        return sum(self.prompts)

    @property
    def estimated(self) -> bool:
        """Whether it is a guess, in whole or for the parts that are not text."""
        return self.source is CountSource.LEARNED or any(self.slack)

    def with_media(self, media: MediaTokens) -> "TokenCount":
        """The same with the tokens of pictures and recordings in its only prompt, which are known between bounds."""
        if media is NO_TOKENS:
            return self
        [tokens], slack = self.prompts, sum(self.slack)
        more = media.upper_tokens - media.expected_tokens
        return TokenCount((tokens + media.expected_tokens,), self.source, (slack + more,))


def side_by_side(counts: Sequence[TokenCount]) -> TokenCount:
    """The counts of several prompts as one, by the least certain of their sources."""
    prompts = tuple(tokens for count in counts for tokens in count.prompts)
    source = max((count.source for count in counts), key=list(CountSource).index)
    slack = tuple(more for count in counts for more in count.slack or (0,) * len(count.prompts))
    return TokenCount(prompts, source, slack if any(slack) else ())


def shared(query: TokenCount, items: TokenCount) -> TokenCount:
    """The counts of prompts that each are the query and one of the items."""
    [tokens], slack = query.prompts, sum(query.slack)
    source = side_by_side([query, items]).source
    more = tuple(slack + extra for extra in items.slack or (0,) * len(items.prompts))
    return TokenCount(tuple(tokens + item for item in items.prompts), source, more if any(more) else ())


def paired(queries: TokenCount, documents: TokenCount) -> TokenCount:
    """The counts of prompts made of a query and a document: both of each pair, and room for every query once more."""
    more = queries.slack or (0,) * len(queries.prompts)
    roomy = TokenCount(
        queries.prompts, queries.source, tuple(q + 2 * s for q, s in zip(queries.prompts, more, strict=True))
    )
    others = len(documents.prompts) // len(queries.prompts) - 1
    return side_by_side([roomy, *(queries for _ in range(others)), documents])


class CountFailed(Exception):
    """This counter cannot answer; the next may."""


class TokenCounter(Protocol):
    """Counts text and conversations exactly, or raises CountFailed."""

    source: CountSource

    async def count_text(self, texts: tuple[str, ...], model: Fields) -> tuple[int, ...]:
        """Tokens of each text as a completion prompt; special tokens are included unless `model` says otherwise.

        `model` holds the request's own fields `model` and `add_special_tokens`, as far as it has them.
        """
        ...

    async def count_chats(self, chats: tuple[Fields, ...], model: Fields) -> tuple[int, ...]:
        """Tokens of each conversation once the chat template is applied."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactCounter:
    """A counter and how large the prompts of a request may be, together, that it is asked about while that waits."""

    counter: TokenCounter
    prompt_limit_bytes: int

    def answers_soon(self, prompts: Sequence[TextPrompts | ChatPrompt]) -> bool:
        """Whether that is soon enough. An engine is asked about each text, our own counter about all."""
        if self.counter.source is CountSource.ENGINE:
            soon = _questions(prompts) <= MAX_QUESTIONS
        else:
            soon = len(prompts) <= MAX_RENDERED
        return soon and sum(map(prompt_bytes, prompts)) <= self.prompt_limit_bytes


# The exact counters for a model by its names, in the order they are asked.
ExactCounters = Callable[[Sequence[str]], Sequence[ExactCounter]]


def _only_itself(model: str) -> Sequence[str]:
    return (model,)


class PromptCounter:
    """Asks the exact counters of the request's model, then what was learned of its base.

    `names_of` gives the name in a request, an adapter's or an alias, and those it stands for, the base model last.
    Parts that are not text are never counted: `media` says what to allow for them.
    """

    def __init__(
        self,
        exact: ExactCounters,
        learned: LearnedRatios,
        names_of: Callable[[str], Sequence[str]] = _only_itself,
        media: MediaAllowance = MediaAllowance(),  # noqa: B008  it keeps nothing
    ) -> None:
        self._exact = exact
        self._learned = learned
        self._names_of = names_of
        self._media = media

    async def count(self, request: InferenceRequest) -> TokenCount:
        """Tokens of every prompt of the request, soon; never fails."""
        parts = _parts_of(request.prompt)
        tokenised = [part for part in parts if not isinstance(part, TokenPrompts)]
        for exact in self._exact(self._names(request)) if tokenised else ():
            if exact.answers_soon(tokenised):
                with contextlib.suppress(CountFailed):
                    return await self._exactly(exact.counter, request, parts)
        base = self._base(request)
        return self._together(
            request, [_ids(p) if isinstance(p, TokenPrompts) else self._guess(base, p) for p in parts]
        )

    async def count_again(self, request: InferenceRequest) -> TokenCount | None:
        """The exact count of prompts too large to wait for, by a counter of our own; None when there is none."""
        parts = _parts_of(request.prompt)
        tokenised = [part for part in parts if not isinstance(part, TokenPrompts)]
        for exact in self._exact(self._names(request)) if tokenised else ():
            if exact.counter.source is CountSource.LOCAL and not exact.answers_soon(tokenised):
                with contextlib.suppress(CountFailed):
                    return await self._exactly(exact.counter, request, parts)
        return None

    def learn(self, request: InferenceRequest, prompt_tokens: int) -> None:
        """Remember how many tokens the prompts of an answered request had, all together."""
        prompt = request.prompt
        if not isinstance(prompt, TextPrompts | ChatPrompt) or request.truncate_to is not None:
            return
        if request.padded or request.around_tokens:
            return
        if isinstance(prompt, TextPrompts) or not prompt.media:
            size = prompt_bytes(prompt)
            self._learned.observe(self._base(request), kind_of(prompt), size_bytes=size, tokens=prompt_tokens)

    async def _exactly(self, counter: TokenCounter, request: InferenceRequest, parts: Sequence[Single]) -> TokenCount:
        """All texts are asked about at once, and so are all conversations."""
        texts = tuple(text for part in parts if isinstance(part, TextPrompts) for text in part.texts)
        chats = tuple(part.fields for part in parts if isinstance(part, ChatPrompt))
        model = request.model_field
        of_texts = iter(await counter.count_text(texts, model | request.special_tokens_field) if texts else ())
        of_chats = iter(await counter.count_chats(chats, model) if chats else ())
        counts = []
        for part in parts:
            if isinstance(part, TokenPrompts):
                counts.append(_ids(part))
            elif isinstance(part, TextPrompts):
                counts.append(TokenCount(tuple(itertools.islice(of_texts, len(part.texts))), counter.source))
            else:
                counts.append(TokenCount((next(of_chats),), counter.source))
        return self._together(request, counts)

    def _together(self, request: InferenceRequest, counts: Sequence[TokenCount]) -> TokenCount:
        """The counts of a request's parts as those of its prompts, with what is allowed for media."""
        prompt = request.prompt
        whole = [
            count.with_media(self._media_of(part, request))
            for part, count in zip(_parts_of(prompt), counts, strict=True)
        ]
        if isinstance(prompt, SharedPrompts):
            return shared(*whole)
        if isinstance(prompt, PairedPrompts):
            queries = len(prompt.queries.prompts)
            return paired(side_by_side(whole[:queries]), side_by_side(whole[queries:]))
        return side_by_side(whole) if isinstance(prompt, PromptList) else whole[0]

    def _media_of(self, prompt: Single, request: InferenceRequest) -> MediaTokens:
        """What the parts of a prompt that are not text come to."""
        if isinstance(prompt, TextPrompts) or not prompt.media:
            return NO_TOKENS
        return self._media.of(prompt.media, self._names(request))

    def _names(self, request: InferenceRequest) -> Sequence[str]:
        return self._names_of(request.model or "")

    def _base(self, request: InferenceRequest) -> str:
        return self._names(request)[-1]

    def _guess(self, model: str, prompt: TextPrompts | ChatPrompt) -> TokenCount:
        sizes = [text_bytes(t) for t in prompt.texts] if isinstance(prompt, TextPrompts) else [prompt_bytes(prompt)]
        counts = [self._learned.count(model, kind_of(prompt), size) for size in sizes]
        return TokenCount(
            tuple(count.tokens for count in counts), CountSource.LEARNED, tuple(count.slack for count in counts)
        )


def _parts_of(prompt: Prompt) -> Sequence[Single]:
    """What is counted one by one."""
    if isinstance(prompt, PromptList):
        return prompt.prompts
    if isinstance(prompt, SharedPrompts):
        return (prompt.query, prompt.items)
    if isinstance(prompt, PairedPrompts):
        return (*prompt.queries.prompts, *prompt.documents.prompts)
    return (prompt.known if isinstance(prompt, OpenEndedPrompt) else prompt,)


def _ids(prompt: TokenPrompts) -> TokenCount:
    return TokenCount(prompt.lengths, CountSource.IDS)


def _questions(prompts: Sequence[TextPrompts | ChatPrompt]) -> int:
    return sum(len(prompt.texts) if isinstance(prompt, TextPrompts) else 1 for prompt in prompts)


def prompt_bytes(prompt: TextPrompts | ChatPrompt) -> int:
    """Bytes of what is tokenised: the texts in UTF-8, or all fields the chat template may print."""
    if isinstance(prompt, TextPrompts):
        return sum(map(text_bytes, prompt.texts))
    return sum(len(memoryview(value)) for value in prompt.fields.values())


def text_bytes(text: str) -> int:
    """Bytes of a text in UTF-8; a lone surrogate counts as the mark that replaces it."""
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def kind_of(prompt: TextPrompts | ChatPrompt) -> PromptKind:
    """What its tokens per byte have in common with others'."""
    if isinstance(prompt, TextPrompts):
        return PromptKind.TEXT
    return PromptKind.TOOLS if "tools" in prompt.fields else PromptKind.CHAT
