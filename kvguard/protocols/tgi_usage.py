"""Where TGI tells how many tokens an answer took: in its body as OpenAI does, in headers, in the frames of a stream."""

import re
from typing import Annotated, Final

import msgspec

from kvguard.protocols.route import AnswerHeaders
from kvguard.protocols.sse import Usage, read_usage

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]

_PROMPT: Final = b"x-prompt-tokens"
_GENERATED: Final = b"x-generated-tokens"
_DIGITS: Final = re.compile(rb"\d{1,15}")
_SEVERAL: Final = b'"best_of_sequences"'
_LAST_DETAILS: Final = re.compile(rb'"details": ?(\{[^{}]*\})\}\r?\n\r?\n\Z')


class _Sequence(msgspec.Struct):
    generated_tokens: _Count


class _Details(_Sequence):
    best_of_sequences: list[_Sequence] = []
    input_length: _Count | None = None


class _Generation(msgspec.Struct):
    details: _Details


_generations = msgspec.json.Decoder(_Generation | list[_Generation])
_details = msgspec.json.Decoder(_Details)


def answer_usage(body: bytes, headers: AnswerHeaders) -> Usage | None:
    """The usage of a whole answer.

    Of several answers of which the best is given, the headers tell about that one alone; details tell about all.
    """
    usage = read_usage(body)
    if usage is not None:
        return usage
    prompt, generated = _header(headers, _PROMPT), _header(headers, _GENERATED)
    several = _generated_by_each(body) if _SEVERAL in body else ()
    if several:
        return Usage(prompt_tokens=prompt, completion_tokens=sum(several), sequences=len(several))
    if generated is None:
        return None
    return Usage(prompt_tokens=prompt, completion_tokens=generated, sequences=1)


def _header(headers: AnswerHeaders, name: bytes) -> int | None:
    value = next((value for key, value in headers if key == name), b"")
    return int(value) if _DIGITS.fullmatch(value) else None


def _generated_by_each(body: bytes) -> tuple[int, ...]:
    try:
        read = _generations.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ()
    whole = read if isinstance(read, list) else [read]
    return tuple(one.generated_tokens for each in whole for one in (each.details, *each.details.best_of_sequences))


def frames_usage(tail: bytes, frames: int) -> Usage | None:
    """The usage of a native stream, of which each frame is a token; how long the prompt was only its details tell."""
    if not frames:
        return None
    found = _LAST_DETAILS.search(tail)
    try:
        prompt = _details.decode(found[1]).input_length if found else None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        prompt = None
    return Usage(prompt_tokens=prompt, completion_tokens=frames, sequences=1)


def summed_usage(tail: bytes, _: int) -> Usage | None:
    """The usage of a stream in which every prompt has its own in its last chunk, as far as those are still there."""
    lines = (line for line in tail.split(b"\n") if line.startswith(b"data:") and b'"usage"' in line)
    told = [usage for line in lines if (usage := read_usage(line[5:].strip())) is not None]
    if not told:
        return None
    prompts = [usage.prompt_tokens for usage in told if usage.prompt_tokens is not None]
    generated = sum(usage.completion_tokens for usage in told)
    return Usage(prompt_tokens=sum(prompts), completion_tokens=generated, sequences=len(told))
