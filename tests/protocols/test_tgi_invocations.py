"""SageMaker's route of TGI, where the body says what it is."""

import json

import pytest

from kvguard.errors import InvalidRequest
from kvguard.protocols import tgi_chat, tgi_completions, tgi_generate
from kvguard.protocols.sse import StreamFormat
from kvguard.protocols.tgi_errors import TGI_ERRORS
from kvguard.protocols.tgi_invocations import PATH, ROUTE, parse
from kvguard.protocols.tgi_usage import answer_usage


@pytest.mark.parametrize(
    ("body", "form", "cap"),
    [
        ({"inputs": "x", "parameters": {"max_new_tokens": 5}}, tgi_generate.STREAM, 5),
        ({"inputs": "x", "max_tokens": 9}, tgi_generate.STREAM, None),
        ({"messages": [], "max_tokens": 6}, tgi_chat.STREAM, 6),
        ({"prompt": "y", "max_tokens": 7}, tgi_completions.STREAM, 7),
        ({"inputs": None, "messages": None, "prompt": "y", "max_tokens": 8}, tgi_completions.STREAM, 8),
    ],
)
def test_forms(body: dict, form: StreamFormat, cap: int | None) -> None:
    """Native, chat or completion, each with its own cap and its own stream."""
    for stream in (False, True):
        request = parse(json.dumps({**body, "stream": stream}).encode())
        assert (request.stream_format, request.requested_cap, request.stream) == (form, cap, stream)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"inputs": "x", "messages": []}, "messages"),
        ({"inputs": "x", "prompt": "y"}, "prompt"),
        # What the server would take, were there a fault in the first.
        ({"inputs": "x", "parameters": {"temperature": "x"}, "messages": [], "max_tokens": 9}, "messages"),
    ],
)
def test_a_body_that_is_none_or_could_be_two(body: dict, param: str) -> None:
    """It lacks the prompt of a completion, or has one too many."""
    with pytest.raises(InvalidRequest) as caught:
        parse(json.dumps(body).encode())
    assert caught.value.param == param


def test_the_route() -> None:
    """Errors are TGI's."""
    assert (ROUTE.path, ROUTE.errors, ROUTE.usage) == (PATH, TGI_ERRORS, answer_usage)
