"""Prompts that are more than one of `protocols.request.Prompt`, for the routes that take them.

What is here only says how the engine puts tokens together; it must not know who counts them.
"""

from dataclasses import dataclass

from kvguard.protocols.request import ChatPrompt, Prompt, TextPrompts, TokenPrompts


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
class OpenEndedPrompt:
    """A prompt that begins with history the engine keeps: at least `known`, at most the model's context."""

    known: ChatPrompt


AnyPrompt = Prompt | PromptList | SharedPrompts | OpenEndedPrompt
