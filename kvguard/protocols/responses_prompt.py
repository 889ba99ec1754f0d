"""The prompt of POST /v1/responses: `instructions`, `input` items and `tools` in the chat form.

Follows the conversion in vLLM 0.32 `entrypoints/openai/responses/utils.py`. Where the engine builds gpt-oss prompts
without a template, `previous_input_messages` are part of them; other models never see these, and are counted with them.
"""

import json
from collections.abc import Callable

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
from kvguard.protocols.fields import Fields, decode, is_set
from kvguard.protocols.prompts import ChatPrompt, OpenEndedPrompt, TokenPrompts

_TEXT_TYPES = ("input_text", "output_text")
_UNFINISHED = ("in_progress", "incomplete")
# The one-string function a `custom` tool is shown to the model as.
_CUSTOM_PARAMETERS: JsonObject = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The freeform text payload for this tool."}},
    "required": ["input"],
    "additionalProperties": False,
}


def prompt_of(fields: Fields) -> ChatPrompt | TokenPrompts | OpenEndedPrompt:
    """What the engine tokenises. Raises InvalidRequest naming the field at fault.

    With `previous_response_id` the engine adds history that only it has: the prompt is open-ended. By default it keeps
    none and answers 404.
    """
    try:
        return _prompt(fields)
    except RecursionError:
        raise too_deep() from None


def _prompt(fields: Fields) -> ChatPrompt | TokenPrompts | OpenEndedPrompt:
    if is_set(fields, "prompt"):
        raise InvalidRequest("'prompt' templates are not supported", param="prompt")
    given = decode(fields, "input")
    items = [] if isinstance(given, str) else object_list(given, "input")
    chat = _messages(fields, given if isinstance(given, str) else None, items)
    replaced = replaced_prompt(reused_ids(fields), chat)
    if replaced is not None:
        return replaced
    prompt = chat_prompt({"messages": chat, **_options(fields, items)})
    return OpenEndedPrompt(prompt) if is_set(fields, "previous_response_id") else prompt


def _options(fields: Fields, items: list[JsonObject]) -> JsonObject:
    """What else the template sees. Unlike chat, this route adds the tokenizer's own special tokens."""
    options: JsonObject = {"add_special_tokens": True}
    if items and _is_continued(items[-1]):
        options |= {"continue_final_message": True, "add_generation_prompt": False}
    tools = decode(fields, "tools")
    if tools:
        declared = object_list(tools, "tools")
        options["tools"] = [function_tool(shown) for tool in declared for shown in _shown(tool)]
    kwargs, reasoning = decode(fields, "chat_template_kwargs"), decode(fields, "reasoning")
    if kwargs is not None:
        options["chat_template_kwargs"] = kwargs
    if isinstance(reasoning, dict) and reasoning.get("effort") is not None:
        options["reasoning_effort"] = reasoning["effort"]
    return options


def _is_continued(last: JsonObject) -> bool:
    return last.get("type", "message") in ("message", "reasoning") and last.get("status") in _UNFINISHED


def _messages(fields: Fields, text: str | None, items: list[JsonObject]) -> list[JsonObject]:
    instructions = decode(fields, "instructions")
    if instructions is not None and not isinstance(instructions, str):
        raise InvalidRequest("'instructions' must be a string", param="instructions")
    chat: list[JsonObject] = [{"role": "system", "content": instructions}] if instructions else []
    previous = decode(fields, "previous_input_messages")
    if previous is not None:
        chat += _history(object_list(previous, "previous_input_messages"))
    if text is not None:
        return [*chat, {"role": "user", "content": text}]
    started = len(chat)
    for item in items:
        _add(_converted(item), chat, merge=len(chat) > started)
    return chat


def _history(previous: list[JsonObject]) -> list[JsonObject]:
    """Earlier messages in chat or harmony form as one text each, those of the system left out as the engine does."""
    chat: list[JsonObject] = []
    for message in previous:
        author = message.get("author")
        role = message.get("role", author.get("role") if isinstance(author, dict) else None)
        if role in ("system", "developer"):
            continue
        rest = {name: value for name, value in message.items() if name not in ("role", "author")}
        content = rest.get("content")
        text = content if isinstance(content, str) and len(rest) == 1 else json.dumps(rest, ensure_ascii=False)
        chat.append({"role": "user" if role == "user" else "assistant", "content": text})
    return chat


