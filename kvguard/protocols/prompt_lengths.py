"""How long prompts are once the engine has cut them, and how long those may be that were counted too low."""

from collections.abc import Iterable, Iterator


def longest_prompt(truncate_to: int | None, context_tokens: int | None, *, generates: bool) -> int | None:
    """What longer prompts are cut to, None when they are not, or nobody knows to what.

    A negative number cuts to the context, less a token where one is generated.
    """
    if truncate_to is None or truncate_to >= 0:
        return truncate_to
    return None if context_tokens is None else context_tokens - generates


def cut(prompts: Iterable[int], longest: int | None) -> tuple[int, ...]:
    """The prompts, none longer than `longest`."""
    return tuple(prompts) if longest is None else tuple(min(tokens, longest) for tokens in prompts)


def with_slack(counted: tuple[int, ...], slack: tuple[int, ...], context_tokens: int | None) -> Iterator[int]:
    """Counts and what they may be too low by; a prompt longer than the context never runs, so none needs that room."""
    for tokens, more in zip(counted, slack, strict=True):
        yield tokens + more if context_tokens is None else max(tokens, min(tokens + more, context_tokens))
