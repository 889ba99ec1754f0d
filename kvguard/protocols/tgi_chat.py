"""TGI's POST /v1/chat/completions: one conversation, one sequence; `n` is read there and never used."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from kvguard.admission.footprint import Trait
from kvguard.protocols.fields import Fields, is_filled, is_set, read_fields, read_text
from kvguard.protocols.request import (
    INCLUDE_USAGE,
    STREAM_OPTIONS,
    CapRule,
    Copies,
    InferenceRequest,
    with_media_apart,
)
from kvguard.protocols.route import Route
from kvguard.protocols.sse import StreamFormat
from kvguard.protocols.strict_fields import read_flag, read_object, read_positive
from kvguard.protocols.tgi_errors import failure_of
from kvguard.protocols.tgi_prompt import chat_prompt_of
from kvguard.protocols.tgi_usage import answer_usage

PATH: Final = "/v1/chat/completions"
CAPS: Final = CapRule(names=("max_completion_tokens", "max_tokens"), default_tokens=None, aliases=True)

_BASE: Final = "tgi"

# Without the terminator, which there is from 2.2.0 on, the last event is the one with a reason to finish.
STREAM: Final = StreamFormat(
    token=b"\ndata:",
    complete=re.compile(rb'\ndata: ?\[DONE\]|"finish_reason": ?"[^"\n]+"[^\n]*\r?\n\r?\n\Z'),
    failed=re.compile(rb'\ndata: ?\{"error"'),
    failure=failure_of,
)


def parse(body: bytes) -> InferenceRequest:
    """Read a request. Raises InvalidRequest naming the field at fault."""
    return chat(body, read_fields(body))


def chat(body: bytes, fields: Fields) -> InferenceRequest:
    """The request in these fields. Raises InvalidRequest naming the field at fault.

    With tools it may be answered by the second of two generations, whose usage says nothing of the first.
    """
    stream = read_flag(fields, "stream")
    caps = [read_positive(fields, name) for name in CAPS.names]
    asks_usage = read_flag(read_object(fields, STREAM_OPTIONS), INCLUDE_USAGE)
    request = InferenceRequest(
        body=body,
        fields=fields,
        params=fields,
        caps=CAPS,
        prompt=with_media_apart(chat_prompt_of(fields)),
        stream=stream,
        copies=1,
        beams=False,
        copied_by=Copies.NONE,
        requested_cap=next((cap for cap in caps if cap is not None), None),
        min_tokens=0,
        truncate_to=None,
        fixed_length=False,
        traits=frozenset(_traits(fields)),
        stops=is_filled(fields, "stop"),
        hides_usage=stream and not asks_usage,
        stream_format=STREAM,
        model=model_of(fields),
    )
    return replace(request, runs_tools=Trait.TOOLS in request.traits)


def model_of(fields: Fields) -> str | None:
    """The adapter a request names, None for the model itself, which goes by one name wherever it is."""
    name = read_text(fields, "model")
    return None if name == _BASE else name


def _traits(fields: Fields) -> Iterator[Trait]:
    if is_filled(fields, "tools"):
        yield Trait.TOOLS
    if is_set(fields, "response_format"):
        yield Trait.STRUCTURED_OUTPUT


ROUTE: Final = Route(path=PATH, parse=parse, stream=STREAM, usage=answer_usage)
