"""From the fields of a chat request to the prompt text."""

import pytest

from kvguard.tokenization.counter import CountFailed
from kvguard.tokenization.rendering import ChatTemplates, special_tokens_asked
from kvguard.tokenization.template import ChatTemplate
from tests.tokenization.small import chat

MESSAGES = [{"role": "user", "content": "hi"}]
SHOWS = (
    "{{ messages[0].content }}|{{ tools | tojson }}|{{ documents | tojson }}|{{ add_generation_prompt }}"
    "|{{ enable_thinking }}|{{ reasoning_effort }}|{{ extra is defined }}{{ extra }}"
)
TOOL = {"type": "function", "function": {"name": "f", "description": None, "parameters": None}}
TOOL_TEXT = '[{"type": "function", "function": {"name": "f", "description": null, "parameters": null}}]'


def rendered(**fields: object) -> str:
    template = ChatTemplate(SHOWS, {})
    return ChatTemplates(template, template).render(chat(messages=MESSAGES, **fields))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "hi|null|null|True|||False"),
        ({"add_generation_prompt": "false", "tools": None, "chat_template": None}, "hi|null|null|False|||False"),
        ({"tools": [TOOL], "documents": [{"text": "d"}]}, f'hi|{TOOL_TEXT}|[{{"text": "d"}}]|True|||False'),
        ({"reasoning_effort": "low"}, "hi|null|null|True|True|low|False"),
        ({"reasoning_effort": "none"}, "hi|null|null|True|False|none|False"),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False, "reasoning_effort": "x"}},
         "hi|null|null|True|False|low|False"),
        ({"chat_template_kwargs": {"reasoning_effort": "x", "extra": 5, "add_generation_prompt": False}},
         "hi|null|null|True||x|True5"),
        ({"chat_template_kwargs": {"extra": None}}, "hi|null|null|True|||False"),
        ({"chat_template_kwargs": {"extra": "auto"}}, "hi|null|null|True|||False"),
        ({"chat_template_kwargs": {"tools": [{"a": 1}], "documents": []}, "tools": [TOOL]},
         'hi|[{"a": 1}]|[]|True|||False'),
        ({"chat_template_kwargs": {"documents": [{"k": "w"}]}, "documents": [{"t": "d"}]},
         'hi|null|[{"t": "d"}]|True|||False'),
        ({"kv_transfer_params": {"remote": 1}, "mm_processor_kwargs": None}, "hi|null|null|True|||False"),
    ],
)  # fmt: skip
def test_fields_and_keywords_reach_the_template_as_in_the_engine(fields: dict[str, object], text: str) -> None:
    """Fields win over keywords, keywords over tools; null and auto keywords are as good as absent."""
    assert rendered(**fields) == text


def test_conversations_with_tools_have_their_own_template() -> None:
    """Tools of the request or of its keywords choose it, and without one the count fails."""
    templates = ChatTemplates(ChatTemplate("plain", {}), ChatTemplate("with tools", {}))
    assert templates.render(chat(messages=MESSAGES)) == "plain"
    assert templates.render(chat(messages=MESSAGES, tools=[TOOL])) == "with tools"
    assert templates.render(chat(messages=MESSAGES, chat_template_kwargs={"tools": [TOOL]})) == "with tools"
    with pytest.raises(CountFailed, match="no chat template"):
        ChatTemplates(None, None).render(chat(messages=MESSAGES))


def test_a_continued_message_needs_no_generation_prompt() -> None:
    """The two together are refused, as the engine does."""
    open_ended = ChatTemplates(ChatTemplate("{{ messages[0].content }}!", {}), None)
    fields = {"messages": MESSAGES, "continue_final_message": True}
    assert open_ended.render(chat(**fields, add_generation_prompt=False)) == "hi"
    with pytest.raises(CountFailed):
        open_ended.render(chat(**fields))


def test_special_tokens_are_added_on_request_only() -> None:
    """The default is that the template writes them."""
    assert not special_tokens_asked(chat(messages=[]))
    assert special_tokens_asked(chat(add_special_tokens="true"))
    with pytest.raises(CountFailed):
        special_tokens_asked(chat(add_special_tokens=[]))


@pytest.mark.parametrize(
    "fields",
    [
        {"kv_transfer_params": {"prompt_token_ids": [1]}},
        {"chat_template": "{{ 1 }}"},
        {"chat_template_kwargs": 3},
        {"chat_template_kwargs": {"chat_template": "x"}},
        {"chat_template_kwargs": {"messages": []}},
        {"chat_template_kwargs": {"tokenize": True}},
        {"chat_template_kwargs": {"tools": "f"}},
        {"documents": ["text"]},
        {"add_generation_prompt": "perhaps"},
        {"messages": "text"},
    ],
)
def test_what_the_template_cannot_know_is_a_failed_count(fields: dict[str, object]) -> None:
    """A conversation the local template would get wrong is left to the next counter."""
    with pytest.raises(CountFailed):
        rendered(**fields) if "messages" not in fields else ChatTemplates(ChatTemplate("", {}), None).render(
            chat(**fields)
        )


@pytest.mark.parametrize("raw", [b"[" * 100_000, b'[{"role": "user", "content": ' + b"9" * 5000 + b"}]", b'"\xff"'])
def test_json_the_engine_cannot_read_is_a_failed_count(raw: bytes) -> None:
    """Too deep, too long a number and broken UTF-8 end as failed counts."""
    with pytest.raises(CountFailed):
        ChatTemplates(ChatTemplate("", {}), None).render({"messages": raw})
