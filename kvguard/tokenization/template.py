"""A chat template in an immutable sandbox, in the environment transformers gives it.

The template is the operator's and trusted; the values it prints are a client's and are not. It reaches no attribute
outside its values and prints at most MAX_RENDERED_CHARACTERS.
"""

import datetime
import json
from collections.abc import Callable, Iterable
from typing import Any, Final

from jinja2 import TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kvguard.tokenization.content_format import wants_parts
from kvguard.tokenization.conversation import Message, system_for_developer
from kvguard.tokenization.counter import CountFailed

MAX_RENDERED_CHARACTERS = 32 * 1024 * 1024

# Marks where a message to be continued ends; transformers' own, so that a text which contains it is cut there too.
CONTINUE_TAG: Final = "CONTINUE_FINAL_MESSAGE_TAG "


class ChatTemplate:
    """One compiled template. `parts` says how it wants message contents."""

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        environment = _environment()
        tree = environment.parse(source)
        self.source = source
        self.parts = wants_parts(tree)
        self._variables = frozenset(meta.find_undeclared_variables(tree))
        self._knows_developer = '"developer"' in source or "'developer'" in source
        self._template = environment.from_string(source)
        self._special_tokens = special_tokens

    def render(self, conversation: list[Message], variables: dict[str, Any], *, continued: bool = False) -> str:
        """The prompt text; `continued` leaves the last message open.

        Raises CountFailed, or whatever a template raises on values it did not expect.
        """
        if not self._knows_developer:
            conversation = system_for_developer(conversation)
        if not continued:
            return self._print(conversation, variables)
        if "content" not in self.source:
            raise CountFailed("the template prints no content to continue")
        last, text = _tagged(conversation[-1])
        return _cut(self._print([*conversation[:-1], last], variables), text)

    def _print(self, conversation: list[Message], variables: dict[str, Any]) -> str:
        given = {name: value for name, value in variables.items() if name in self._variables}
        return _bounded(self._template.generate({**self._special_tokens, **given, "messages": conversation}))


def _bounded(pieces: Iterable[str]) -> str:
    kept = []
    left = MAX_RENDERED_CHARACTERS
    for piece in pieces:
        left -= len(piece)
        if left < 0:
            raise CountFailed("the rendered conversation is too long to count")
        kept.append(piece)
    return "".join(kept)


def _tagged(message: Message) -> tuple[Message, str]:
    """The message with the tag at the end of its last text, and that text."""
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": content + CONTINUE_TAG}, content
    for index in range(len(content) - 1, -1, -1):
        if "text" in content[index]:
            text = str(content[index]["text"])
            tagged = {**content[index], "text": text + CONTINUE_TAG}
            return {**message, "content": [*content[:index], tagged, *content[index + 1 :]]}, text
    raise CountFailed("the final message has no text to continue")


def _cut(prompt: str, text: str) -> str:
    """The prompt up to the tag; a template that trimmed the message loses the space before the tag as well."""
    end = prompt.rfind(CONTINUE_TAG.strip())
    if end < 0 or text.strip() not in prompt:
        raise CountFailed("the template does not print the message to continue")
    if prompt.startswith(CONTINUE_TAG, end):
        return prompt[:end]
    return prompt[:end].rstrip()


class _GenerationBlock(Extension):
    """`{% generation %}`: marks what an assistant wrote, prints it unchanged."""

    tags = {"generation"}  # noqa: RUF012  jinja2's own declaration

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols], autoescape=False
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without HTML escapes; templates pass the arguments by place or by name."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(layout: str) -> str:
    # Templates print today's date as the engine's own clock and zone have it.
    return datetime.datetime.now().strftime(layout)  # noqa: TID251, DTZ005
