"""TGI's request bodies: JSON to a `TgiCall` the engine can run, or an error in TGI's words.

Shapes are as strict as the server's: a number in quotes is none, null is no value for a field with a default of its
own, and fields nobody knows are ignored.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Final, TypeVar

import msgspec

from kvguard.simulator.text import ChatMessage, chat_token_ids, compact_json, token_ids
from kvguard.simulator.tgi_config import TgiSimConfig, Version
from kvguard.simulator.tgi_engine import PIECE_TOKENS, TgiRequest

MAX_BODY_BYTES: Final = 2_000_000
MAX_TOP_N_TOKENS: Final = 5
_Size = Annotated[int, msgspec.Meta(ge=0)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
_PLAIN: Final = "text/plain; charset=utf-8"


class TgiError(Exception):
    """A refusal: TGI's own object, or plain text where its framework answers before it."""

    def __init__(self, message: str, kind: str | None = "validation", status: int = 422) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind
        self.status = status

    @property
    def body(self) -> bytes:
        """As a whole answer."""
        if self.kind is None:
            return self.message.encode()
        return compact_json({"error": self.message, "error_type": self.kind}).encode()

    @property
    def content_type(self) -> str:
        return _PLAIN if self.kind is None else "application/json"


def invalid(message: str) -> TgiError:
    """What the router's validation finds."""
    return TgiError(f"Input validation error: {message}")


def overloaded() -> TgiError:
    """No permit is left."""
    return TgiError("Model is overloaded", "overloaded", 429)


def out_of_memory() -> TgiError:
    """The shard died."""
    text = "Request failed during generation: Server error: CUDA out of memory. Tried to allocate 222.00 MiB."
    return TgiError(text, "generation", 424)


class Parameters(msgspec.Struct):
    best_of: _Size | None = None
    temperature: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    typical_p: float | None = None
    do_sample: bool = False
    max_new_tokens: _Count | None = None
    return_full_text: bool | None = None
    stop: list[str] = []
    truncate: _Size | None = None
    watermark: bool = False
    details: bool = False
    decoder_input_details: bool = False
    seed: _Size | None = None
    top_n_tokens: _Count | None = None
    grammar: dict[str, object] | None = None

    @property
    def samples(self) -> bool:
        """Whether the answer depends on chance."""
        return self.do_sample or any(
            value is not None for value in (self.temperature, self.top_k, self.top_p, self.typical_p)
        )


class GenerateBody(msgspec.Struct):
    inputs: str
    parameters: Parameters = msgspec.field(default_factory=lambda: Parameters(do_sample=True))
    stream: bool = False


class StreamOptions(msgspec.Struct):
    include_usage: bool = False


class Message(msgspec.Struct):
    role: str
    content: str | list[dict[str, object]] | None = None


class ChatBody(msgspec.Struct):
    messages: list[Message]
    model: str | None = None
    max_tokens: _Count | None = None
    stream: bool = False
    stream_options: StreamOptions = msgspec.field(default_factory=StreamOptions)
    tools: list[dict[str, object]] | None = None
    seed: _Size | None = None


class CompletionBody(msgspec.Struct):
    prompt: str | list[str]
    model: str | None = None
    max_tokens: _Count | None = None
    stream: bool = False
    suffix: str | None = None
    seed: _Size | None = None


