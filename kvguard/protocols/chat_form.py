"""The form of a conversation that reaches the chat template, whatever wire format it came in.

Follows vLLM 0.32 (`renderers/online_renderer.py`, `renderers/chat_utils.py`). Must not know any route.
"""

from collections.abc import Iterable

import msgspec

from kvguard.errors import InvalidRequest
from kvguard.protocols.fields import (
    Fields,
    is_set,
    members,
    opens,
    read_text,
    refuse_many_values,
    some_members,
)
from kvguard.protocols.media import TEXT_TYPES
from kvguard.protocols.prompts import ChatPrompt, TokenPrompts
from kvguard.protocols.token_ids import flat_ids

JsonObject = dict[str, object]


class _Transfer(msgspec.Struct):
    prompt_token_ids: msgspec.Raw = msgspec.Raw(b"null")


_transfer = msgspec.json.Decoder(_Transfer)
MAX_TOOL_VALUES = 262_144
IDS_FIELD = "kv_transfer_params.prompt_token_ids"
_MEDIA_KEYS = frozenset(
    {
        "input_image",
        "image_url",
        "image_embeds",
        "image_pil",
        "audio_embeds",
        "audio_url",
        "input_audio",
        "video_embeds",
        "video_url",
        "prompt_embeds",
    }
)


def too_deep() -> InvalidRequest:
    """The error for a value that was read but is nested too deeply for what has to be done with it."""
    return InvalidRequest("the body is nested too deeply")


def raw(value: object) -> msgspec.Raw:
    """A value as JSON bytes. Raises InvalidRequest when it is nested too deeply to be written again."""
    try:
        return msgspec.Raw(msgspec.json.encode(value))
    except RecursionError:
        raise too_deep() from None


def chat_prompt(values: JsonObject) -> ChatPrompt:
    """The conversation with every field that is there."""
    return ChatPrompt(with_template_variables({name: raw(value) for name, value in values.items()}))


def refuse_many_values_in(fields: Fields, names: Iterable[str]) -> None:
    """Raise InvalidRequest when these fields have more than MAX_VALUES values together.

    `tools` may have MAX_TOOL_VALUES of their own: they are passed on as they are, and a hundred tools have many.
    """
    count = 0
    for name in names:
        if name == "tools" and name in fields:
            refuse_many_values(fields[name], name, most=MAX_TOOL_VALUES)
        elif name in fields:
            count = refuse_many_values(fields[name], name, besides=count)


def object_list(value: object, name: str) -> list[JsonObject]:
    """A list of JSON objects. Raises InvalidRequest naming the field otherwise."""
    if isinstance(value, list):
        items = [item for item in value if isinstance(item, dict)]
        if len(items) == len(value):
            return items
    raise InvalidRequest(f"'{name}' must be a list of objects", param=name)


def text_of(values: JsonObject, key: str, name: str) -> str:
    """A string inside `name`, empty when absent or null. Raises InvalidRequest naming `name` otherwise."""
    value = values.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidRequest(f"'{key}' inside '{name}' must be a string", param=name)
    return value


def function_tool(function: JsonObject) -> JsonObject:
    """A tool the way the engine hands it to the template: known keys only, in this order, absent ones as null."""
    known: JsonObject = {name: function.get(name) for name in ("name", "description", "parameters")}
    optional = {name: function[name] for name in ("strict", "defer_loading") if function.get(name) is not None}
    return {"type": "function", "function": {**known, **optional}}


def with_template_variables(fields: Fields) -> Fields:
    """The fields with `documents` and `reasoning_effort` moved into `chat_template_kwargs`.

    That is where the engine puts them on chat and where its `/tokenize`, which does not take the two, accepts them. A
    request that names an effort also switches thinking on or off, unless it does so itself.
    """
    moved = {name: fields[name] for name in ("documents", "reasoning_effort") if is_set(fields, name)}
    given = fields["chat_template_kwargs"] if is_set(fields, "chat_template_kwargs") else msgspec.Raw(b"{}")
    if not moved or not opens(given, b"{"):
        return fields
    own = members(given, "chat_template_kwargs")
    thinking = {}
    if "reasoning_effort" in moved and "enable_thinking" not in own:
        thinking = {"enable_thinking": read_text(moved, "reasoning_effort") != "none"}
    rest = {name: value for name, value in fields.items() if name not in moved}
    return {**rest, "chat_template_kwargs": raw({**own, **moved, **thinking})}


def has_media(messages: object) -> bool:
    """Whether a message has a part that is not text, by the engine's rule."""
    if not isinstance(messages, list):
        return False
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return any(_is_media(part) for part in parts if isinstance(part, dict))


def _is_media(part: JsonObject) -> bool:
    kind = part.get("type", "text")
    return not isinstance(kind, str) or kind not in TEXT_TYPES or not _MEDIA_KEYS.isdisjoint(part)


def reused_ids(fields: Fields) -> msgspec.Raw | None:
    """`kv_transfer_params.prompt_token_ids`, None when absent. Raises InvalidRequest when its parent is no object."""
    if not is_set(fields, "kv_transfer_params"):
        return None
    ids = some_members(fields, "kv_transfer_params", _transfer).prompt_token_ids
    return None if bytes(ids) == b"null" else ids


def replaced_prompt(ids: msgspec.Raw | None, messages: object) -> TokenPrompts | None:
    """The prompt that replaces `messages`, or None: without ids, or when the messages have parts that are not text.

    Raises InvalidRequest on ids the engine refuses.
    """
    if ids is None or has_media(messages):
        return None
    length = flat_ids(bytes(ids))
    if length is None:
        raise InvalidRequest(f"'{IDS_FIELD}' must be a non-empty list of non-negative integers", param=IDS_FIELD)
    return TokenPrompts((length,))
