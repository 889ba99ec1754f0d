"""Errors of the Responses API."""

import json

from kvguard.protocols.openai_errors import error_body
from kvguard.protocols.openai_responses import STREAM
from kvguard.protocols.responses_errors import RESPONSES_ERRORS, error_event
from kvguard.protocols.sse import StreamReader


def test_an_error_as_an_answer() -> None:
    """OpenAI's own object."""
    assert RESPONSES_ERRORS.body is error_body


def test_an_error_inside_a_stream() -> None:
    """One `error` event: the fields of its schema, and the object on which the SDK raises."""
    event = error_event('a "b"\nc', code="backend_unreachable", kind="upstream_error")
    assert event.startswith(b"event: error\ndata: {")
    assert event.count(b"\n") == 3
    data = json.loads(event.partition(b"data: ")[2])
    error = {"message": 'a "b"\nc', "type": "upstream_error", "param": None, "code": "backend_unreachable"}
    assert data == {**error, "type": "error", "sequence_number": 0, "error": error}
    reader = StreamReader(STREAM)
    reader.feed(event)
    assert (reader.events, reader.at_boundary, reader.complete, reader.failed) == (0, True, False, True)
