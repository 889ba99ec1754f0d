"""The prompt forms of TGI's routes."""

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given

from kvguard.errors import InvalidRequest
from kvguard.protocols.fields import Fields
from kvguard.protocols.openai_completions import MAX_PROMPTS
from kvguard.protocols.prompts import ChatPrompt, Prompt, TextPrompts
from kvguard.protocols.tgi_prompt import (
    TEMPLATE_FIELDS,
    chat_prompt_of,
    completion_prompt_of,
    native_prompt_of,
)
from tests.kit.properties import deterministic
from tests.protocols.any_json import fields_of, objects

CHAT = fields_of({"messages": [{"role": "user", "content": "x"}]})


@pytest.mark.parametrize(
    ("read", "fields", "prompt"),
    [
        (native_prompt_of, {"inputs": "x"}, TextPrompts(("x",))),
        (chat_prompt_of, {"messages": [{"role": "user", "content": "x"}], "prompt": "y"}, ChatPrompt(CHAT)),
        (completion_prompt_of, {"prompt": "y"}, TextPrompts(("y",))),
        (completion_prompt_of, {"prompt": ["y", ""]}, TextPrompts(("y", ""))),
        (completion_prompt_of, {"prompt": ["y"] * MAX_PROMPTS}, TextPrompts(("y",) * MAX_PROMPTS)),
    ],
)
def test_forms(read: Callable[[Fields], Prompt], fields: dict[str, object], prompt: Prompt) -> None:
    """Text, a conversation, or several texts."""
    assert read(fields_of(fields)) == prompt


@pytest.mark.parametrize("name", TEMPLATE_FIELDS)
def test_everything_the_template_sees(name: str) -> None:
    """Each of these fields belongs to the prompt, and nothing else."""
    fields = fields_of({"messages": [], "max_tokens": 5, name: []})
    assert chat_prompt_of(fields) == ChatPrompt({key: fields[key] for key in fields if key != "max_tokens"})


@pytest.mark.parametrize(
    ("read", "fields", "param"),
    [
        (native_prompt_of, {}, "inputs"),
        (native_prompt_of, {"inputs": ["x"]}, "inputs"),
        (chat_prompt_of, {}, "messages"),
        (chat_prompt_of, {"messages": ["x"]}, "messages"),
        (completion_prompt_of, {"prompt": "x", "suffix": "y"}, "suffix"),
        (completion_prompt_of, {"prompt": []}, "prompt"),
        (completion_prompt_of, {"prompt": [1]}, "prompt"),
        (completion_prompt_of, {"prompt": ["x"] * (MAX_PROMPTS + 1)}, "prompt"),
    ],
)
def test_what_is_refused(read: Callable[[Fields], Prompt], fields: dict[str, object], param: str) -> None:
    """Where the server answers 422, by the name of the field."""
    with pytest.raises(InvalidRequest) as caught:
        read(fields_of(fields))
    assert caught.value.param == param


@deterministic
@given(objects("inputs", "messages", "prompt", "suffix"))
def test_any_json(fields: Fields) -> None:
    """Whatever the fields hold is a prompt or an invalid request."""
    for read in (native_prompt_of, chat_prompt_of, completion_prompt_of):
        with contextlib.suppress(InvalidRequest):
            read(fields)
