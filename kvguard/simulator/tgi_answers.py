"""TGI's answers: one JSON object for a plain call, one event per token for a stream. Pure; `tgi_app` sends them."""

import zlib
from dataclasses import dataclass
from typing import Final, Protocol

from kvguard.simulator.engine import FinishReason, SimToken
from kvguard.simulator.text import SPECIAL_TOKENS, VOCABULARY_SIZE, compact_json, output_word
from kvguard.simulator.tgi_config import Version
from kvguard.simulator.tgi_wire import TgiCall, TgiError

Json = dict[str, object]
DONE: Final = "[DONE]"
_NATIVE: Final = {FinishReason.STOP: "eos_token", FinishReason.LENGTH: "length"}
_OPENAI: Final = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}
_END_ID: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What every object of OpenAI's shape repeats."""

    created: int
    model: str
    version: str

    def fields(self, kind: str) -> Json:
        return {
            "object": kind,
            "id": "",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": f"{self.version}-sha-0000000",
        }


class Shape(Protocol):
    """How one API writes an answer; `choices` are the generations so far."""

    def event(self, choice: int, token: SimToken, choices: "list[Choice]") -> Json: ...

    def closing(self, choices: "list[Choice]") -> list[Json | str]: ...

    def whole(self, choices: "list[Choice]") -> object: ...

    def failure(self, error: TgiError) -> list[Json | str]: ...


class Choice:
    """One generation as its tokens come."""

    def __init__(self, number: int, prompt_tokens: int) -> None:
        self.number = number
        self.prompt_tokens = prompt_tokens
        self.tokens: list[SimToken] = []

    def add(self, token: SimToken) -> None:
        self.tokens.append(token)

    @property
    def text(self) -> str:
        return "".join(text_of(self.number, token) for token in self.tokens)

    @property
    def reason(self) -> FinishReason | None:
        return self.tokens[-1].finish_reason if self.tokens else None

    @property
    def usage(self) -> Json:
        """Tokens as OpenAI's routes count them."""
        return _usage(self.prompt_tokens, len(self.tokens))


def _usage(prompt: int, generated: int) -> Json:
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}


def text_of(choice: int, token: SimToken) -> str:
    """The token that ends a sequence by itself is the end mark: counted, but without text."""
    return "" if token.finish_reason is FinishReason.STOP else output_word(token.position, choice)


class NativeShape:
    """`/generate`, `/generate_stream`, and with `listed` the answers of `/`."""

    def __init__(self, call: TgiCall, release: Version, *, listed: bool = False) -> None:
        self._call = call
        self._release = release
        self._listed = listed

    def event(self, choice: int, token: SimToken, choices: list[Choice]) -> Json:
        one = choices[choice]
        last = one.reason is not None
        return {
            "index": token.position + 1,
            "token": _token(choice, token),
            "generated_text": one.text if last else None,
            "details": self._ending(one) if last and self._call.details else None,
        }

    def closing(self, choices: list[Choice]) -> list[Json | str]:
        return []

    def whole(self, choices: list[Choice]) -> object:
        """The best is the first: words have no probabilities."""
        best, *others = choices
        answer: Json = {"generated_text": (self._call.inputs if self._call.full_text else "") + best.text}
        if self._call.details:
            answer["details"] = self._details(best)
            if others:
                sequences = [{"generated_text": other.text, **self._details(other)} for other in others]
                answer["details"] = {**self._details(best), "best_of_sequences": sequences}
        return [answer] if self._listed else answer

    def failure(self, error: TgiError) -> list[Json | str]:
        return [{"error": error.message, "error_type": error.kind}]

    def _ending(self, choice: Choice) -> Json:
        ending: Json = {
            "finish_reason": _NATIVE[choice.reason or FinishReason.LENGTH],
            "generated_tokens": len(choice.tokens),
            "seed": self._call.seed,
        }
        return {**ending, "input_length": choice.prompt_tokens} if self._release >= (2, 3, 0) else ending

    def _details(self, choice: Choice) -> Json:
        ending = self._ending(choice)
        ending.pop("input_length", None)
        return {**ending, "prefill": [], "tokens": [_token(choice.number, token) for token in choice.tokens]}


