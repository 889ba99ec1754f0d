"""POST /v1/chat/completions: `messages` that the model's chat template turns into one prompt."""

import msgspec

from kvguard.errors import InvalidRequest
from kvguard.protocols.chat_form import raw, replaced_prompt, reused_ids, with_template_variables
from kvguard.protocols.fields import Fields, decode, read_bool, read_fields
from kvguard.protocols.request import CapRule, ChatPrompt, InferenceRequest, TokenPrompts, read_common

PATH = "/v1/chat/completions"
CAPS = CapRule(names=("max_completion_tokens", "max_tokens"), default_tokens=None)

MAX_MESSAGES = 16384  # with their parts; each is looked at one by one, and no conversation comes near it

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

_messages = msgspec.json.Decoder(list[msgspec.Raw])
_NULL = msgspec.Raw(b"null")
_OLD_REASONING = "reasoning_content"


def parse(body: bytes) -> InferenceRequest:
    """Read a request. Raises InvalidRequest naming the field at fault."""
    fields = read_fields(body)
    return read_common(body, fields, prompt_of(fields), CAPS)


def prompt_of(fields: Fields) -> ChatPrompt | TokenPrompts:
    """What the engine tokenises: the conversation, or the ids sent in its place."""
    messages = bytes(fields.get("messages", b""))
    if not messages.lstrip().startswith(b"["):
        raise InvalidRequest("'messages' must be a list", param="messages")
    if messages.count(b"{") > MAX_MESSAGES:
        _refuse_too_many(fields["messages"])
    ids = reused_ids(fields)
    if ids is not None and not read_bool(fields, "echo"):
        replaced = replaced_prompt(ids, decode(fields, "messages"))
        if replaced is not None:
            return replaced
    return conversation(fields)


def _refuse_too_many(messages: msgspec.Raw) -> None:
    """Messages and their parts together, counted before any of them is looked at."""
    each = _each(messages)
    number = len(each)
    for message in each[:MAX_MESSAGES]:
        content = _members(message).get("content", _NULL) if bytes(message).startswith(b"{") else _NULL
        number += len(_each(content)) if bytes(content).startswith(b"[") else 0
        if number > MAX_MESSAGES:
            break
    if number > MAX_MESSAGES:
        raise InvalidRequest(f"'messages' has more than {MAX_MESSAGES} entries and parts", param="messages")


def _members(message: msgspec.Raw) -> Fields:
    fields: Fields = msgspec.json.decode(message, type=Fields)
    return fields


def _each(messages: msgspec.Raw) -> list[msgspec.Raw]:
    try:
        return _messages.decode(messages)
    except (msgspec.MsgspecError, RecursionError):
        raise InvalidRequest("'messages' is not valid JSON", param="messages") from None


def conversation(fields: Fields) -> ChatPrompt:
    """The conversation and whatever else the template may look at."""
    template = {name: fields[name] for name in TEMPLATE_FIELDS if name in fields}
    template["messages"] = _with_reasoning(template["messages"])
    return ChatPrompt(with_template_variables(template))


def _with_reasoning(messages: msgspec.Raw) -> msgspec.Raw:
    """The messages with the old name of `reasoning`, which chat renames and `/tokenize` does not, renamed."""
    if _OLD_REASONING.encode() not in bytes(messages):
        return messages
    return raw([_renamed(message) for message in _each(messages)])


def _renamed(message: msgspec.Raw) -> object:
    if not bytes(message).startswith(b"{"):
        return message
    fields = _members(message)
    old = fields.pop(_OLD_REASONING, None)
    if old is not None and bytes(fields.get("reasoning", b"null")) == b"null":
        fields["reasoning"] = old
    return fields
