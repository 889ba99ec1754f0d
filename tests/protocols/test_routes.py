"""Which routes there are, and how errors look at each path."""

import pytest

from kvguard.protocols.anthropic_errors import ANTHROPIC_ERRORS
from kvguard.protocols.error_format import ErrorFormat
from kvguard.protocols.openai_errors import OPENAI_ERRORS
from kvguard.protocols.responses_errors import RESPONSES_ERRORS
from kvguard.protocols.routes import VLLM


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