def _add(message: JsonObject, chat: list[JsonObject], *, merge: bool) -> None:
    """Append a message, or merge the part of an assistant turn it is into the turn before it.

    A turn takes any number of calls, and reasoning and content once each.
    """
    last = chat[-1] if merge else {}
    parts = [name for name in ("tool_calls", "reasoning", "content") if name in message]
    if last.get("role") != "assistant" or message.get("role") != "assistant" or len(parts) != 1:
        chat.append(message)
        return
    (part,) = parts
    held, new = last.get(part), message[part]
    if held is None and (part != "content" or isinstance(new, str)):
        last[part] = new
    elif part == "tool_calls" and isinstance(held, list) and isinstance(new, list):
        held.extend(new)
    else:
        chat.append(message)


def _converted(item: JsonObject) -> JsonObject:
    kind = item.get("type")
    read = _ITEMS.get(kind) if isinstance(kind, str) else None
    if read is not None:
        return read(item)
    if not isinstance(item.get("role"), str):
        raise InvalidRequest("'input' has an item of a type that cannot be read", param="input")
    if item["role"] != "assistant":
        return {**item, "content": _as_chat_parts(item.get("content"))}
    content = item.get("content")
    first = content[0] if isinstance(content, list) and content else None
    # Of an assistant message the engine takes the first part only.
    text = first.get("text") if isinstance(first, dict) else content
    return {"role": "assistant", "content": text} if isinstance(text, str) else item


def _as_chat_parts(content: object) -> object:
    """Text parts by the one name for them that `/tokenize` takes in every role."""
    if not isinstance(content, list):
        return content
    return [
        {**part, "type": "text"} if isinstance(part, dict) and part.get("type") in _TEXT_TYPES else part
        for part in content
    ]


def _call(item: JsonObject) -> JsonObject:
    name, namespace = text_of(item, "name", "input"), text_of(item, "namespace", "input")
    full = f"{namespace}__{name}" if namespace else name
    return _assistant_call(item, full, text_of(item, "arguments", "input"))


def _custom_call(item: JsonObject) -> JsonObject:
    arguments = json.dumps({"input": text_of(item, "input", "input")}, ensure_ascii=False)
    return _assistant_call(item, text_of(item, "name", "input"), arguments)


def _assistant_call(item: JsonObject, name: str, arguments: str) -> JsonObject:
    call_id = text_of(item, "call_id", "input")
    call: JsonObject = {"id": call_id, "function": {"name": name, "arguments": arguments}, "type": "function"}
    return {"role": "assistant", "tool_calls": [call]}


def _call_output(item: JsonObject) -> JsonObject:
    return {
        "role": "tool",
        "content": _as_chat_parts(item.get("output")),
        "tool_call_id": text_of(item, "call_id", "input"),
    }


def _reasoning(item: JsonObject) -> JsonObject:
    """The first text of the content, else of the summary."""
    if item.get("encrypted_content"):
        raise InvalidRequest("'input' has encrypted reasoning, which the engine cannot read", param="input")
    parts = item.get("content") or item.get("summary")
    texts = object_list(parts, "input") if parts else []
    return {"role": "assistant", "reasoning": text_of(texts[0], "text", "input") if texts else ""}


_ITEMS: dict[str, Callable[[JsonObject], JsonObject]] = {
    "function_call": _call,
    "custom_tool_call": _custom_call,
    "function_call_output": _call_output,
    "custom_tool_call_output": _call_output,
    "reasoning": _reasoning,
}


def _shown(tool: JsonObject) -> list[JsonObject]:
    """The functions a tool is to the model; tools the server itself runs are none."""
    kind = tool.get("type")
    if kind == "function":
        return [tool]
    if kind == "custom":
        return [{**tool, "parameters": _CUSTOM_PARAMETERS}]
    if kind != "namespace":
        return []
    namespace, inner = text_of(tool, "name", "tools"), object_list(tool.get("tools"), "tools")
    functions = [function for function in inner if function.get("type") == "function"]
    return [{**function, "name": f"{namespace}__{text_of(function, 'name', 'tools')}"} for function in functions]
