"""POST /generative_scoring: bytes in, request out."""

import json

import pytest

from kvguard.errors import InvalidRequest
from kvguard.protocols.prompts import SharedPrompts, TextPrompts
from kvguard.protocols.scoring import PATH, ROUTE, parse


def test_a_request() -> None:
    """Each item is a prompt with one token after it, and all are the model's."""
    request = parse(json.dumps({"model": "m", "query": "q", "items": ["a", "b"], "label_token_ids": [1]}).encode())
    assert request.prompt == SharedPrompts(TextPrompts(("q",)), TextPrompts(("a", "b")))
    assert (request.model, request.stream, request.caps.names) == ("m", False, ())
    assert ROUTE.path == PATH


@pytest.mark.parametrize(("prompt", "held"), [(98, 98), (99, 99), (100, 99), (5000, 99)])
def test_a_longer_prompt_is_cut_to_leave_room_for_the_token(prompt: int, held: int) -> None:
    """The engine does so without a word."""
    request = parse(b'{"query":[1],"items":[[1]]}')
    demand = request.demand((prompt,), context_tokens=100, assumed_output_tokens=512)
    assert (demand.prompts, demand.output_cap, demand.expected_output) == ((held,), 1, 1)


def test_special_tokens_may_be_switched_off() -> None:
    """Only the query has any."""
    assert not parse(b'{"query":"q","items":["a"],"add_special_tokens":false}').special_tokens


def test_what_is_refused() -> None:
    """What has no query or no items."""
    for body in (b'{"items":["a"]}', b'{"query":"q"}', b"[]"):
        with pytest.raises(InvalidRequest):
            parse(body)
