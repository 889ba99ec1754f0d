"""How each generating route is asked and how its engine answers: the smallest request, a stream and a whole answer."""

import json
from dataclasses import dataclass
from typing import Any

from tests.kit.guard import CHAT, COMPLETIONS
from tests.kit.stub import Call, completion

MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
INVOCATIONS = "/invocations"

Json = dict[str, Any]


@dataclass(frozen=True)
class Dialect:
    """One route. A stream is `opening`, any number of `token`, and `ending`, which names the usage of three tokens."""

    route: str
    prompt: Json
    cap: str
    opening: bytes
    token: bytes
    ending: bytes
    whole: Json
    cap_required: bool = False

    def __str__(self) -> str:
        return self.route

    def body(self, **fields: Any) -> Json:
        """A request; the cap where the route demands one is 100."""
        required = {self.cap: 100} if self.cap_required else {}
        return {"model": "tiny", **self.prompt, **required, **fields}

    def streamed(self) -> bytes:
        """A stream of three tokens."""
        return self.opening + 3 * self.token + self.ending

    async def answer(self, call: Call) -> None:
        """Three tokens, as a stream or whole."""
        if not call.hit.json.get("stream"):
            await call.reply(200, self.whole)
            return
        await call.start_stream()
        for part in (self.opening, *3 * [self.token], self.ending):
            if part:
                await call.chunk(part)
        await call.raw(b"0\r\n\r\n")


def _event(data: Json, name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


def _named(*events: Json) -> bytes:
    return b"".join(_event(data, data["type"]) for data in events)


def _openai(route: str, prompt: Json) -> Dialect:
    usage = {"choices": [], "usage": completion(16, 3)["usage"]}
    token = {"choices": [{"index": 0, "text": " x", "finish_reason": None}]}
    return Dialect(
        route=route,
        prompt=prompt,
        cap="max_tokens",
        opening=b"",
        token=_event(token),
        ending=_event(usage) + b"data: [DONE]\n\n",
        whole=completion(16, 3),
    )


_CONVERSATION: Json = {"messages": [{"role": "user", "content": "hi"}]}
_USAGE: Json = {"input_tokens": 16, "output_tokens": 3}
_MESSAGE: Json = {"id": "chatcmpl-a", "type": "message", "role": "assistant", "content": [], "model": "tiny"}
_RESPONSE: Json = {"id": "resp_a", "object": "response", "output": [], "status": "incomplete"}

DIALECTS = (
    _openai(COMPLETIONS, {"prompt": [1] * 16}),
    _openai(CHAT, _CONVERSATION),
    _openai(INVOCATIONS, _CONVERSATION),
    Dialect(
        route=MESSAGES,
        prompt=_CONVERSATION,
        cap="max_tokens",
        opening=_named(
            {"type": "message_start", "message": {**_MESSAGE, "usage": {"input_tokens": 16, "output_tokens": 0}}},
            {"type": "content_block_start", "content_block": {"type": "text", "text": ""}, "index": 0},
        ),
        token=_named({"type": "content_block_delta", "delta": {"type": "text_delta", "text": " x"}, "index": 0}),
        ending=_named(
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": _USAGE},
            {"type": "message_stop"},
        ),
        whole={**_MESSAGE, "content": [{"type": "text", "text": " x x x"}], "usage": _USAGE},
        cap_required=True,
    ),
    Dialect(
        route=RESPONSES,
        prompt={"input": "hi"},
        cap="max_output_tokens",
        opening=_named({"response": {**_RESPONSE, "usage": None}, "type": "response.created"}),
        token=_named({"delta": " x", "output_index": 0, "type": "response.output_text.delta"}),
        ending=_named(
            {"text": " x x x", "type": "response.output_text.done"},
            {"response": {**_RESPONSE, "usage": _USAGE}, "sequence_number": 9, "type": "response.completed"},
        ),
        whole={**_RESPONSE, "usage": _USAGE},
    ),
)
BY_ROUTE = {dialect.route: dialect for dialect in DIALECTS}
