"""What vLLM makes of a client's messages and tools before a chat template sees them. Pure.

Facts of vLLM 0.32 (`renderers/chat_utils.py`, `renderers/hf.py`, its request models). Keys come out in the order of
vLLM's own types, because templates print them as JSON. What vLLM answers with an error, and parts whose tokens are not
text, raise CountFailed.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from kvguard.tokenization.counter import CountFailed

# Messages, parts and calls of one conversation, or tools: a template loops over each, holding the interpreter.
MAX_ITEMS = 10_000

Message = dict[str, Any]

_TEXT_KEYS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
_SKIPPED_WHEN_NULL = frozenset({"text", "refusal"})
# Keys of any part type vLLM knows; the others survive for templates that print parts.
_PART_KEYS = frozenset(
    {
        "audio_embeds",
        "audio_url",
        "closed",
        "data",
        "file",
        "image_embeds",
        "image_pil",
        "image_url",
        "input_audio",
        "name",
        "prompt_cache_breakpoint",
        "refusal",
        "text",
        "thinking",
        "type",
        "uuid",
        "video_embeds",
        "video_url",
    }
)
_BILLING_HEADER = "x-anthropic-billing-header"


def read_messages(messages: object, *, parts: bool) -> list[Message]:
    """The conversation a template is given, message contents as part lists or as joined text."""
    if not isinstance(messages, list) or not messages:
        raise CountFailed("messages are not a list, or an empty one")
    if sum(map(_items, messages)) > MAX_ITEMS:
        raise CountFailed("the conversation has too many items to count")
    return [_message(message, parts=parts) for message in messages]


def _items(message: object) -> int:
    fields = message if isinstance(message, dict) else {}
    lists = (fields.get(name) for name in ("content", "tool_calls", "tools"))
    return 1 + sum(len(items) for items in lists if isinstance(items, list))


def _message(message: object, *, parts: bool) -> Message:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise CountFailed("a message has no role")
    role = message["role"]
    read: Message = {"role": role, "content": _content(message.get("content"), role, parts=parts)}
    if role == "assistant":
        read |= _assistant_fields(message)
    elif role == "tool":
        read |= {"tool_call_id": message["tool_call_id"]} if "tool_call_id" in message else {}
    read |= {key: message[key] for key in ("name", "task") if isinstance(message.get(key), str)}
    if role == "developer":
        read["tools"] = _developer_tools(message.get("tools"))
    return read


def _content(content: object, role: str, *, parts: bool) -> str | list[Any]:
    given = _parts(content)
    if role == "system":
        given = _without_billing_header(given)
    read = [part for part in (_part(part, wrapped=parts) for part in given) if part]
    if not parts:
        return "\n".join(read)
    if role == "tool" and all(part["type"] == "text" for part in read):
        return "\n".join(part["text"] for part in read)
    return read


def _parts(content: object) -> list[Any]:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if isinstance(content, list):
        return content
    raise CountFailed("a message content is neither text nor parts")


def _part(part: object, *, wrapped: bool) -> Any:
    """A part as dict or as text; None for one vLLM skips."""
    if isinstance(part, str):
        return {"type": "text", "text": part} if wrapped else part
    if not isinstance(part, dict) or part.get("uuid") is not None or not isinstance(part.get("type"), str):
        raise CountFailed("a message part has no type")
    kind = part["type"]
    if kind == "tool_reference":
        name = _text(part.get("name"))
        return {"type": kind, "name": name} if wrapped else name
    if kind not in _TEXT_KEYS:
        raise CountFailed("a message part is not text")
    value = part.get(_TEXT_KEYS[kind])
    if value is None and kind in _SKIPPED_WHEN_NULL:
        return None
    if not wrapped:
        return _text(value)
    return {"type": "text", "text": _text(value)} | {key: part[key] for key in part if key not in _PART_KEYS}


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise CountFailed("a message part has no text")
    return value


def _without_billing_header(parts: Iterable[Any]) -> list[Any]:
    """System parts without the first line a coding client puts there for its accounting."""
    kept = []
    for part in parts:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else part
        if not (isinstance(text, str) and text.startswith(_BILLING_HEADER)):
            kept.append(part)
        elif rest := text.partition("\n")[2]:
            kept.append(rest if isinstance(part, str) else {**part, "text": rest})
    return kept


def _assistant_fields(message: Mapping[str, Any]) -> Message:
    fields: Message = {}
    if calls := message.get("tool_calls"):
        if not isinstance(calls, list):
            raise CountFailed("tool_calls are not a list")
        fields["tool_calls"] = [_tool_call(call) for call in calls]
    reasoning = message.get("reasoning")
    if reasoning is None:
        reasoning = message.get("reasoning_content")
    if reasoning is not None:
        fields |= {"reasoning": reasoning, "reasoning_content": reasoning}
    return fields


def _tool_call(call: object) -> Message:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict) or call.get("type", "function") != "function":
        raise CountFailed("a tool call is not a function call")
    function = {**function, "arguments": _arguments(function.get("arguments"))}
    ordered = _ordered(function, ("arguments", "name"))
    return _ordered({**call, "function": ordered}, ("id", "function", "type"))


def _arguments(arguments: object) -> dict[str, Any]:
    """The object in an arguments text; anything else becomes an empty one."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except json.JSONDecodeError:
            return {}
        except RecursionError:
            raise CountFailed("tool call arguments are nested too deeply") from None
    return arguments if isinstance(arguments, dict) else {}


