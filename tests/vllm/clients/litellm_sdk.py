"""The `litellm` package as a client: `python litellm_sdk.py http://host:port [call ...]`."""

import sys

import litellm
from told import QUESTION, tell_all

CHAT = {
    "model": "openai/tiny",
    "api_base": f"{sys.argv[1]}/v1",
    "api_key": "unused",
    "messages": [{"role": "user", "content": QUESTION}],
    "max_tokens": 12,
    "temperature": 0,
    "seed": 1,
}
COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")


def counts_of(answer) -> dict | None:
    usage = getattr(answer, "usage", None)
    return {name: usage[name] for name in COUNTS} if usage else None


def chat() -> dict:
    answer = litellm.completion(**CHAT)
    choice = answer.choices[0]
    return {"content": choice.message.content, "finish": choice.finish_reason, "usage": counts_of(answer)}


def streamed_chat(**fields) -> dict:
    content, finish, usage = "", None, None
    for chunk in litellm.completion(**CHAT, stream=True, **fields):
        usage = counts_of(chunk) or usage
        for choice in chunk.choices:
            content += choice.delta.content or ""
            finish = choice.finish_reason or finish
    return {"content": content, "finish": finish, "usage": usage}


tell_all(
    {
        "chat": chat,
        "chat streamed": streamed_chat,
        "chat streamed with usage": lambda: streamed_chat(stream_options={"include_usage": True}),
    }
)
