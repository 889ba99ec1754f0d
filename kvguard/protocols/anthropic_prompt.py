"""The prompt of POST /v1/messages: Anthropic's `system`, `messages` and `tools` in the chat form.

Follows the conversion in vLLM 0.32 `entrypoints/anthropic/serving.py`. What that server finds out from the model's
template and this file cannot know is an argument of `prompt_of`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from kvguard.errors import InvalidRequest
from kvguard.protocols.chat_form import (
    JsonObject,
    chat_prompt,
    function_tool,
    object_list,
    replaced_prompt,
    reused_ids,
    text_of,
    too_deep,
)
from kvguard.protocols.fields import Fields, decode
from kvguard.protocols.prompts import ChatPrompt, TokenPrompts

# Claude Code's attribution line, different in every request; the engine drops such a text.
_BILLING_HEADER = "x-anthropic-billing-header"
# The engine puts the time where a client sent no id; ten digits as well.
_NO_CALL_ID = "call_1700000000"
_TOOL_CHANGES = ("tool_addition", "tool_removal")


def prompt_of(fields: Fields, *, merge_inline_system: bool = False) -> ChatPrompt | TokenPrompts:
    """What the engine tokenises. Raises InvalidRequest naming the field at fault.

    `merge_inline_system` is for templates that take a system message only at the start.
    """
    try:
        return _prompt(fields, merge_inline_system)
    except RecursionError:
        raise too_deep() from None


def _prompt(fields: Fields, merge_inline_system: bool) -> ChatPrompt | TokenPrompts:
    messages = object_list(decode(fields, "messages"), "messages")
    chat = _messages(decode(fields, "system"), messages, merge_inline_system)
    replaced = replaced_prompt(reused_ids(fields), chat)
    if replaced is not None:
        return replaced
    values: JsonObject = {"messages": chat}
    tools = _tools(decode(fields, "tools"), messages)
    if tools is not None:
        values["tools"] = [function_tool(_function(tool)) for tool in tools]
    kwargs = decode(fields, "chat_template_kwargs")
    if kwargs is not None:
        values["chat_template_kwargs"] = kwargs
    effort = _effort(fields)
    if effort is not None:
        values["reasoning_effort"] = effort
    return chat_prompt(values)


def _effort(fields: Fields) -> object:
    """How hard to think: `thinking` switched off wins over `output_config.effort`.

    Switched off is "none" here; a model that cannot do without gets "low" from the engine.
    """
    thinking, config = decode(fields, "thinking"), decode(fields, "output_config")
    if isinstance(thinking, dict) and thinking.get("type") == "disabled":
        return "none"
    return config.get("effort") if isinstance(config, dict) else None


def _messages(system: object, messages: list[JsonObject], merge_inline_system: bool) -> list[JsonObject]:
    leading = [text for text in [_system_text(system, "system")] if text]
    chat: list[JsonObject] = []
    for message in messages:
        if message.get("role") != "system":
            chat += _converted(message)
            continue
        text = _system_text(message.get("content"), "messages")
        if text and merge_inline_system:
            leading.append(text)
        elif text:
            chat.append({"role": "system", "content": text})
    return [{"role": "system", "content": "".join(leading)}, *chat] if leading else chat


def _system_text(content: object, name: str) -> str:
    if isinstance(content, str):
        # The engine looks for its header only among messages here, and a whole `system` string is kept.
        return "" if name == "messages" and content.startswith(_BILLING_HEADER) else content
    if content is None and name == "system":
        return ""
    blocks = [block for block in object_list(content, name) if block.get("type") == "text"]
    texts = [text_of(block, "text", name) for block in blocks]
    return "".join(text for text in texts if not text.startswith(_BILLING_HEADER))


@dataclass(slots=True)
class _Turn:
    """One message while its blocks are read; `before` are the messages that come to stand in front of it."""

    role: str
    before: list[JsonObject] = field(default_factory=list)
    parts: list[JsonObject] = field(default_factory=list)
    calls: list[JsonObject] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)

    def message(self) -> JsonObject:
        message: JsonObject = {"role": self.role}
        if self.reasoning:
            message["reasoning"] = "".join(self.reasoning)
        if self.calls:
            message["tool_calls"] = self.calls
        if len(self.parts) == 1 and self.parts[0]["type"] == "text":
            message["content"] = self.parts[0]["text"]
        elif self.parts:
            message["content"] = self.parts
        return message


def _converted(message: JsonObject) -> list[JsonObject]:
    """The chat messages one message becomes: results of tools first, then what is left of it."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant"):
        raise InvalidRequest("'messages' have a role that is not user, assistant or system", param="messages")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    turn = _Turn(str(role))
    for block in object_list(content, "messages"):
        kind = block.get("type")
        read = _BLOCKS.get(kind) if isinstance(kind, str) else None
        if read is None:
            raise InvalidRequest("'messages' have a content block of an unknown type", param="messages")
        read(block, turn)
    converted = turn.message()
    return turn.before if role == "user" and "content" not in converted else [*turn.before, converted]