def _token(choice: int, token: SimToken) -> Json:
    text = text_of(choice, token)
    special = token.finish_reason is FinishReason.STOP
    number = SPECIAL_TOKENS + zlib.crc32(text.encode()) % (VOCABULARY_SIZE - SPECIAL_TOKENS)
    return {"id": _END_ID if special else number, "text": text, "logprob": -0.5, "special": special}


class _OpenAiShape:
    """What chat and completions have in common."""

    def __init__(self, call: TgiCall, head: Head, release: Version) -> None:
        self._call = call
        self._head = head
        self._release = release

    def failure(self, error: TgiError) -> list[Json | str]:
        """From 2.4.1 on under a status that is always the same."""
        body: Json = {"error": error.message, "error_type": error.kind}
        if self._release >= (2, 4, 1):
            body = {"error": {"message": error.message, "http_status_code": 422}}
        return [body, *self._done()]

    def _done(self) -> list[Json | str]:
        return [DONE] if self._release >= (2, 2, 0) else []


class ChatShape(_OpenAiShape):
    """`/v1/chat/completions`."""

    def event(self, choice: int, token: SimToken, choices: list[Choice]) -> Json:
        one = choices[choice]
        delta = {"role": "assistant", "content": text_of(choice, token)}
        reason = None if one.reason is None else _OPENAI[one.reason]
        listed = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]
        return {**self._head.fields("chat.completion.chunk"), "choices": listed, "usage": None}

    def closing(self, choices: list[Choice]) -> list[Json | str]:
        ends: list[Json | str] = []
        if self._call.include_usage:
            head = self._head.fields("chat.completion.chunk")
            ends.append({**head, "choices": [], "usage": choices[0].usage})
        return [*ends, *self._done()]

    def whole(self, choices: list[Choice]) -> object:
        [one] = choices
        message = {"role": "assistant", "content": one.text}
        reason = _OPENAI[one.reason or FinishReason.LENGTH]
        listed = [{"index": 0, "message": message, "logprobs": None, "finish_reason": reason}]
        return {**self._head.fields("chat.completion"), "choices": listed, "usage": one.usage}


class CompletionShape(_OpenAiShape):
    """`/v1/completions`; streamed it names the end as the native API does, and every prompt has a usage of its own."""

    def event(self, choice: int, token: SimToken, choices: list[Choice]) -> Json:
        one, head = choices[choice], self._head.fields("text_completion")
        text = text_of(choice, token)
        if one.reason is None:
            listed = [{"index": choice, "text": text, "logprobs": None, "finish_reason": ""}]
            model, fingerprint = head.pop("model"), head.pop("system_fingerprint")
            return {**head, "choices": listed, "model": model, "system_fingerprint": fingerprint}
        listed = [{"index": choice, "text": text, "logprobs": None, "finish_reason": _NATIVE[one.reason]}]
        return {**head, "choices": listed, "usage": one.usage}

    def closing(self, choices: list[Choice]) -> list[Json | str]:
        return self._done()

    def whole(self, choices: list[Choice]) -> object:
        listed = [
            {
                "index": one.number,
                "text": one.text,
                "logprobs": None,
                "finish_reason": _OPENAI[one.reason or FinishReason.LENGTH],
            }
            for one in choices
        ]
        usage = _usage(sum(one.prompt_tokens for one in choices), sum(len(one.tokens) for one in choices))
        return {**self._head.fields("text_completion"), "choices": listed, "usage": usage}


def frame(content: Json | str, release: Version) -> bytes:
    """A server-sent event; up to 2.0 without a space."""
    text = content if isinstance(content, str) else compact_json(content)
    return f"data:{' ' if release >= (2, 1, 0) else ''}{text}\n\n".encode()