def _developer_tools(tools: object) -> list[Message] | None:
    if tools is None:
        return None
    if not isinstance(tools, list):
        raise CountFailed("a developer's tools are not a list")
    return [_developer_tool(tool) for tool in tools]


def _developer_tool(tool: object) -> Message:
    """A tool as vLLM orders it; one that is not of its type would be printed as it came."""
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(tool, dict) or tool.get("type") != "function" or not _is_function(function):
        raise CountFailed("a developer's tool is not a function")
    ordered = _ordered(dict(function or {}), ("name", "description", "parameters", "strict"))
    return _ordered({**tool, "function": ordered}, ("function", "type"))


def _is_function(function: object) -> bool:
    types = {"name": str, "description": str, "parameters": dict, "strict": bool | None}
    return (
        isinstance(function, dict)
        and "name" in function
        and all(isinstance(function[key], kind) for key, kind in types.items() if key in function)
    )


def _ordered(given: Mapping[str, Any], first: tuple[str, ...]) -> Message:
    return {key: given[key] for key in first if key in given} | dict(given)


def read_tools(tools: object) -> list[Message] | None:
    """The tools as vLLM dumps them: known keys only, a missing description or parameters as null."""
    if tools is None:
        return None
    if not isinstance(tools, list) or len(tools) > MAX_ITEMS:
        raise CountFailed("tools are not a list, or too many to count")
    return [_tool(tool) for tool in tools]


def _tool(tool: object) -> Message:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(tool, dict) or not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise CountFailed("a tool is not a function with a name")
    outer = _flags(tool, ("defer_loading",))
    read = {key: function.get(key) for key in ("name", "description", "parameters")}
    flags = outer | _flags(function, ("strict", "defer_loading"))
    return {"type": "function", "function": read | _ordered(flags, ("strict", "defer_loading"))} | outer


def _flags(given: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, bool]:
    flags = {name: given[name] for name in names if given.get(name) is not None}
    if not all(isinstance(value, bool) for value in flags.values()):
        raise CountFailed("a tool's flag is not true or false")
    return flags


def system_for_developer(conversation: list[Message]) -> list[Message]:
    """The conversation for a template without a developer role: such messages are system, and all system text leads.

    The conversation comes back as it is without a developer message.
    """
    if all(message["role"] != "developer" for message in conversation):
        return conversation
    converted = [_as_system(message) for message in conversation]
    systems = [message for message in converted if message["role"] == "system"]
    if len(systems) == 1 and converted[0]["role"] == "system":
        return converted
    texts = [text for text in map(_joined, systems) if text]
    others = [message for message in converted if message["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(texts)}, *others]


def _as_system(message: Message) -> Message:
    if message["role"] != "developer":
        return message
    return {key: value for key, value in message.items() if key != "tools"} | {"role": "system"}


def _joined(message: Message) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content if "text" in part)
