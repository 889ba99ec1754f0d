"""vLLM's request bodies: JSON to a `Call` the engine can run, or an `ApiError` in vLLM's words.

pydantic's lax mode is what vLLM validates with, so "5" and 5.0 are numbers, 5.5 is not, and unknown keys are ignored.
"""

import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

from pydantic import BaseModel, Field, ValidationError

from kvguard.errors import InvalidRequest
from kvguard.protocols import anthropic_prompt, responses_prompt
from kvguard.protocols.fields import Fields, read_fields, write_fields
from kvguard.protocols.prompts import ChatPrompt, Prompt, TokenPrompts
from kvguard.simulator.blocks import chained_hashes
from kvguard.simulator.config import SimConfig
from kvguard.simulator.engine import SequenceRequest
from kvguard.simulator.text import ChatMessage, chat_token_ids, compact_json, token_ids

DEFAULT_COMPLETION_TOKENS = 16
MAX_PROMPTS = 1024
MAX_SEQUENCES = 16_384
MAX_SHOWN_INPUT_CHARACTERS = 80

TokenId = Annotated[int, Field(ge=0, strict=True)]


class ApiError(Exception):
    """A refusal in the OpenAI error shape."""

    def __init__(
        self, message: str, *, kind: str = "BadRequestError", param: str | None = None, status: int = 400
    ) -> None:
        message = message.encode(errors="replace").decode()  # half a character cannot be sent back
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}

    @property
    def envelope(self) -> dict[str, object]:
        """The body on Anthropic's routes, where only errors of the schema keep the OpenAI shape."""
        error = self.body["error"]
        if error["type"] == "Bad Request":
            return dict(self.body)
        return {"type": "error", "error": {"type": error["type"], "message": error["message"]}}


class StreamOptions(BaseModel):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class GenerationBody(BaseModel):
    """What completions and chat have in common."""

    model: str | None = None
    max_tokens: int | None = None
    min_tokens: Annotated[int, Field(ge=0)] = 0
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool = False
    use_beam_search: bool = False
    temperature: float | None = None
    cache_salt: str | None = None


class CompletionBody(GenerationBody):
    echo: bool | None = False
    add_special_tokens: bool = True
    prompt: str | list[TokenId] | list[str] | list[list[TokenId]]


class MessageBody(BaseModel):
    role: str
    content: str | list[dict[str, object]] | None = None
    tool_calls: list[dict[str, object]] | None = None


class ChatBody(GenerationBody):
    messages: list[MessageBody]
    tools: list[dict[str, object]] | None = None
    max_completion_tokens: int | None = None
    echo: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False


class MessagesBody(BaseModel):
    model: str | None = None
    max_tokens: Annotated[int, Field(gt=0)]
    stream: bool | None = None


class ResponsesBody(BaseModel):
    model: str | None = None
    max_output_tokens: int | None = None
    stream: bool | None = None
    ignore_eos: bool = False
    cache_salt: str | None = None


class CountBody(BaseModel):
    model: str


