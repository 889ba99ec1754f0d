"""POST /invocations: a chat or a completion, by its shape."""

import pytest

from kvguard.errors import InvalidRequest
from kvguard.protocols import openai_chat, openai_completions
from kvguard.protocols.invocations import PATH, ROUTE, parse
from kvguard.protocols.openai_errors import OPENAI_ERRORS
from kvguard.protocols.prompts import ChatPrompt, TextPrompts
from kvguard.protocols.sse import OPENAI


@pytest.mark.parametrize(
    ("fields", "cap", "default"),
    [
        (b'"messages":[],"max_completion_tokens":5,"max_tokens":7', 5, None),
        (b'"messages":[]', None, None),
        (b'"prompt":"x","max_completion_tokens":5,"max_tokens":7', 7, 16),
        (b'"prompt":"x"', None, 16),
        (b'"messages":null,"prompt":"x"', None, 16),
    ],
)
def test_caps_are_those_of_the_one_it_is(fields: bytes, cap: int | None, default: int | None) -> None:
    """A chat has two names and the rest of the context, a completion one and sixteen."""
    request = parse(b"{%s}" % fields)
    assert (request.requested_cap, request.caps.default_tokens) == (cap, default)


@pytest.mark.parametrize("prompt", [b'"messages":[{"role":"user","content":"x"}]', b'"prompt":"x"'])
def test_everything_else_is_read_as_on_its_own_route(prompt: bytes) -> None:
    """Copies, stream and whether the stream will name its usage."""
    body = b'{%s,"n":3,"stream":true,"use_beam_search":1,"stop":"x"}' % prompt
    own = openai_chat if b"messages" in prompt else openai_completions
    assert parse(body) == own.parse(body)


def test_prompts() -> None:
    """Messages make a conversation, anything else a completion's prompt."""
    assert isinstance(parse(b'{"messages":[]}').prompt, ChatPrompt)
    assert parse(b'{"prompt":"x"}').prompt == TextPrompts(("x",))


def test_both_at_once_are_refused() -> None:
    """Which of them the engine would take hangs on every other field."""
    with pytest.raises(InvalidRequest, match="cannot be used together") as caught:
        parse(b'{"messages":[],"prompt":"x"}')
    assert caught.value.param == "prompt"


def test_the_route() -> None:
    """It answers as the OpenAI routes do."""
    assert (PATH, ROUTE.path, ROUTE.errors, ROUTE.stream) == ("/invocations", PATH, OPENAI_ERRORS, OPENAI)
