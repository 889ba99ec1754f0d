"""Locust, one user: chats plain and streamed in turn, an outcome a line.

`locust -f locustfile.py --headless -u 1 --host http://host:port`. It ends by itself after a few.
"""

import json

from locust import FastHttpUser, task
from told import QUESTION

CHATS = 6
CHAT = {
    "model": "tiny",
    "messages": [{"role": "user", "content": QUESTION}],
    "max_tokens": 12,
    "temperature": 0,
    "seed": 1,
}


def chunks_of(text: str) -> list[dict]:
    events = [event.removeprefix("data: ") for event in text.split("\n\n") if event]
    return [json.loads(event) for event in events if event != "[DONE]"]


class Chatter(FastHttpUser):
    """Asks the same thing again and again."""

    sent = 0

    @task
    def chat(self) -> None:
        """One chat."""
        streamed = self.sent % 2 == 1
        extra = {"stream": True, "stream_options": {"include_usage": True}} if streamed else {}
        with self.client.post("/v1/chat/completions", json={**CHAT, **extra}, catch_response=True) as answer:
            chunks = chunks_of(answer.text) if streamed else [answer.json()]
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        content = "".join(choice["delta" if streamed else "message"].get("content") or "" for choice in choices)
        outcome = {"content": content, "finish": choices[-1]["finish_reason"], "usage": chunks[-1]["usage"]}
        print(json.dumps({"call": f"chat {self.sent}", "status": answer.status_code, **outcome}), flush=True)
        self.sent += 1
        if self.sent == CHATS:
            self.environment.runner.quit()
