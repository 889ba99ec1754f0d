"""The `openai` package as it comes: `python openai_sdk.py http://host:port [call ...]`."""

import sys
from collections.abc import Iterable

from openai import OpenAI
from told import PROMPT, QUESTION, WEATHER, tell_all

client = OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="unused")
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "seed": 1}
COMPLETION = {"model": "tiny", "prompt": PROMPT, "max_tokens": 12, "temperature": 0, "seed": 1}
RESPONSE = {"model": "tiny", "input": QUESTION, "max_output_tokens": 12, "temperature": 0}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}}
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def usage_of(answer) -> dict | None:
    return answer.usage.model_dump() if answer.usage else None


def chat(**fields) -> dict:
    answer = client.chat.completions.create(**{**CHAT, "max_tokens": 12, **fields})
    choice = answer.choices[0]
    calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]
    told = {"content": choice.message.content, "finish": choice.finish_reason, "usage": usage_of(answer)}
    return {**told, "tools": calls, "fingerprint": answer.system_fingerprint}


def read_chat(chunks: Iterable) -> dict:
    content, finish, usage, fingerprint, name, arguments = "", None, None, None, "", ""
    for chunk in chunks:
        usage = usage_of(chunk) or usage
        fingerprint = chunk.system_fingerprint or fingerprint
        for choice in chunk.choices:
            content += choice.delta.content or ""
            finish = choice.finish_reason or finish
            for call in choice.delta.tool_calls or ():
                name += call.function.name or ""
                arguments += call.function.arguments or ""
    tools = [(name, arguments)] if name else []
    return {"content": content, "finish": finish, "usage": usage, "tools": tools, "fingerprint": fingerprint}


def streamed_chat(**fields) -> dict:
    return read_chat(client.chat.completions.create(**{**CHAT, "max_tokens": 12, "stream": True, **fields}))


def completion() -> dict:
    answer = client.completions.create(**COMPLETION)
    return {"content": answer.choices[0].text, "finish": answer.choices[0].finish_reason, "usage": usage_of(answer)}


def streamed_completion(**fields) -> dict:
    content, finish, usage = "", None, None
    for chunk in client.completions.create(**COMPLETION, stream=True, **fields):
        usage = usage_of(chunk) or usage
        for choice in chunk.choices:
            content += choice.text
            finish = choice.finish_reason or finish
    return {"content": content, "finish": finish, "usage": usage}


def response() -> dict:
    answer = client.responses.create(**RESPONSE)
    return {"content": answer.output_text, "finish": answer.status, "usage": usage_of(answer)}


def streamed_response() -> dict:
    content, finish, usage = "", None, None
    for event in client.responses.create(**RESPONSE, stream=True):
        if event.type == "response.output_text.delta":
            content += event.delta
        if event.type in ("response.completed", "response.incomplete"):
            finish, usage = event.response.status, usage_of(event.response)
    return {"content": content, "finish": finish, "usage": usage}


WITH_USAGE = {"stream_options": {"include_usage": True}}
WITH_TOOL = {"tools": [TOOL], "tool_choice": NAMED, "max_tokens": 64}

tell_all(
    {
        "chat": chat,
        "chat streamed": streamed_chat,
        "chat streamed with usage": lambda: streamed_chat(**WITH_USAGE),
        "chat with a tool": lambda: chat(**WITH_TOOL),
        "chat with a tool streamed": lambda: streamed_chat(**WITH_TOOL),
        "completion": completion,
        "completion streamed": streamed_completion,
        "completion streamed with usage": lambda: streamed_completion(**WITH_USAGE),
        "response": response,
        "response streamed": streamed_response,
    }
)
