"""What the engine is asked to tokenise, as the routes put it. Says how tokens come together, not who counts them."""

from dataclasses import dataclass

from kvguard.protocols.fields import Fields
from kvguard.protocols.media import MediaPart


@dataclass(frozen=True, slots=True)
class TextPrompts:
    """Prompts that still have to be tokenised."""

    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TokenPrompts:
    """Prompts that came as token ids; only their lengths matter. A single one may have `media` on top of its ids."""

    lengths: tuple[int, ...]
    media: tuple[MediaPart, ...] = ()


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation the chat template turns into one prompt.

    `fields` is everything the template may look at. In a request that was read a mark stands there for each part that
    is not text, and `media` are those parts.
    """

    fields: Fields
    media: tuple[MediaPart, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptList:
    """Prompts of one call that run side by side, a conversation or a text each."""

    prompts: tuple[TextPrompts | TokenPrompts | ChatPrompt, ...]


@dataclass(frozen=True, slots=True)
class SharedPrompts:
    """One prompt per item: the tokens of `query` and the tokens of that item, tokenised apart.

    Only `query` gets the special tokens, so counting items with them is too high by their number, never too low.
    """

    query: TextPrompts | TokenPrompts
    items: TextPrompts | TokenPrompts


@dataclass(frozen=True, slots=True)
class PairedPrompts:
    """Each query with the document of its place, or one query with every document.

    How many prompts that makes is the model's business: one of both, one of each, or one of them all, which then names
    its query twice. Query and document of each pair and every query once more is never too low for any of them.
    """

    queries: PromptList
    documents: PromptList


@dataclass(frozen=True, slots=True)
class OpenEndedPrompt:
    """A prompt that begins with history the engine keeps: at least `known`, at most the model's context."""

    known: ChatPrompt


Single = TextPrompts | TokenPrompts | ChatPrompt
Prompt = Single | PromptList | SharedPrompts | PairedPrompts | OpenEndedPrompt
