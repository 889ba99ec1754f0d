"""curl from the command line: `python curl.py http://host:port [call ...]`."""

import json
import subprocess
import sys

from told import QUESTION, tell_all

CHAT = {
    "model": "tiny",
    "messages": [{"role": "user", "content": QUESTION}],
    "max_tokens": 12,
    "temperature": 0,
    "seed": 1,
}


def curl(*flags: str, **fields) -> str:
    url = f"{sys.argv[1]}/v1/chat/completions"
    command = ["curl", "-sS", "--fail", url, "-H", "content-type: application/json"]
    return subprocess.run(
        [*command, *flags, "-d", json.dumps({**CHAT, **fields})], check=True, capture_output=True, text=True
    ).stdout


def chat(*flags: str) -> dict:
    answer = json.loads(curl(*flags))
    choice = answer["choices"][0]
    return {"content": choice["message"]["content"], "finish": choice["finish_reason"], "usage": answer["usage"]}


def streamed_chat() -> dict:
    *events, last = curl("-N", stream=True, stream_options={"include_usage": True}).split("\n\n")[:-1]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    content = "".join(choice["delta"].get("content") or "" for choice in choices)
    return {"content": content, "finish": choices[-1]["finish_reason"], "usage": chunks[-1]["usage"], "last": last}


tell_all({"chat": chat, "chat streamed": streamed_chat, "chat with retries": lambda: chat("--retry", "3")})
