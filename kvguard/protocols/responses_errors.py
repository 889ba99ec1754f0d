"""Errors of the Responses API: OpenAI's object as an answer body, and an event of its own inside a stream."""

from typing import Final

import msgspec

from kvguard.protocols.error_format import ErrorFormat
from kvguard.protocols.openai_errors import error_body


def error_event(message: str, *, code: str, kind: str) -> bytes:
    """An `error` event by the API's schema, with the object beside it that the SDK's streams raise on.

    Events are not counted on their way, so `sequence_number` is 0. No `response.completed` follows.
    """
    error = {"message": message, "type": kind, "param": None, "code": code}
    event = {"type": "error", "code": code, "message": message, "param": None, "sequence_number": 0, "error": error}
    return b"event: error\ndata: " + msgspec.json.encode(event) + b"\n\n"


RESPONSES_ERRORS: Final = ErrorFormat(body=error_body, event=error_event)
