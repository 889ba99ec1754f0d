"""vLLM's POST /invocations: chat or completion by shape."""

import contextlib

import pytest
from hypothesis import given

from kvguard.errors import InvalidRequest
from kvguard.protocols.fields import Fields
from kvguard.protocols.invocations_prompt import prompt_of
from kvguard.protocols.prompts import ChatPrompt, TextPrompts
from tests.kit.properties import deterministic
from tests.protocols.any_json import fields_of, objects


def test_shapes() -> None:
    """Messages make it chat, a prompt a completion; null is absent."""
    chat = fields_of({"messages": [1], "prompt": None})
    assert prompt_of(chat) == ChatPrompt({"messages": chat["messages"]})
    assert prompt_of(fields_of({"prompt": "x", "messages": None})) == TextPrompts(("x",))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"messages": "x"}, "messages"),
        ({"messages": [1], "prompt": "x"}, "prompt"),
        ({"messages": [1], "prompt_embeds": "x"}, "prompt"),
    ],
)
def test_what_is_refused(fields: dict[str, object], param: str) -> None:
    """Neither, and both: which of the two the engine takes then hangs on every other field."""
    with pytest.raises(InvalidRequest) as caught:
        prompt_of(fields_of(fields))
    assert caught.value.param == param


@deterministic
@given(objects("messages", "prompt", "prompt_embeds", "suffix", "kv_transfer_params"))
def test_any_json(fields: Fields) -> None:
    """Whatever the fields hold is a prompt or an invalid request."""
    with contextlib.suppress(InvalidRequest):
        prompt_of(fields)
