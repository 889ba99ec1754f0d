"""Which routes there are, and how errors look at each path."""

import pytest

from kvguard.protocols.anthropic_errors import ANTHROPIC_ERRORS
from kvguard.protocols.error_format import ErrorFormat
from kvguard.protocols.openai_errors import OPENAI_ERRORS
from kvguard.protocols.responses_errors import RESPONSES_ERRORS
from kvguard.protocols.routes import VLLM
from kvguard.protocols.sse import Usage


def test_every_route_stands_under_its_own_path() -> None:
    """And none of them is a harmless read."""
    assert all(path == route.path for path, route in VLLM.generating.items())
    assert not VLLM.generating.keys() & VLLM.reads.keys()
    assert {"/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses", "/invocations"} <= set(
        VLLM.generating
    )


@pytest.mark.parametrize(
    ("path", "errors"),
    [
        ("/v1/messages", ANTHROPIC_ERRORS),
        ("/v1/messages/count_tokens", ANTHROPIC_ERRORS),
        ("/v1/messages/render", ANTHROPIC_ERRORS),
        ("/v1/messages_", OPENAI_ERRORS),
        ("/v1/responses", RESPONSES_ERRORS),
        ("/v1/responses/render", RESPONSES_ERRORS),
        ("/v1/chat/completions", OPENAI_ERRORS),
        ("/v1/completions/render", OPENAI_ERRORS),
        ("/invocations", OPENAI_ERRORS),
        ("/v1/models", OPENAI_ERRORS),
        ("/nowhere", OPENAI_ERRORS),
    ],
)
def test_errors(path: str, errors: ErrorFormat) -> None:
    """What lies below a route speaks its language, anything else OpenAI's."""
    assert VLLM.errors_at(path) is errors


@pytest.mark.parametrize(
    ("path", "methods"),
    [("/v1/completions", ("POST",)), ("/v1/models", ("GET",)), ("/tokenize", ("POST",)), ("/", ()), ("/metrics", ())],
)
def test_methods(path: str, methods: tuple[str, ...]) -> None:
    """Each route takes one; what is no route takes none."""
    assert VLLM.methods(path) == methods


def test_the_usage_of_a_whole_answer_is_in_its_body() -> None:
    """No route of vLLM looks at headers for it."""
    body = b'{"usage":{"prompt_tokens":5,"completion_tokens":8}}'
    for route in VLLM.generating.values():
        assert route.usage(body, [(b"x-generated-tokens", b"3")]) == Usage(prompt_tokens=5, completion_tokens=8)
        assert route.usage(b"", [(b"x-generated-tokens", b"3")]) is None
