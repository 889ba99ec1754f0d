"""The OpenAI error object, as an answer body and as an event inside a stream."""

from typing import Final

import msgspec

from kvguard.protocols.error_format import ErrorFormat


def error_body(message: str, *, code: str, kind: str, param: str | None = None) -> bytes:
    """`{"error": {...}}` with a machine-readable `code` and the class of error in `type`."""
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": code}})


def error_event(message: str, *, code: str, kind: str) -> bytes:
    """The same object as a server-sent event. No `[DONE]` follows it: the answer is not complete."""
    return b"data: " + error_body(message, code=code, kind=kind) + b"\n\n"


OPENAI_ERRORS: Final = ErrorFormat(body=error_body, event=error_event)
