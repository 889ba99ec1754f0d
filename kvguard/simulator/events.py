"""vLLM's answers of `/v1/messages` and `/v1/responses`: one text of one sequence, whole or as named events. Pure."""

from collections.abc import Iterator

from kvguard.simulator.answers import Head, Json, text_of
from kvguard.simulator.engine import FinishReason, SimToken
from kvguard.simulator.text import compact_json
from kvguard.simulator.wire import Call


class MessagesAnswer:
    """Anthropic's message: a block of text between the events that open and close it."""

    def __init__(self, head: Head, call: Call) -> None:
        self._head = head
        self._call = call
        self._text = _Text()

    def chunks(self, choice: int, token: SimToken) -> Iterator[bytes]:
        """The deltas of one token, before the very first one the message's own opening."""
        if not self._text.tokens:
            yield _event({"type": "message_start", "message": self._message([], {"stop_sequence": None})})
            yield _event({"type": "content_block_start", "content_block": {"type": "text", "text": ""}, "index": 0})
        word = self._text.add(choice, token)
        if word:
            delta = {"type": "text_delta", "text": word}
            yield _event({"type": "content_block_delta", "delta": delta, "index": 0})

    def closing(self) -> Iterator[bytes]:
        yield _event({"type": "content_block_stop", "index": 0})
        delta = {"stop_reason": self._stop_reason(), "stop_sequence": None}
        yield _event({"type": "message_delta", "delta": delta, "usage": self._usage()})
        yield _event({"type": "message_stop"})

    def add(self, choice: int, token: SimToken) -> None:
        self._text.add(choice, token)

    def whole(self) -> Json:
        return self._message([{"type": "text", "text": str(self._text)}])

    def _message(self, content: list[Json], more: Json | None = None) -> Json:
        said = {"content": content, "model": self._head.model, "stop_reason": self._stop_reason(), **(more or {})}
        return {"id": self._head.answer_id, "type": "message", "role": "assistant", **said, "usage": self._usage()}

    def _stop_reason(self) -> str | None:
        if self._text.reason is None:
            return None
        return "max_tokens" if self._text.is_cut else "end_turn"

    def _usage(self) -> Json:
        return {"input_tokens": self._call.prompt_tokens, "output_tokens": self._text.tokens}


class ResponsesAnswer:
    """OpenAI's response: one message of one part of text; every event is numbered, and the last repeats the answer."""

    def __init__(self, head: Head, call: Call) -> None:
        self._head = head
        self._call = call
        self._text = _Text()
        self._number = 0
        self._item_id = "msg_" + head.answer_id.removeprefix("resp_")

    def chunks(self, choice: int, token: SimToken) -> Iterator[bytes]:
        """The deltas of one token, before the very first one what opens the response, its item and its part."""
        if not self._text.tokens:
            yield from self._opening()
        word = self._text.add(choice, token)
        if word:
            yield self._part_event("output_text.delta", {"delta": word, "logprobs": []})

    def closing(self) -> Iterator[bytes]:
        yield self._part_event("output_text.done", {"logprobs": [], "text": str(self._text)})
        yield self._part_event("content_part.done", {"part": self._part()})
        yield self._event("output_item.done", {"item": self._item("completed", [self._part()]), "output_index": 0})
        yield self._event("completed", {"response": self.whole()})

    def add(self, choice: int, token: SimToken) -> None:
        self._text.add(choice, token)

    def whole(self) -> Json:
        status = "incomplete" if self._text.is_cut else "completed"
        return self._response(status, [self._item("completed", [self._part()])], self._usage())

    def _opening(self) -> Iterator[bytes]:
        yield self._event("created", {"response": self._response("in_progress", [], None)})
        yield self._event("in_progress", {"response": self._response("in_progress", [], None)})
        yield self._event("output_item.added", {"item": self._item("in_progress", []), "output_index": 0})
        yield self._part_event("content_part.added", {"part": self._part()})

    def _response(self, status: str, output: list[Json], usage: Json | None) -> Json:
        return {
            "id": self._head.answer_id,
            "created_at": self._head.created,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self._head.model,
            "object": "response",
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "none",
            "tools": [],
            "background": False,
            "max_output_tokens": self._call.sequences[0].max_tokens,
            "status": status,
            "usage": usage,
        }

    def _item(self, status: str, content: list[Json]) -> Json:
        return {"id": self._item_id, "content": content, "role": "assistant", "status": status, "type": "message"}

    def _part(self) -> Json:
        return {"annotations": [], "text": str(self._text), "type": "output_text", "logprobs": None}

    def _usage(self) -> Json:
        asked, produced = self._call.prompt_tokens, self._text.tokens
        return {
            "input_tokens": asked,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": produced,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": asked + produced,
        }

    def _part_event(self, name: str, fields: Json) -> bytes:
        return self._event(name, {"content_index": 0, "item_id": self._item_id, "output_index": 0, **fields})

    def _event(self, name: str, fields: Json) -> bytes:
        number, self._number = self._number, self._number + 1
        return _event({**fields, "sequence_number": number, "type": f"response.{name}"})


class _Text:
    """What has come of the sequence."""

    def __init__(self) -> None:
        self.tokens = 0
        self.reason: FinishReason | None = None
        self._words: list[str] = []

    def __str__(self) -> str:
        return "".join(self._words)

    @property
    def is_cut(self) -> bool:
        """Whether the cap ended it."""
        return self.reason is FinishReason.LENGTH

    def add(self, choice: int, token: SimToken) -> str:
        """The token's own text."""
        self.tokens += 1
        self.reason = token.finish_reason
        self._words.append(text_of(choice, token))
        return self._words[-1]


def _event(body: Json) -> bytes:
    """An event named by its type, as both APIs do."""
    return f"event: {body['type']}\ndata: {compact_json(body)}\n\n".encode()
