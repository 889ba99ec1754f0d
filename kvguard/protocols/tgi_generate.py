"""TGI's own POST /generate, /generate_stream and /: a text in `inputs`, and how to generate in `parameters`.

There is no beam search and no `n`: what else a client may write there for it, TGI does not look at, and neither does
this. `best_of` answers are generated side by side, each with blocks of its own, and the best is given.
"""

import re
from dataclasses import replace
from typing import Final

import msgspec

from kvguard.admission.footprint import Trait
from kvguard.errors import InvalidRequest
from kvguard.protocols.fields import Fields, is_filled, is_set, read_fields
from kvguard.protocols.request import MAX_COPIES, CapRule, Copies, InferenceRequest
from kvguard.protocols.route import Route
from kvguard.protocols.sse import StreamFormat
from kvguard.protocols.strict_fields import read_flag, read_object, read_positive
from kvguard.protocols.tgi_errors import TGI_ERRORS, failure_of
from kvguard.protocols.tgi_prompt import native_prompt_of
from kvguard.protocols.tgi_usage import answer_usage, frames_usage

GENERATE_PATH: Final = "/generate"
STREAM_PATH: Final = "/generate_stream"
ROOT_PATH: Final = "/"
PARAMETERS: Final = "parameters"
CAPS: Final = CapRule(names=("max_new_tokens",), default_tokens=None)

# Without the object TGI samples, with an empty one it does not.
_IMPLIED: Final = {"do_sample": msgspec.Raw(b"true")}

# A frame a token. The last one repeats the whole text, so that only its end may still be there.
STREAM: Final = StreamFormat(
    token=b'"token":',
    complete=re.compile(rb'","details": ?(?:null|\{[^{}]*\})\}\r?\n\r?\n'),
    failed=re.compile(rb'\ndata: ?\{"error"'),
    usage=frames_usage,
    failure=failure_of,
)


def parse(body: bytes) -> InferenceRequest:
    """Read a request for a whole answer; it cannot say otherwise. Raises InvalidRequest naming the field at fault."""
    return native(body, read_fields(body), stream=False)


def parse_stream(body: bytes) -> InferenceRequest:
    """Read a request for a stream. Raises InvalidRequest naming the field at fault."""
    return native(body, read_fields(body), stream=True)


def parse_either(body: bytes) -> InferenceRequest:
    """Read a request that says which of both it is for. Raises InvalidRequest naming the field at fault."""
    fields = read_fields(body)
    return native(body, fields, stream=read_flag(fields, "stream"))


def native(body: bytes, fields: Fields, *, stream: bool) -> InferenceRequest:
    """The request in these fields. Raises InvalidRequest naming the field at fault."""
    params = read_object(fields, PARAMETERS)
    copies = read_positive(params, "best_of") or 1
    if copies > MAX_COPIES:
        raise InvalidRequest(f"'best_of' must be between 1 and {MAX_COPIES}", param="best_of")
    request = InferenceRequest(
        body=body,
        fields=fields,
        params=params,
        inside=PARAMETERS,
        caps=CAPS,
        prompt=native_prompt_of(fields),
        stream=stream,
        copies=copies,
        beams=copies > 1,
        copied_by=Copies.BEST_OF,
        requested_cap=read_positive(params, "max_new_tokens"),
        min_tokens=0,
        truncate_to=read_positive(params, "truncate"),
        fixed_length=False,
        traits=frozenset({Trait.STRUCTURED_OUTPUT} if is_set(params, "grammar") else ()),
        stops=is_filled(params, "stop"),
        stream_format=STREAM,
    )
    return request if is_set(fields, PARAMETERS) else replace(request, implied=_IMPLIED)


ROUTES: Final = tuple(
    Route(path=path, parse=read, errors=TGI_ERRORS, stream=STREAM, usage=answer_usage)
    for path, read in ((GENERATE_PATH, parse), (STREAM_PATH, parse_stream), (ROOT_PATH, parse_either))
)
