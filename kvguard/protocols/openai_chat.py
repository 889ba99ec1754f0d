"""POST /v1/chat/completions: `messages` that the model's chat template turns into one prompt."""

import operator
from typing import Final

import msgspec

from kvguard.errors import InvalidRequest
from kvguard.protocols.chat_form import (
    raw,
    refuse_many_values_in,
    replaced_prompt,
    reused_ids,
    with_template_variables,
)
from kvguard.protocols.fields import Fields, decode, entries, is_set, members, opens, read_bool, read_fields
from kvguard.protocols.prompts import ChatPrompt, TokenPrompts
from kvguard.protocols.request import CapRule, InferenceRequest, read_common, streamed_openly
from kvguard.protocols.route import Route

PATH = "/v1/chat/completions"
CAPS = CapRule(names=("max_completion_tokens", "max_tokens"), default_tokens=None)

# Everything the chat template may look at, which is everything a token count depends on. vLLM's `/tokenize` takes all
# of it but `documents` and `reasoning_effort`, which `with_template_variables` puts where it does. Not here because
# `/tokenize` takes neither and only Kimi K3's template prints them: `tool_choice` and `response_format`. Under
# --exclude-tools-when-tool-choice-none a `tool_choice` of none drops the tools, which are then counted too many.
TEMPLATE_FIELDS = (
    "messages",
    "tools",
    "documents",
    "reasoning_effort",
    "chat_template",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "mm_processor_kwargs",
)

# Whatever is no truth value in one of these is refused, here as by the engine; `read_common` reads the others.
_FLAGS = ("echo", "add_generation_prompt", "continue_final_message")

_NULL = msgspec.Raw(b"null")
_OLD_REASONING = "reasoning_content"
_ESCAPED_ASCII = b"\\u00"


def parse(body: bytes) -> InferenceRequest:
    """Read a request. Raises InvalidRequest naming the field at fault."""
    fields = read_fields(body)
    return streamed_openly(read_common(body, fields, prompt_of(fields), CAPS))


ROUTE: Final = Route(path=PATH, parse=parse)


def prompt_of(fields: Fields) -> ChatPrompt | TokenPrompts:
    """What the engine tokenises: the conversation, or the ids sent in its place."""
    if not opens(fields.get("messages", _NULL), b"["):
        raise InvalidRequest("'messages' must be a list", param="messages")
    refuse_many_values_in(fields, TEMPLATE_FIELDS)
    flags = {name: read_bool(fields, name) for name in _FLAGS}
    ids = reused_ids(fields)
    if ids is not None and not flags["echo"]:
        replaced = replaced_prompt(ids, decode(fields, "messages"))
        if replaced is not None:
            return replaced
    return conversation(fields)


def conversation(fields: Fields) -> ChatPrompt:
    """The conversation and whatever else the template may look at."""
    template = {name: fields[name] for name in TEMPLATE_FIELDS if name in fields}
    template["messages"] = with_reasoning(template["messages"])
    return ChatPrompt(with_template_variables(template))


def with_reasoning(messages: msgspec.Raw) -> msgspec.Raw:
    """The messages with the old name of `reasoning`, which chat renames and `/tokenize` does not, renamed."""
    if not _may_name_reasoning(messages):
        return messages
    before = entries(messages, "messages")
    after = [_renamed(message) if _may_name_reasoning(message) else message for message in before]
    return messages if all(map(operator.is_, before, after)) else raw(after)


def _may_name_reasoning(text: msgspec.Raw) -> bool:
    """Whether the old name may be there: as it is, or with letters of it escaped."""
    return _OLD_REASONING.encode() in bytes(text) or _ESCAPED_ASCII in bytes(text)


def _renamed(message: msgspec.Raw) -> object:
    fields = members(message, "messages")
    old = fields.pop(_OLD_REASONING, None)
    if old is None:
        return message
    return fields if is_set(fields, "reasoning") else {**fields, "reasoning": old}
