"""POST /generative_scoring: the query with each item."""

import contextlib

import pytest
from hypothesis import given

from kvguard.errors import InvalidRequest
from kvguard.protocols.fields import Fields
from kvguard.protocols.openai_completions import MAX_PROMPTS
from kvguard.protocols.prompts import SharedPrompts, TextPrompts, TokenPrompts
from kvguard.protocols.scoring_prompt import prompt_of
from tests.kit.properties import deterministic
from tests.protocols.any_json import fields_of, objects


@pytest.mark.parametrize(
    ("query", "items", "prompt"),
    [
        ("q", ["a", ""], SharedPrompts(TextPrompts(("q",)), TextPrompts(("a", "")))),
        ("", [[1, 2], []], SharedPrompts(TextPrompts(("",)), TokenPrompts((2, 0)))),
        ([1, 2, 3], ["a"], SharedPrompts(TokenPrompts((3,)), TextPrompts(("a",)))),
        ([], [[1]], SharedPrompts(TokenPrompts((0,)), TokenPrompts((1,)))),
        ("q", ["a"] * MAX_PROMPTS, SharedPrompts(TextPrompts(("q",)), TextPrompts(("a",) * MAX_PROMPTS))),
    ],
)
def test_query_and_items(query: object, items: object, prompt: SharedPrompts) -> None:
    """Each is text or token ids, and either may be empty; they are tokenised apart."""
    assert prompt_of(fields_of({"query": query, "items": items})) == prompt


@pytest.mark.parametrize(
    ("query", "items", "param"),
    [
        (None, ["a"], "query"),
        (5, ["a"], "query"),
        ([1.5], ["a"], "query"),
        ([[1]], ["a"], "query"),
        ("q", None, "items"),
        ("q", "a", "items"),
        ("q", [], "items"),
        ("q", [1, 2], "items"),
        ("q", ["a", [1]], "items"),
        ("q", [["a"]], "items"),
        ("q", ["a"] * (MAX_PROMPTS + 1), "items"),
    ],
)
def test_what_is_refused(query: object, items: object, param: str) -> None:
    """A mix of items, none, and too many, by the name of the field."""
    with pytest.raises(InvalidRequest) as caught:
        prompt_of(fields_of({"query": query, "items": items}))
    assert caught.value.param == param


@deterministic
@given(objects("query", "items"))
def test_any_json(fields: Fields) -> None:
    """Whatever the fields hold is a prompt or an invalid request."""
    with contextlib.suppress(InvalidRequest):
        prompt_of(fields)
