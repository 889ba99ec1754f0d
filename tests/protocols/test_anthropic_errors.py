"""Anthropic's error object."""

import json

import pytest

from kvguard.admission.reasons import RejectReason
from kvguard.protocols.anthropic_errors import error_body, error_event
from kvguard.protocols.anthropic_messages import STREAM
from kvguard.protocols.sse import StreamReader
from kvguard.proxy.refusal import error_kind

# What the official SDK knows, and the one that the API's documentation names for a 413.
KNOWN = {
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "request_too_large",
    "rate_limit_error",
    "timeout_error",
    "api_error",
    "overloaded_error",
}


def test_an_error_as_an_answer() -> None:
    """The envelope, a type of theirs, kvguard's own code and the field at fault."""
    assert error_body("No.", code="invalid_request", kind="invalid_request_error", param="max_tokens") == (
        b'{"type":"error","error":{"type":"invalid_request_error","message":"No.","param":"max_tokens",'
        b'"code":"invalid_request"}}'
    )


@pytest.mark.parametrize(
    ("code", "kind", "named"),
    [
        ("saturated", "overloaded_error", "overloaded_error"),
        ("draining", "overloaded_error", "overloaded_error"),
        ("tenant_share", "overloaded_error", "rate_limit_error"),
        ("backend_unreachable", "overloaded_error", "api_error"),
        ("backend_unreachable", "upstream_error", "api_error"),
        ("internal_error", "server_error", "api_error"),
        ("new_reason", "upstream_error", "api_error"),
        ("body_too_large", "invalid_request_error", "request_too_large"),
        ("too_large", "invalid_request_error", "invalid_request_error"),
        ("not_found", "invalid_request_error", "not_found_error"),
        ("method_not_allowed", "invalid_request_error", "invalid_request_error"),
    ],
)
def test_types(code: str, kind: str, named: str) -> None:
    """Each error has the type by which that API's clients decide what to do."""
    assert json.loads(error_body("No.", code=code, kind=kind))["error"]["type"] == named


@pytest.mark.parametrize("reason", RejectReason)
def test_every_refusal_has_a_type_that_clients_know(reason: RejectReason) -> None:
    """No reason of kvguard's reaches a client as a type of nobody's."""
    error = json.loads(error_body("No.", code=reason.value, kind=error_kind(reason)))["error"]
    assert error["type"] in KNOWN
    assert error["code"] == reason.value


def test_an_error_inside_a_stream() -> None:
    """It is one event with its name, and does not claim that the answer is complete."""
    event = error_event('a "b"\nc', code="backend_unreachable", kind="upstream_error")
    assert event.startswith(b"event: error\ndata: {")
    assert event.endswith(b"}\n\n")
    assert event.count(b"\n") == 3
    body = json.loads(event.partition(b"data: ")[2])
    assert (body["type"], body["error"]["message"], body["error"]["type"]) == ("error", 'a "b"\nc', "api_error")
    reader = StreamReader(STREAM)
    reader.feed(event)
    assert (reader.events, reader.at_boundary, reader.complete, reader.failed) == (0, True, False, True)
