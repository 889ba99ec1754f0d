"""The prompt forms of TGI's routes."""

import contextlib

import pytest
from hypothesis import given

from kvguard.errors import InvalidRequest
from kvguard.protocols.fields import Fields
from kvguard.protocols.openai_completions import MAX_PROMPTS
from kvguard.protocols.prompts import ChatPrompt, Prompt, PromptList, TextPrompts
from kvguard.protocols.tgi_prompt import (
    TEMPLATE_FIELDS,
    chat_prompt_of,
    completion_prompt_of,
    native_prompt_of,
    prompt_of,
    truncate_of,
    vertex_prompt_of,
)
from tests.kit.properties import deterministic
from tests.protocols.any_json import fields_of, objects

CHAT = fields_of({"messages": [{"role": "user", "content": "x"}]})


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({"inputs": "x"}, TextPrompts(("x",))),
        ({"inputs": "x", "messages": [], "prompt": "y"}, TextPrompts(("x",))),
        ({"messages": [{"role": "user", "content": "x"}], "prompt": "y"}, ChatPrompt(CHAT)),
        ({"prompt": "y"}, TextPrompts(("y",))),
        ({"prompt": ["y", ""]}, TextPrompts(("y", ""))),
        ({"prompt": ["y"] * MAX_PROMPTS}, TextPrompts(("y",) * MAX_PROMPTS)),
    ],
)
def test_forms(fields: dict[str, object], prompt: Prompt) -> None:
    """Native before chat before completion, as the server tries them."""
    assert prompt_of(fields_of(fields)) == prompt


@pytest.mark.parametrize("name", TEMPLATE_FIELDS)
def test_everything_the_template_sees(name: str) -> None:
    """Each of these fields belongs to the prompt, and nothing else."""
    fields = fields_of({"messages": [], "max_tokens": 5, name: []})
    assert chat_prompt_of(fields) == ChatPrompt({key: fields[key] for key in fields if key != "max_tokens"})


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({}, None),
        ({"parameters": None}, None),
        ({"parameters": {}}, None),
        ({"parameters": {"truncate": None}}, None),
        ({"parameters": {"truncate": 1}}, 1),
        ({"parameters": {"truncate": 500}}, 500),
    ],
)
def test_truncate(fields: dict[str, object], kept: int | None) -> None:
    """So many tokens are kept."""
    assert truncate_of(fields_of(fields)) == kept


def test_instances() -> None:
    """One prompt each, native or chat."""
    instances = [{"inputs": "x", "parameters": {}}, {"messages": [{"role": "user", "content": "x"}]}]
    native, chat = vertex_prompt_of(fields_of({"instances": instances})).prompts
    assert native == TextPrompts(("x",))
    assert isinstance(chat, ChatPrompt)
    assert bytes(chat.fields["messages"]) == b'[{"role":"user","content":"x"}]'
    assert vertex_prompt_of(fields_of({"instances": []})) == PromptList(())


@pytest.mark.parametrize(
    ("read", "fields", "param"),
    [
        (prompt_of, {}, "prompt"),
        (native_prompt_of, {}, "inputs"),
        (native_prompt_of, {"inputs": ["x"]}, "inputs"),
        (chat_prompt_of, {}, "messages"),
        (chat_prompt_of, {"messages": ["x"]}, "messages"),
        (completion_prompt_of, {"prompt": "x", "suffix": "y"}, "suffix"),
        (completion_prompt_of, {"prompt": []}, "prompt"),
        (completion_prompt_of, {"prompt": [1]}, "prompt"),
        (completion_prompt_of, {"prompt": ["x"] * (MAX_PROMPTS + 1)}, "prompt"),
        (truncate_of, {"parameters": 5}, "parameters"),
        (truncate_of, {"parameters": {"truncate": 0}}, "truncate"),
        (truncate_of, {"parameters": {"truncate": "x"}}, "truncate"),
        (vertex_prompt_of, {}, "instances"),
        (vertex_prompt_of, {"instances": [{}]}, "messages"),
        (vertex_prompt_of, {"instances": [{"inputs": "x"}] * (MAX_PROMPTS + 1)}, "instances"),
    ],
)
def test_what_is_refused(read: object, fields: dict[str, object], param: str) -> None:
    """Where the server answers 422, by the name of the field."""
    assert callable(read)
    with pytest.raises(InvalidRequest) as caught:
        read(fields_of(fields))
    assert caught.value.param == param


@deterministic
@given(objects("inputs", "messages", "prompt", "suffix", "parameters", "instances"))
def test_any_json(fields: Fields) -> None:
    """Whatever the fields hold is a prompt or an invalid request."""
    for read in (prompt_of, truncate_of, vertex_prompt_of):
        with contextlib.suppress(InvalidRequest):
            read(fields)
