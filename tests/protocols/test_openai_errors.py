"""The OpenAI error object."""

import json

from kvguard.protocols.openai_errors import error_body, error_event
from kvguard.protocols.sse import StreamReader


def test_an_error_as_an_answer() -> None:
    """Message, class, code, and the field at fault where there is one."""
    assert error_body("No.", code="saturated", kind="overloaded_error") == (
        b'{"error":{"message":"No.","type":"overloaded_error","param":null,"code":"saturated"}}'
    )
    assert json.loads(error_body("No.", code="invalid_request", kind="invalid_request_error", param="n")) == {
        "error": {"message": "No.", "type": "invalid_request_error", "param": "n", "code": "invalid_request"}
    }


def test_an_error_inside_a_stream() -> None:
    """It is one event of one line, and does not claim that the answer is complete."""
    event = error_event('a "b"\nc', code="backend_unreachable", kind="upstream_error")
    assert event.startswith(b"data: {")
    assert event.endswith(b"}\n\n")
    assert event.count(b"\n") == 2
    assert json.loads(event[6:])["error"]["message"] == 'a "b"\nc'
    reader = StreamReader()
    reader.feed(event)
    assert (reader.events, reader.at_boundary, reader.complete) == (1, True, False)
