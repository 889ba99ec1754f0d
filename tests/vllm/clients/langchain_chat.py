"""LangChain's `ChatOpenAI`: `python langchain_chat.py http://host:port [call ...]`."""

import sys

from langchain_openai import ChatOpenAI
from told import QUESTION, tell_all

model = ChatOpenAI(
    model="tiny", base_url=f"{sys.argv[1]}/v1", api_key="unused", max_completion_tokens=12, temperature=0, seed=1
)


def told(message) -> dict:
    finish = message.response_metadata.get("finish_reason")
    usage = dict(message.usage_metadata) if message.usage_metadata else None
    return {"content": message.content, "finish": finish, "usage": usage}


def streamed() -> dict:
    first, *others = model.stream(QUESTION)
    return told(sum(others, first))


tell_all({"chat": lambda: told(model.invoke(QUESTION)), "chat streamed": streamed})