def _read_text(block: JsonObject, turn: _Turn) -> None:
    text = text_of(block, "text", "messages")
    if text:
        turn.parts.append({"type": "text", "text": text})


def _read_image(block: JsonObject, turn: _Turn) -> None:
    if block.get("source"):
        turn.parts.append(_image(block["source"]))


def _read_thinking(block: JsonObject, turn: _Turn) -> None:
    turn.reasoning.append(text_of(block, "thinking", "messages"))


def _read_tool_use(block: JsonObject, turn: _Turn) -> None:
    function = {"name": text_of(block, "name", "messages"), "arguments": json.dumps(block.get("input") or {})}
    call_id = text_of(block, "id", "messages") or _NO_CALL_ID
    turn.calls.append({"id": call_id, "type": "function", "function": function})


def _read_tool_result(block: JsonObject, turn: _Turn) -> None:
    content = block.get("content")
    if turn.role != "user":
        turn.parts.append({"type": "text", "text": f"Tool result: {content or ''}"})
        return
    items = [item for item in content if isinstance(item, dict)] if isinstance(content, list) else []
    texts = [text_of(item, "text", "messages") for item in items if item.get("type") == "text"]
    images = [_image(item.get("source")) for item in items if item.get("type") == "image"]
    names = [item.get("tool_name") or item.get("name") for item in items if item.get("type") == "tool_reference"]
    references: list[object] = [{"type": "tool_reference", "name": name} for name in names if name]
    answer: JsonObject = {"role": "tool", "tool_call_id": text_of(block, "tool_use_id", "messages")}
    turn.before.append({**answer, "content": content if isinstance(content, str) else "\n".join(texts)})
    if images:
        turn.before.append({"role": "user", "content": images})
    if references:
        turn.before.append({**answer, "content": references})


def _skip(_block: JsonObject, _turn: _Turn) -> None:
    """Blocks of which the template sees nothing."""


_BLOCKS: dict[str, Callable[[JsonObject, _Turn], None]] = {
    "text": _read_text,
    "image": _read_image,
    "thinking": _read_thinking,
    "redacted_thinking": _skip,
    "tool_use": _read_tool_use,
    "tool_result": _read_tool_result,
    "tool_reference": _skip,
}


def _image(source: object) -> JsonObject:
    if not isinstance(source, dict):
        raise InvalidRequest("an image in 'messages' has no source", param="messages")
    if source.get("type") == "url":
        url = text_of(source, "url", "messages")
    else:
        media_type = text_of(source, "media_type", "messages") or "image/jpeg"
        url = f"data:{media_type};base64,{text_of(source, 'data', 'messages')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _tools(declared: object, messages: list[JsonObject]) -> list[JsonObject] | None:
    """The tools in effect at the end: those declared, then the additions and removals in the messages, in order."""
    tools = None if declared is None else object_list(declared, "tools")
    changes = [change for message in messages for change in _changes(message)]
    if not changes:
        return tools
    named = {text_of(tool, "name", "tools"): tool for tool in tools or []}
    removed: set[str] = set()
    for kind, change in changes:
        name = _change(named, change, kind)
        if kind == "tool_removal":
            removed.add(name)
        else:
            removed.discard(name)
    return [tool for name, tool in named.items() if name not in removed]


def _changes(message: JsonObject) -> list[tuple[str, JsonObject]]:
    """The tool changes of one message; only a system message may have them."""
    content = message.get("content")
    if message.get("role") != "system" or not isinstance(content, list):
        return []
    blocks = [(str(block.get("type")), block.get("tool")) for block in object_list(content, "messages")]
    changes = [(kind, tool) for kind, tool in blocks if kind in _TOOL_CHANGES]
    found = [(kind, tool) for kind, tool in changes if isinstance(tool, dict)]
    if len(found) < len(changes):
        raise InvalidRequest("a tool change in 'messages' names no tool", param="messages")
    return found


def _change(tools: dict[str, JsonObject], change: JsonObject, kind: str) -> str:
    """Enter a definition, or a reference that is no longer deferred, among the tools; the tool's name."""
    definition = change.get("definition")
    if isinstance(definition, dict) and kind == "tool_addition":
        name = text_of(definition, "name", "messages")
        tools[name] = definition
        return name
    name = text_of(change, "name", "messages")
    if name not in tools:
        raise InvalidRequest("a tool change in 'messages' names a tool that is not declared", param="messages")
    if kind == "tool_addition":
        tools[name] = {**tools[name], "defer_loading": None}
    return name


def _function(tool: JsonObject) -> JsonObject:
    schema = tool.get("input_schema")
    if not isinstance(schema, dict):
        raise InvalidRequest("a tool in 'tools' has no input_schema", param="tools")
    return {**tool, "parameters": schema if "type" in schema else {**schema, "type": "object"}}
