"""POST /v1/chat/completions: bytes in, request out."""

import pytest

from kvguard.errors import InvalidRequest
from kvguard.protocols.openai_chat import CAPS, PATH, TEMPLATE_FIELDS, parse
from kvguard.protocols.request import ChatPrompt

BODY = b"""{"model":"tiny", "messages": [ {"role":"user","content":"h\\u00e9"} ], "max_completion_tokens": 50,
"n":2, "stream": true, "temperature":1.0, "user":"x"}"""


def test_a_request() -> None:
    """The client's bytes are kept, and what matters to the cache is read from them."""
    request = parse(BODY)
    assert request.body == BODY
    assert request.caps is CAPS
    assert (request.model, request.stream, request.copies, request.requested_cap) == ("tiny", True, 2, 50)
    assert request.prompt == ChatPrompt({"messages": request.fields["messages"]})
    assert bytes(request.fields["messages"]) == b'[ {"role":"user","content":"h\\u00e9"} ]'


@pytest.mark.parametrize("name", TEMPLATE_FIELDS)
def test_everything_the_template_may_look_at_belongs_to_the_prompt(name: str) -> None:
    """Each field a token count depends on is part of the prompt, as the client's own bytes."""
    request = parse(b'{"messages":[1],"max_tokens":5,"%s":[ 7 ]}' % name.encode())
    assert isinstance(request.prompt, ChatPrompt)
    assert set(request.prompt.fields) == {"messages", name}
    assert bytes(request.prompt.fields[name]) == b"[ 7 ]"


@pytest.mark.parametrize(
    ("caps", "cap"),
    [
        (b"", None),
        (b',"max_tokens":7', 7),
        (b',"max_completion_tokens":5', 5),
        (b',"max_completion_tokens":5,"max_tokens":7', 5),
        (b',"max_tokens":5,"max_completion_tokens":7', 7),
        (b',"max_completion_tokens":null,"max_tokens":7', 7),
        (b',"max_completion_tokens":null,"max_tokens":null', None),
        (b',"max_completion_tokens":5,"max_tokens":0', 5),
        (b',"max_output_tokens":5,"max_new_tokens":6', None),
    ],
)
def test_which_cap_counts(caps: bytes, cap: int | None) -> None:
    """`max_completion_tokens` wins over `max_tokens`, null is absent, and other engines' names are not read."""
    assert parse(b'{"messages":[]%s}' % caps).requested_cap == cap


@pytest.mark.parametrize("field", [b"", b'"messages":null', b'"messages":"hi"', b'"messages":{}', b'"prompt":"hi"'])
def test_messages_must_be_a_list(field: bytes) -> None:
    """Anything else is refused by name."""
    with pytest.raises(InvalidRequest, match="'messages' must be a list") as caught:
        parse(b"{%s}" % field)
    assert caught.value.param == "messages"


@pytest.mark.parametrize("name", ["max_completion_tokens", "max_tokens"])
def test_every_cap_must_be_an_integer(name: str) -> None:
    """One that does not count is read as well, so that it can be lowered later."""
    other = "max_tokens" if name == "max_completion_tokens" else "max_completion_tokens"
    with pytest.raises(InvalidRequest) as caught:
        parse(b'{"messages":[],"%s":5,"%s":"x"}' % (other.encode(), name.encode()))
    assert caught.value.param == name


def test_the_path() -> None:
    """The route is OpenAI's own."""
    assert PATH == "/v1/chat/completions"
