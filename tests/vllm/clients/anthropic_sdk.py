"""The `anthropic` package as it comes: `python anthropic_sdk.py http://host:port [call ...]`."""

import sys

from anthropic import Anthropic
from told import QUESTION, WEATHER, tell_all

client = Anthropic(base_url=sys.argv[1], auth_token="unused")
COUNTED = {"model": "tiny", "messages": [{"role": "user", "content": QUESTION}]}
# The package has no `temperature` any more; vLLM still takes one.
CHAT = {**COUNTED, "max_tokens": 12, "extra_body": {"temperature": 0}}
TOOL = {"name": "get_weather", "input_schema": WEATHER}
WITH_TOOL = {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "get_weather"}, "max_tokens": 64}


def told(message) -> dict:
    content = "".join(block.text for block in message.content if block.type == "text")
    tools = [(block.name, block.input) for block in message.content if block.type == "tool_use"]
    return {"content": content, "finish": message.stop_reason, "usage": message.usage.model_dump(), "tools": tools}


def message(**fields) -> dict:
    return told(client.messages.create(**{**CHAT, **fields}))


def streamed_message(**fields) -> dict:
    with client.messages.stream(**{**CHAT, **fields}) as stream:
        pieces = list(stream.text_stream)
        return {**told(stream.get_final_message()), "streamed": "".join(pieces)}


tell_all(
    {
        "message": message,
        "message streamed": streamed_message,
        "message with a tool": lambda: message(**WITH_TOOL),
        "message with a tool streamed": lambda: streamed_message(**WITH_TOOL),
        "count": lambda: {"tokens": client.messages.count_tokens(**COUNTED).input_tokens},
    }
)
