"""vLLM's answers: one JSON object for a plain call, one SSE chunk per token for a stream. Pure; `app` sends them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from kvguard.simulator.engine import FinishReason, SimToken
from kvguard.simulator.text import compact_json, output_word
from kvguard.simulator.wire import Call

DONE = b"data: [DONE]\n\n"
FINGERPRINT = "kvguard-simulator"

Json = dict[str, object]


class Shape(Protocol):
    """What differs between the two APIs."""

    id_prefix: str
    chunk_kind: str
    answer_kind: str

    def opening_choice(self, choice: int) -> Json | None:
        """The choice of the chunk that precedes all tokens, if the API has one."""
        ...

    def chunk_choice(self, choice: int, text: str, reason: str | None) -> Json: ...

    def whole_choice(self, choice: int, text: str, reason: str | None) -> Json: ...


class CompletionShape:
    id_prefix = "cmpl-"
    chunk_kind = "text_completion"
    answer_kind = "text_completion"

    def opening_choice(self, choice: int) -> None:
        return None

    def chunk_choice(self, choice: int, text: str, reason: str | None) -> Json:
        return _choice(choice, {"text": text}, reason) | {
            "stop_reason": None,
            "prompt_token_ids": None,
            "token_ids": None,
        }

    def whole_choice(self, choice: int, text: str, reason: str | None) -> Json:
        return _choice(choice, {"text": text}, reason) | {
            "stop_reason": None,
            "token_ids": None,
            "prompt_logprobs": None,
            "prompt_token_ids": None,
        }


class ChatShape:
    id_prefix = "chatcmpl-"
    chunk_kind = "chat.completion.chunk"
    answer_kind = "chat.completion"

    def opening_choice(self, choice: int) -> Json:
        return _choice(choice, {"delta": {"role": "assistant", "content": ""}}, None)

    def chunk_choice(self, choice: int, text: str, reason: str | None) -> Json:
        stop_reason = {} if reason is None else {"stop_reason": None}
        return _choice(choice, {"delta": {"content": text}}, reason) | stop_reason | {"token_ids": None}

    def whole_choice(self, choice: int, text: str, reason: str | None) -> Json:
        message = {"role": "assistant", "content": text, "refusal": None, "reasoning": None}
        return _choice(choice, {"message": message}, reason) | {"stop_reason": None, "token_ids": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The fields every object of one answer repeats."""

    answer_id: str
    created: int
    model: str

    def fields(self, kind: str) -> Json:
        return {"id": self.answer_id, "object": kind, "created": self.created, "model": self.model}


class AnyAnswer(Protocol):
    """One call's answer as its tokens arrive: feed every token to `chunks` (a stream) or to `add` (a plain answer)."""

    def chunks(self, choice: int, token: SimToken) -> Iterator[bytes]: ...

    def closing(self) -> Iterator[bytes]: ...

    def add(self, choice: int, token: SimToken) -> None: ...

    def whole(self) -> Json: ...


class Answer:
    """The answer in choices, as chat and completions have it."""

    def __init__(self, shape: Shape, head: Head, call: Call) -> None:
        self._shape = shape
        self._head = head
        self._call = call
        self._open_choices = len(call.sequences)
        self._produced = [0] * len(call.sequences)
        self._texts: list[list[str]] = [[] for _ in call.sequences]
        self._reasons: list[str | None] = [None] * len(call.sequences)

    def chunks(self, choice: int, token: SimToken) -> Iterator[bytes]:
        """The chunk of one token, before the very first one the opening chunk of every choice."""
        if not any(self._produced):
            yield from self._opening()
        self._count(choice, token)
        body = self._chunk_fields(self._shape.chunk_choice(choice, text_of(choice, token), token.finish_reason))
        if self._call.continuous_usage:
            body["usage"] = self._usage_of(choice)
        if not self._open_choices and not self._call.include_usage:
            body["system_fingerprint"] = FINGERPRINT
        yield _event(body)

    def closing(self) -> Iterator[bytes]:
        if self._call.include_usage:
            fields = self._head.fields(self._shape.chunk_kind)
            yield _event(fields | {"choices": [], "usage": self._usage(), "system_fingerprint": FINGERPRINT})
        yield DONE

    def add(self, choice: int, token: SimToken) -> None:
        self._count(choice, token)
        self._texts[choice].append(text_of(choice, token))
        self._reasons[choice] = token.finish_reason

    def whole(self) -> Json:
        choices = [
            self._shape.whole_choice(choice, "".join(text), self._reasons[choice])
            for choice, text in enumerate(self._texts)
        ]
        usage = self._usage() | {"prompt_tokens_details": None, "completion_tokens_details": None}
        tail = {"service_tier": None, "system_fingerprint": FINGERPRINT, "usage": usage, "kv_transfer_params": None}
        return self._head.fields(self._shape.answer_kind) | {"choices": choices} | tail

    def _opening(self) -> Iterator[bytes]:
        for choice in range(len(self._produced)):
            opening = self._shape.opening_choice(choice)
            if opening is None:
                return
            body = self._chunk_fields(opening)
            if self._call.continuous_usage:
                body["usage"] = self._usage_of(choice)
            yield _event(body | {"prompt_token_ids": None, "prompt_text": None})

    def _chunk_fields(self, choice: Json) -> Json:
        return self._head.fields(self._shape.chunk_kind) | {"choices": [choice]}

    def _count(self, choice: int, token: SimToken) -> None:
        self._produced[choice] += 1
        self._open_choices -= token.finish_reason is not None

    def _usage(self) -> Json:
        return _usage(self._call.prompt_tokens, sum(self._produced))

    def _usage_of(self, choice: int) -> Json:
        prompt_tokens = self._call.sequences[choice].prompt_tokens
        return _usage(prompt_tokens, self._produced[choice]) | {"completion_tokens_details": None}


def _choice(choice: int, content: Json, reason: str | None) -> Json:
    return {"index": choice, **content, "logprobs": None, "finish_reason": reason}


def _usage(prompt_tokens: int, completion_tokens: int) -> Json:
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }


def text_of(choice: int, token: SimToken) -> str:
    """The token that ends a sequence by itself is the end mark: counted, but without text."""
    return "" if token.finish_reason is FinishReason.STOP else output_word(token.position, choice)


def _event(body: Json) -> bytes:
    return f"data: {compact_json(body)}\n\n".encode()
