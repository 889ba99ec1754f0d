"""POST /inference/v1/generate: token ids."""

import contextlib

import pytest
from hypothesis import given

from kvguard.errors import InvalidRequest
from kvguard.protocols.fields import Fields
from kvguard.protocols.generate_prompt import prompt_of
from kvguard.protocols.prompts import TokenPrompts
from tests.kit.properties import deterministic
from tests.protocols.any_json import fields_of, objects


def test_ids() -> None:
    """Their number is the prompt's length; there may be as many as the context holds."""
    assert prompt_of(fields_of({"token_ids": [1, 2.0, "3"]})) == TokenPrompts((3,))
    assert prompt_of(fields_of({"token_ids": [1] * 100_000})) == TokenPrompts((100_000,))


@pytest.mark.parametrize("ids", [None, [], "x", {}, 5, [1.5], [-1], [[1]], ["x"]])
def test_what_are_no_ids(ids: object) -> None:
    """Anything but a list of at least one is refused by name."""
    with pytest.raises(InvalidRequest) as caught:
        prompt_of(fields_of({"token_ids": ids}))
    assert caught.value.param == "token_ids"


@deterministic
@given(objects("token_ids"))
def test_any_json(fields: Fields) -> None:
    """Whatever the field holds is a prompt or an invalid request."""
    with contextlib.suppress(InvalidRequest):
        prompt_of(fields)
