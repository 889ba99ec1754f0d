"""TGI's own `text-generation` client: `python text_generation_client.py http://host:port [call ...]`.

Its streamed chat is left out: it insists on `tool_calls` in every chunk and reads no `[DONE]`, whoever answers.
"""

import sys

from text_generation import Client
from told import PROMPT, QUESTION, tell_all

TOKENS = 12

client = Client(sys.argv[1], timeout=60)
messages = [{"role": "user", "content": QUESTION}]


def generate(**fields) -> dict:
    answer = client.generate(PROMPT, **{"max_new_tokens": TOKENS, **fields})
    details = answer.details
    return {
        "content": answer.generated_text,
        "finish": details.finish_reason,
        "tokens": details.generated_tokens,
        "prompt": len(details.prefill),
    }


def streamed(**fields) -> dict:
    frames = list(client.generate_stream(PROMPT, **{"max_new_tokens": TOKENS, **fields}))
    text = "".join(frame.token.text for frame in frames if not frame.token.special)
    return {"content": text, "whole": frames[-1].generated_text, "tokens": len(frames)}


def chat() -> dict:
    answer = client.chat(messages, max_tokens=TOKENS)
    return {"content": answer.choices[0].message.content, "tokens": answer.usage["completion_tokens"]}


tell_all(
    {
        "generate": generate,
        "best of two": lambda: generate(best_of=2, do_sample=True),
        "generate streamed": streamed,
        "chat": chat,
    }
)
