"""TGI's error object, and the failures its streams hide."""

import json

import pytest

from kvguard.protocols.sse import Failure, StreamReader, first_event
from kvguard.protocols.tgi_errors import TGI_ERRORS, failure_of
from kvguard.protocols.tgi_generate import STREAM
from tests.kit.recordings import recorded, recorded_json

ERRORS = [
    (error["status"], error["body"])
    for error in recorded_json("errors_v3.json")
    if isinstance(error["body"], dict) and error["body"]["error_type"] != "healthcheck"
]


@pytest.mark.parametrize(
    ("kind", "error_type"),
    [
        ("overloaded_error", "overloaded"),
        ("invalid_request_error", "validation"),
        ("upstream_error", "incomplete_generation"),
        ("server_error", "generation"),
    ],
)
def test_an_error(kind: str, error_type: str) -> None:
    """Its type is one that TGI's clients know, as a body and as an event."""
    body = TGI_ERRORS.body('no "x"', code="any", kind=kind, param="x")
    assert json.loads(body) == {"error": 'no "x"', "error_type": error_type}
    event = TGI_ERRORS.event('no "x"', code="any", kind=kind)
    assert event == b"data: " + body + b"\n\n"
    reader = StreamReader(STREAM)
    reader.feed(event)
    assert (reader.failed, reader.complete, reader.at_boundary) == (True, False, True)


@pytest.mark.parametrize(("status", "body"), ERRORS)
@pytest.mark.parametrize("space", [b" ", b""])
def test_a_hidden_native_failure(status: int, body: dict, space: bytes) -> None:
    """It is the answer, with the status, that the same failure has without a stream."""
    written = json.dumps(body, separators=(",", ":")).encode()
    assert failure_of(b"data:" + space + written) == Failure(status=status, body=written)


@pytest.mark.parametrize(
    ("message", "status", "error_type"),
    [
        ("Model is overloaded", 429, "overloaded"),
        ("Input validation error: `inputs` cannot be empty", 422, "validation"),
        ("Request failed during generation: Server error: CUDA out of memory.", 424, "generation"),
        ("Incomplete generation", 500, "incomplete_generation"),
        ("Incomplete generation stream", 500, "incomplete_generation_stream"),
        ("Template error: unknown filter", 422, "template_error"),
        ("Missing template vatiable: guideline", 422, "missing_template_variable"),
        ("Tool error: no such tool", 422, "tool_error"),
        ("anything else", 500, "generation"),
        ("not a Model is overloaded", 500, "generation"),
    ],
)
def test_a_hidden_failure_of_a_chat(message: str, status: int, error_type: str) -> None:
    """The message tells, whatever status the event claims; an answer on the same route would have the native form."""
    event = b"data: " + json.dumps({"error": {"message": message, "http_status_code": 422}}).encode()
    failure = failure_of(event)
    assert failure is not None
    assert (failure.status, json.loads(failure.body)) == (status, {"error": message, "error_type": error_type})


def test_a_type_nobody_knows() -> None:
    """It stays, under the status of a server's fault."""
    failure = failure_of(b'data: {"error":"x","error_type":"new"}')
    assert failure == Failure(status=500, body=b'{"error":"x","error_type":"new"}')


@pytest.mark.parametrize(
    ("stream", "status"),
    [
        ("sse_generate_stream_v3_overloaded.txt", 429),
        ("sse_generate_stream_v3_validation.txt", 422),
        ("sse_chat_v3_overloaded.txt", 429),
        ("sse_generate_stream_v3_oom_midstream.txt", None),
        ("sse_generate_stream_v3_queued_keepalive.txt", None),
        ("sse_chat_v3_oom_midstream.txt", None),
        ("sse_completions_v3_two_prompts.txt", None),
    ],
)
def test_what_streams_begin_with(stream: str, status: int | None) -> None:
    """Only those whose first event reports a failure failed at once."""
    event = first_event(recorded(stream))
    assert event is not None
    failure = failure_of(event)
    assert (failure and failure.status) == status


@pytest.mark.parametrize(
    "event",
    [
        b"",
        b": comment",
        b"event: error",
        b"data: [DONE]",
        b"data: {",
        b'data: {"error":5}',
        b'data: {"error":{}}',
        b'data: {"token":{"text":"\\"error\\":\\"x\\""}}',
        b'data: {"error":"\xff"}',
    ],
)
def test_any_other_event(event: bytes) -> None:
    """It reports no failure."""
    assert failure_of(event) is None
