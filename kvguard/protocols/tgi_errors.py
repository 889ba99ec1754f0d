"""TGI's error object, `{"error": ..., "error_type": ...}`, and what its streams make of one.

A stream of TGI has status 200 whatever happens; what went wrong stands in an event, on chat and completions without its
type and under a status that is always the same. The message tells.
"""

import re
from typing import Final

import msgspec

from kvguard.protocols.error_format import ErrorFormat
from kvguard.protocols.sse import Failure

# The types TGI has, as far as its clients know them; a stream that breaks off has no other.
_TYPES: Final = {
    "overloaded_error": "overloaded",
    "invalid_request_error": "validation",
    "upstream_error": "incomplete_generation",
}
_ANY_TYPE: Final = "generation"
_STATUS: Final = {
    "overloaded": 429,
    "generation": 424,
    "incomplete_generation": 500,
    "incomplete_generation_stream": 500,
    "validation": 422,
    "template_error": 422,
    "missing_template_variable": 422,
    "tool_error": 422,
    "suffix not supported": 422,
    "batch size exceeded": 422,
}
_BY_MESSAGE: Final = {
    "Model is overloaded": "overloaded",
    "Input validation error: ": "validation",
    "Request failed during generation": "generation",
    "Incomplete generation stream": "incomplete_generation_stream",
    "Incomplete generation": "incomplete_generation",
    "Template error: ": "template_error",
    "Missing template vatiable: ": "missing_template_variable",
    "Tool error: ": "tool_error",
}
_DATA: Final = re.compile(rb"^data:(.*)", re.MULTILINE)
UNKNOWN_STATUS: Final = 500


def error_body(message: str, *, code: str, kind: str, param: str | None = None) -> bytes:
    """The two members TGI's clients read. kvguard's own `code` is in a header, the field at fault in the message."""
    return _error(message, _TYPES.get(kind, _ANY_TYPE))


def error_event(message: str, *, code: str, kind: str) -> bytes:
    """The same object as a server-sent event; nothing follows it."""
    return b"data: " + error_body(message, code=code, kind=kind) + b"\n\n"


TGI_ERRORS: Final = ErrorFormat(body=error_body, event=error_event)


class _Inner(msgspec.Struct):
    message: str


class _Reported(msgspec.Struct):
    error: str | _Inner
    error_type: str = ""


_reported = msgspec.json.Decoder(_Reported)


def failure_of(event: bytes) -> Failure | None:
    """The error an event reports, as TGI answers it without a stream; None for any other event."""
    data = _DATA.search(event)
    if data is None:
        return None
    try:
        reported = _reported.decode(data[1].strip())
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    message = reported.error if isinstance(reported.error, str) else reported.error.message
    kind = reported.error_type or _type_of(message)
    return Failure(status=_STATUS.get(kind, UNKNOWN_STATUS), body=_error(message, kind or _ANY_TYPE))


def _type_of(message: str) -> str:
    return next((kind for start, kind in _BY_MESSAGE.items() if message.startswith(start)), "")


def _error(message: str, kind: str) -> bytes:
    return msgspec.json.encode({"error": message, "error_type": kind})