class VertexBody(msgspec.Struct):
    instances: list[dict[str, object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TgiCall:
    """One validated call: a generation each for its prompts, or several of one prompt of which the best is given.

    It is `counted` as so many requests: OpenAI's routes count themselves and every prompt.
    """

    requests: tuple[TgiRequest, ...]
    stream: bool = False
    inputs: str = ""
    full_text: bool = False
    details: bool = False
    include_usage: bool = False
    seed: int | None = None
    model: str = "tgi"
    counted: int = 1

    @property
    def most_tokens(self) -> int:
        """What all of them generate at most: a last piece may go beyond the cap."""
        return sum(-(-request.max_new_tokens // PIECE_TOKENS) * PIECE_TOKENS for request in self.requests)


Body = TypeVar("Body", bound=msgspec.Struct)


def parsed(raw: bytes, shape: type[Body]) -> Body:
    """The body in this shape. Raises TgiError."""
    try:
        return msgspec.json.decode(raw, type=shape)
    except msgspec.ValidationError as error:
        raise TgiError(f"Failed to deserialize the JSON body into the target type: {error}", None) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TgiError(f"Failed to parse the request body as JSON: {error}", None, 400) from error


def native_call(raw: bytes, config: TgiSimConfig, *, stream: bool | None = None) -> TgiCall:
    """`/generate` and `/generate_stream`; with `stream` None it is `/`: the body says, and the prompt comes back."""
    body = parsed(raw, GenerateBody)
    parameters, asked = body.parameters, body.stream if stream is None else stream
    copies = _copies(parameters, config, stream=asked)
    _check(parameters, config, stream=asked)
    ids = token_ids(body.inputs)
    if parameters.truncate is not None:
        ids = ids[-parameters.truncate :]
    full = stream is None if parameters.return_full_text is None else parameters.return_full_text
    request = _request(len(ids), parameters.max_new_tokens, config)
    return TgiCall(
        requests=(request,) * copies,
        stream=asked,
        inputs=body.inputs,
        full_text=full,
        details=parameters.details or parameters.decoder_input_details,
        seed=parameters.seed,
    )


def _copies(parameters: Parameters, config: TgiSimConfig, *, stream: bool) -> int:
    copies = 1 if parameters.best_of is None else parameters.best_of
    if copies != 1 and stream:
        raise invalid("`best_of` != 1 is not supported when streaming tokens")
    if not 1 <= copies <= config.max_best_of:
        raise invalid(f"`best_of` must be > 0 and <= {config.max_best_of}. Given: {copies}")
    if copies > 1 and not parameters.samples:
        raise invalid("you must use sampling when `best_of` is > 1")
    if copies > 1 and parameters.seed is not None:
        raise invalid("`seed` must not be set when `best_of` > 1")
    return copies


def _check_sampling(parameters: Parameters) -> None:
    for name in ("temperature", "repetition_penalty", "top_k"):
        value = getattr(parameters, name)
        if value is not None and value <= 0:
            raise invalid(f"`{name}` must be strictly positive")
    for name in ("top_p", "typical_p"):
        value = getattr(parameters, name)
        if value is not None and not 0 < value < 1:
            raise invalid(f"`{name}` must be > 0.0 and < 1.0")
    if parameters.frequency_penalty is not None and not -2 <= parameters.frequency_penalty <= 2:
        raise invalid("`frequency_penalty` must be >= -2.0 and <= 2.0")
    if parameters.top_n_tokens is not None and parameters.top_n_tokens > MAX_TOP_N_TOKENS:
        given = parameters.top_n_tokens
        raise invalid(f"`top_n_tokens` must be >= 0 and <= {MAX_TOP_N_TOKENS}. Given: {given}")


def _check(parameters: Parameters, config: TgiSimConfig, *, stream: bool) -> None:
    _check_sampling(parameters)
    if len(parameters.stop) > config.max_stop_sequences:
        raise invalid(
            f"`stop` supports up to {config.max_stop_sequences} stop sequences. Given: {len(parameters.stop)}"
        )
    if parameters.decoder_input_details and stream:
        raise invalid("`decoder_input_details` == true is not supported when streaming tokens")
    if parameters.truncate is not None and not 1 <= parameters.truncate <= config.max_input_tokens:
        limit = config.max_input_tokens
        raise invalid(f"`truncate` must be strictly positive and less than {limit}. Given: {parameters.truncate}")


def chat_call(raw: bytes, config: TgiSimConfig) -> TgiCall:
    """`/v1/chat/completions`. Two names of one cap are one field too many."""
    if config.release >= (3, 0, 2):
        fields = parsed(raw, _ChatCaps)
        if fields.max_tokens is not msgspec.UNSET and fields.max_completion_tokens is not msgspec.UNSET:
            raise TgiError(
                "Failed to deserialize the JSON body into the target type: duplicate field `max_tokens`", None
            )
        cap = fields.max_completion_tokens if fields.max_tokens is msgspec.UNSET else fields.max_tokens
    body = parsed(raw, ChatBody)
    named = body.max_tokens
    if config.release >= (3, 0, 2) and cap is not msgspec.UNSET:
        named = cap
    ids = chat_ids(body)
    return TgiCall(
        requests=(_request(len(ids), named, config),),
        stream=body.stream,
        inputs="".join(_text(message) for message in body.messages),
        include_usage=body.stream_options.include_usage and config.release >= (2, 3, 0),
        seed=body.seed,
        model=body.model or "tgi",
        counted=2,
    )


class _ChatCaps(msgspec.Struct):
    max_tokens: _Count | msgspec.UnsetType | None = msgspec.UNSET
    max_completion_tokens: _Count | msgspec.UnsetType | None = msgspec.UNSET


def chat_ids(body: ChatBody) -> list[int]:
    """The conversation as the toy template renders it."""
    return chat_token_ids([ChatMessage(role=m.role, content=_text(m)) for m in body.messages], body.tools or ())


def _text(message: Message) -> str:
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    return "".join(str(part.get("text", "")) for part in message.content)


def completion_call(raw: bytes, config: TgiSimConfig) -> TgiCall:
    """`/v1/completions`."""
    body = parsed(raw, CompletionBody)
    if body.suffix is not None:
        raise TgiError(
            "Suffix is not supported and can be achieved by preprocessing the prompt.", "suffix not supported"
        )
    prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    if len(prompts) > config.max_client_batch_size:
        limit = config.max_client_batch_size
        raise TgiError(f"Number of prompts exceeds the maximum allowed batch size of {limit}", "batch size exceeded")
    return TgiCall(
        requests=tuple(_request(len(token_ids(prompt)), body.max_tokens, config) for prompt in prompts),
        stream=body.stream,
        inputs="".join(prompts),
        seed=body.seed,
        model=body.model or "tgi",
        counted=1 + len(prompts),
    )


def vertex_calls(raw: bytes, config: TgiSimConfig) -> list[TgiCall]:
    """`/vertex`: a call for each instance, native or chat."""
    return [_instance(instance, config) for instance in parsed(raw, VertexBody).instances]


def _instance(instance: dict[str, object], config: TgiSimConfig) -> TgiCall:
    raw = json.dumps(instance).encode()
    if "inputs" not in instance:
        return replace(chat_call(raw, config), counted=1)
    body = parsed(raw, GenerateBody)
    request = _request(len(token_ids(body.inputs)), body.parameters.max_new_tokens, config)
    return TgiCall(requests=(request,), inputs=body.inputs, seed=body.parameters.seed)


def invocations_call(raw: bytes, config: TgiSimConfig) -> tuple[str, TgiCall]:
    """`/invocations`: the kind of call the body is, and the call."""
    kind = invocations_kind(raw, config)
    return kind, _BY_KIND[kind](raw, config)


def invocations_kind(raw: bytes, config: TgiSimConfig) -> str:
    """What its fields make of the body; up to 2.3 it is always a native call."""
    shape = parsed(raw, _Shape)
    if config.release < (2, 4, 0) or shape.inputs is not msgspec.UNSET:
        return "native"
    return "completion" if shape.messages is msgspec.UNSET else "chat"


_BY_KIND: Final[Mapping[str, Callable[[bytes, TgiSimConfig], TgiCall]]] = {
    "native": native_call,
    "chat": chat_call,
    "completion": completion_call,
}


class _Shape(msgspec.Struct):
    inputs: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    messages: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def default_new_tokens(release: Version) -> int | None:
    """What an absent cap means; None is the rest of the context."""
    if release >= (3, 0, 0):
        return None
    if release >= (1, 3, 0):
        return 100
    return None if release >= (1, 2, 0) else 20


def _request(prompt_tokens: int, cap: int | None, config: TgiSimConfig) -> TgiRequest:
    """Check the lengths as the router does; where answers come in pieces only the first of them has to fit."""
    named = cap is not None
    if prompt_tokens == 0:
        raise invalid("`inputs` cannot be empty")
    if cap is None:
        cap = default_new_tokens(config.release)
    if cap is None:
        cap = max(config.max_total_tokens - prompt_tokens, 0)
    if cap == 0 and named:
        raise invalid("`max_new_tokens` must be strictly positive")
    if prompt_tokens > config.max_input_tokens or cap == 0:
        raise invalid(f"`inputs` must have less than {config.max_input_tokens} tokens. Given: {prompt_tokens}")
    pieces = config.release >= (3, 1, 1) or (config.release >= (3, 0, 0) and not named)
    first = min(cap, PIECE_TOKENS) if pieces else cap
    if prompt_tokens + first > config.max_total_tokens:
        raise invalid(
            f"`inputs` tokens + `max_new_tokens` must be <= {config.max_total_tokens}. "
            f"Given: {prompt_tokens} `inputs` tokens and {first} `max_new_tokens`"
        )
    return TgiRequest(prompt_tokens=prompt_tokens, max_new_tokens=cap, named=named)
