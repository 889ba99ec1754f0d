"""POST /v1/chat/completions/batch: one prompt per conversation."""

import contextlib

import msgspec
import pytest
from hypothesis import given

from kvguard.errors import InvalidRequest
from kvguard.protocols.chat_batch_prompt import prompt_of
from kvguard.protocols.fields import Fields, read_fields
from kvguard.protocols.openai_completions import MAX_PROMPTS
from kvguard.protocols.prompts import ChatPrompt, PromptList
from tests.kit.properties import deterministic
from tests.protocols.any_json import fields_of, objects


def test_conversations() -> None:
    """Each has its own messages, byte for byte, and the options of all; tools are not rendered."""
    body = b'{"messages":[ [{"role": "user"}],[ 1 ] ],"tools":[2],"add_generation_prompt":false,"n":1}'
    option = msgspec.Raw(b"false")
    assert prompt_of(read_fields(body)) == PromptList(
        tuple(
            ChatPrompt({"messages": msgspec.Raw(messages), "add_generation_prompt": option})
            for messages in (b'[{"role": "user"}]', b"[ 1 ]")
        )
    )


@pytest.mark.parametrize(
    "messages", [None, "x", {}, [], [[]], [[1], []], [{"role": "user", "content": "x"}], [[1]] * (MAX_PROMPTS + 1)]
)
def test_what_are_no_conversations(messages: object) -> None:
    """A list of non-empty lists it must be, and no longer than a list of prompts."""
    with pytest.raises(InvalidRequest) as caught:
        prompt_of(fields_of({"messages": messages}))
    assert caught.value.param == "messages"
    assert len(prompt_of(fields_of({"messages": [[1]] * MAX_PROMPTS})).prompts) == MAX_PROMPTS


def test_ids_replace_nothing() -> None:
    """One list of ids cannot be several prompts."""
    with pytest.raises(InvalidRequest) as caught:
        prompt_of(fields_of({"messages": [[1]], "kv_transfer_params": {"prompt_token_ids": [1]}}))
    assert caught.value.param == "kv_transfer_params.prompt_token_ids"


@deterministic
@given(objects("messages", "documents", "reasoning_effort", "chat_template_kwargs", "kv_transfer_params"))
def test_any_json(fields: Fields) -> None:
    """Whatever the fields hold is a prompt or an invalid request."""
    with contextlib.suppress(InvalidRequest):
        prompt_of(fields)
