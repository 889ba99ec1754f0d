"""`huggingface_hub.InferenceClient` in front of TGI: `python inference_client.py http://host:port [call ...]`."""

import sys

from huggingface_hub import InferenceClient
from told import PROMPT, QUESTION, tell_all

TOKENS = 12
LONG = 100_000

client = InferenceClient(model=sys.argv[1], timeout=60)
messages = [{"role": "user", "content": QUESTION}]


def generate(*, tokens: int = TOKENS) -> dict:
    answer = client.text_generation(PROMPT, max_new_tokens=tokens, details=True, return_full_text=False)
    details = answer.details
    return {"content": answer.generated_text, "finish": str(details.finish_reason), "tokens": details.generated_tokens}


def generate_streamed(**fields) -> dict:
    frames = list(client.text_generation(fields.pop("prompt", PROMPT), stream=True, details=True, **fields))
    return {
        "content": frames[-1].generated_text,
        "tokens": len(frames),
        "finish": str(frames[-1].details.finish_reason),
    }


def plain() -> dict:
    return {"content": client.text_generation(PROMPT, max_new_tokens=TOKENS)}


def chat() -> dict:
    answer = client.chat_completion(messages, max_tokens=TOKENS)
    choice, usage = answer.choices[0], answer.usage
    return {"content": choice.message.content, "finish": choice.finish_reason, "tokens": usage.completion_tokens}


def chat_streamed() -> dict:
    chunks = list(client.chat_completion(messages, max_tokens=TOKENS, stream=True))
    choices = [choice for chunk in chunks for choice in chunk.choices]
    return {"content": "".join(c.delta.content or "" for c in choices), "finish": choices[-1].finish_reason}


tell_all(
    {
        "generate": generate,
        "generate plain": plain,
        "generate streamed": lambda: generate_streamed(max_new_tokens=TOKENS),
        "generate invalid": lambda: generate(tokens=0),
        "generate invalid streamed": lambda: generate_streamed(max_new_tokens=0),
        "generate much": lambda: generate(tokens=LONG),
        "chat": chat,
        "chat streamed": chat_streamed,
    }
)
