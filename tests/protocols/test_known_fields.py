"""Only what a route's schema has is read."""

import pytest

from kvguard.errors import InvalidRequest
from kvguard.protocols.fields import read_fields
from kvguard.protocols.known_fields import read_known
from kvguard.protocols.prompts import TextPrompts
from kvguard.protocols.request import CapRule, InferenceRequest

CAPS = CapRule(names=("cap",), default_tokens=None)
BODY = b'{"cap":5, "n":"x", "use_beam_search":1, "truncate_prompt_tokens":1, "min_tokens":9, "ignore_eos":7, "z":[1]}'


def read(body: bytes, *known: str) -> InferenceRequest:
    return read_known(body, read_fields(body), TextPrompts(("x",)), CAPS, known)


def test_what_is_not_known_changes_nothing() -> None:
    """The engine ignores it, whatever it is; it is kept to be forwarded."""
    request = read(BODY, "cap")
    assert (request.requested_cap, request.copies, request.beams) == (5, 1, False)
    assert (request.truncate_to, request.min_tokens, request.fixed_length) == (None, 0, False)
    assert request.fields == request.params == read_fields(BODY)


def test_what_is_known_is_read_as_everywhere() -> None:
    """By the rules for the fields that routes share, and `n` is never one of these."""
    assert read(BODY, "cap", "n", "use_beam_search", "min_tokens", "absent").min_tokens == 9
    with pytest.raises(InvalidRequest) as caught:
        read(BODY, "cap", "ignore_eos")
    assert caught.value.param == "ignore_eos"