class TokenizeBody(BaseModel):
    model: str | None = None
    prompt: str | None = None
    messages: list[MessageBody] | None = None
    tools: list[dict[str, object]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One validated request: `sequences` in choice order, prompt by prompt, `n` of each."""

    sequences: tuple[SequenceRequest, ...]
    prompt_tokens: int
    stream: bool
    include_usage: bool
    continuous_usage: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prompt:
    """One prompt of a request; what is counted by its length alone shares no blocks."""

    tokens: int
    ids: Sequence[int] = ()


AnyBody = TypeVar("AnyBody", bound=BaseModel)


def completion_call(raw: bytes, config: SimConfig) -> Call:
    body = _parse(raw, CompletionBody)
    _check_model(body.model, config)
    if body.use_beam_search and body.stream:
        raise ApiError("Streaming is not currently supported with beam search")
    cap = DEFAULT_COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    return _call(body, _prompts(body.prompt), cap, config)


def chat_call(raw: bytes, config: SimConfig) -> Call:
    body = _parse(raw, ChatBody)
    _check_model(body.model, config)
    cap = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    return _call(body, [_of_ids(_chat_ids(body, body.messages))], cap, config)


def messages_call(raw: bytes, config: SimConfig) -> Call:
    body = _parse(raw, MessagesBody)
    shared = GenerationBody(model=body.model, stream=body.stream)
    return _conversation_call(raw, anthropic_prompt.prompt_of, shared, body.max_tokens, config)


def responses_call(raw: bytes, config: SimConfig) -> Call:
    body = _parse(raw, ResponsesBody)
    shared = GenerationBody(
        model=body.model, stream=body.stream, ignore_eos=body.ignore_eos, cache_salt=body.cache_salt
    )
    return _conversation_call(raw, responses_prompt.prompt_of, shared, body.max_output_tokens, config)


def _conversation_call(
    raw: bytes, prompt_of: Callable[[Fields], Prompt], body: GenerationBody, cap: int | None, config: SimConfig
) -> Call:
    """A call of which kvguard's own reader makes a chat; against this engine it is not put to the test."""
    _check_model(body.model, config)
    try:
        prompt = prompt_of(read_fields(raw))
    except InvalidRequest as error:
        raise ApiError(error.message, kind="Bad Request", param=error.param) from error
    if isinstance(prompt, ChatPrompt):
        chat = _parse(write_fields(prompt.fields), TokenizeBody)
        return _call(body, [_of_ids(_chat_ids(chat, chat.messages or []))], cap, config)
    if isinstance(prompt, TokenPrompts):
        return _call(body, [_Prompt(tokens=length) for length in prompt.lengths], cap, config)
    raise ApiError("No earlier responses are kept.", kind="NotFoundError", param="previous_response_id", status=404)


def tokenize_answer(raw: bytes, config: SimConfig) -> dict[str, object]:
    body = _parse(raw, TokenizeBody)
    _check_model(body.model, config)
    if body.messages is not None:
        ids = _chat_ids(body, body.messages)
    elif body.prompt is not None:
        ids = token_ids(body.prompt)
    else:
        raise _schema_error([{"type": "missing", "loc": "body.prompt", "msg": "Field required"}])
    return {"count": len(ids), "max_model_len": config.max_model_len, "tokens": ids, "token_strs": None}


def count_answer(raw: bytes, config: SimConfig) -> dict[str, object]:
    """What `/v1/messages/count_tokens` says."""
    shared = GenerationBody(model=_parse(raw, CountBody).model)
    call = _conversation_call(raw, anthropic_prompt.prompt_of, shared, 1, config)
    return {"input_tokens": call.prompt_tokens}


def _parse(raw: bytes, shape: type[AnyBody]) -> AnyBody:
    try:
        return shape.model_validate(json.loads(raw))
    except ValidationError as error:
        raise _schema_error(_described(error)) from error
    except json.JSONDecodeError as error:
        described = {"type": "json_invalid", "loc": f"body.{error.pos}", "msg": "JSON decode error", "input": "{}"}
        raise _schema_error([described | {"ctx": {"error": error.msg}}]) from error
    except (ValueError, RecursionError) as error:  # no UTF-8, or a number longer than Python reads
        raise ApiError("There was an error parsing the body", kind="Bad Request") from error


def _described(error: ValidationError) -> list[dict[str, object]]:
    return [
        {
            "type": detail["type"],
            "loc": ".".join(["body", *(str(part) for part in detail["loc"])]),
            "msg": detail["msg"],
            "input": _shown(detail["input"]),
        }
        for detail in error.errors(include_url=False)
    ]


def _shown(value: object) -> str:
    if isinstance(value, dict | list):
        return f"<{type(value).__name__} of {len(value)} items>"
    return str(value)[:MAX_SHOWN_INPUT_CHARACTERS]


def _schema_error(errors: Sequence[dict[str, object]]) -> ApiError:
    lines = "\n".join(f"  {detail}" for detail in errors)
    count = f"{len(errors)} validation error{'' if len(errors) == 1 else 's'}"
    return ApiError(f"{count}:\n{lines}", kind="Bad Request", param=str(errors[0]["loc"]))


def _check_model(model: str | None, config: SimConfig) -> None:
    """A missing or empty name means the model that is there."""
    if model and model != config.model:
        message = f"The model `{model}` does not exist. Valid aliases: {config.model}."
        raise ApiError(message, kind="NotFoundError", param="model", status=404)


def _prompts(prompt: str | list[int] | list[str] | list[list[int]]) -> list[_Prompt]:
    """A flat list of ids is one prompt."""
    if isinstance(prompt, str):
        return [_of_ids(token_ids(prompt))]
    ids = [item for item in prompt if isinstance(item, int)]
    if len(ids) == len(prompt):
        return [_of_ids(ids)]
    if len(prompt) > MAX_PROMPTS:
        raise ApiError(f"prompt may hold at most {MAX_PROMPTS} entries, got {len(prompt)}", param="prompt")
    return [_of_ids(token_ids(item) if isinstance(item, str) else item) for item in prompt if not isinstance(item, int)]


def _of_ids(ids: Sequence[int]) -> _Prompt:
    return _Prompt(tokens=len(ids), ids=ids)


def _chat_ids(body: ChatBody | TokenizeBody, messages: Sequence[MessageBody]) -> list[int]:
    try:
        rendered = [_message(message) for message in messages]
        return chat_token_ids(rendered, body.tools or (), add_generation_prompt=body.add_generation_prompt)
    except RecursionError as error:
        raise ApiError("The tools or tool calls are nested too deeply", kind="Bad Request") from error


def _message(message: MessageBody) -> ChatMessage:
    extra = compact_json(message.tool_calls) if message.tool_calls else ""
    if message.content is None or isinstance(message.content, str):
        return ChatMessage(role=message.role, content=message.content or "", extra=extra)
    texts = []
    for part in message.content:
        if not isinstance(part.get("text"), str):
            raise ApiError(f"A text-only model cannot read a part of type {part.get('type')!r}.", param="messages")
        texts.append(str(part["text"]))
    return ChatMessage(role=message.role, content="\n".join(texts), extra=extra)


def _call(body: GenerationBody, prompts: Sequence[_Prompt], cap: int | None, config: SimConfig) -> Call:
    n = _sequences_per_prompt(body)
    if body.stream_options is not None and not body.stream:
        raise ApiError("Stream options can only be defined when `stream=True`.", param="stream_options")
    sequences = [_sequence(body, prompt, cap, config) for prompt in prompts]
    options = body.stream_options or StreamOptions()
    return Call(
        sequences=tuple(sequence for sequence in sequences for _ in range(n)),
        prompt_tokens=sum(prompt.tokens for prompt in prompts),
        stream=bool(body.stream),
        include_usage=options.include_usage,
        continuous_usage=options.include_usage and options.continuous_usage_stats,
    )


def _sequences_per_prompt(body: GenerationBody) -> int:
    n = 1 if body.n is None else body.n
    if n < 1:
        raise ApiError(f"n must be at least 1, got {n}.", param="n")
    if n > MAX_SEQUENCES:
        raise ApiError(f"n must be at most {MAX_SEQUENCES}, got {n}.", param="n")
    if n > 1 and body.temperature == 0 and not body.use_beam_search:
        raise ApiError(f"n must be 1 when using greedy sampling, got {n}.", param="n")
    return n


def _sequence(body: GenerationBody, prompt: _Prompt, cap: int | None, config: SimConfig) -> SequenceRequest:
    """Resolve the cap as vLLM does: refuse what cannot be meant, clamp what does not fit the context."""
    limit = config.max_model_len
    if cap is not None and cap > limit:
        message = f"max_tokens={cap} cannot be greater than max_model_len={limit}. Please request fewer output tokens."
        raise ApiError(f"{message} (parameter=max_tokens, value={cap})", param="max_tokens")
    _check_prompt_length(prompt.tokens, limit)
    resolved = min(limit - prompt.tokens, limit if cap is None else cap)
    if resolved < 1:
        raise ApiError(f"max_tokens must be at least 1, got {resolved}.", param="max_tokens")
    if body.min_tokens > resolved:
        message = f"min_tokens must be less than or equal to max_tokens={resolved}, got {body.min_tokens}."
        raise ApiError(message, param="min_tokens")
    return SequenceRequest(
        prompt_tokens=prompt.tokens,
        max_tokens=resolved,
        min_tokens=body.min_tokens,
        ignore_eos=body.ignore_eos,
        prefix=_prefix(prompt, body.cache_salt, config),
    )


def _prefix(prompt: _Prompt, cache_salt: str | None, config: SimConfig) -> tuple[int, ...]:
    """The hashes of the prompt's blocks: only under the same salt are they the same."""
    if not config.enable_prefix_caching:
        return ()
    return chained_hashes(prompt.ids, config.block_size, zlib.crc32((cache_salt or "").encode(errors="replace")))


def _check_prompt_length(prompt_tokens: int, limit: int) -> None:
    if prompt_tokens < 1:
        raise ApiError("The decoder prompt cannot be empty", param="prompt")
    if prompt_tokens > limit:
        raise ApiError(
            f"This model's maximum context length is {limit} tokens. However, your prompt contains at least "
            f"{prompt_tokens} input tokens, which exceeds this limit even without any output tokens. Please reduce "
            f"the length of the input prompt. (parameter=input_tokens, value={prompt_tokens})",
            param="input_tokens",
        )
