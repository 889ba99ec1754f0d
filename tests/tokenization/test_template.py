"""The environment of a chat template, and what it may do."""

import re

import pytest
from jinja2 import TemplateError
from jinja2.exceptions import SecurityError

from kvguard.tokenization import template
from kvguard.tokenization.counter import CountFailed
from kvguard.tokenization.template import ChatTemplate

HELLO = [{"role": "user", "content": "hello"}]
TURNS = "{% for m in messages %}[{{ m.content }}]{% endfor %}"


def render(source: str, messages: list[dict[str, object]] = HELLO, continued: bool = False, **variables: object) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(messages, variables, continued=continued)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}{{ eos_token }}!", "<s>!"),
        ("{% if true %}\n  {% set x = 1 %}\n{{ x }}\n{% endif %}\n", "1\n"),
        ("{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% if i == 3 %}{% break %}{% endif %}"
         "{% endfor %}", "023"),
        ("{{ x | tojson }}", '{"b": "<é>&\'", "a": [1, null]}'),
        ("{{ x | tojson(indent=1, sort_keys=true) }}", '{\n "a": [\n  1,\n  null\n ],\n "b": "<é>&\'"\n}'),
        ("{{ x | tojson(true, none, (',', ':')) }}", '{"b":"<\\u00e9>&\'","a":[1,null]}'),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "hello"),
        ("{% set ns = namespace(n=1) %}{% set ns.n = 2 %}{{ ns.n }}", "2"),
        ("{{ strftime_now is defined }} {{ unused is defined }}", "True False"),
    ],
)  # fmt: skip
def test_templates_find_the_environment_of_transformers(source: str, text: str) -> None:
    """Whitespace, loop controls, JSON, the generation block and special tokens are as templates expect them."""
    assert render(source, x={"b": "<é>&'", "a": [1, None]}, unused_too=1) == text


def test_the_date_is_todays() -> None:
    """Templates that print the date render."""
    assert re.fullmatch(r"\d\d \w{3} \d{4}", render("{{ strftime_now('%d %b %Y') }}"))


def test_variables_win_over_special_tokens_and_messages_over_both() -> None:
    """A client's keyword may replace a token, as in transformers."""
    variables = {"bos_token": "B", "messages": []}
    assert ChatTemplate("{{ bos_token }}{{ messages | length }}", {"bos_token": "<s>"}).render(HELLO, variables) == "B1"


@pytest.mark.parametrize("source", ["{{ messages.clear() }}", "{{ ''.__class__.mro() }}", "{{ messages.append(1) }}"])
def test_a_template_writes_nothing_and_escapes_nowhere(source: str) -> None:
    """A write and an escape attempt both fail."""
    with pytest.raises(SecurityError):
        render(source)


def test_a_template_may_refuse() -> None:
    """Its own complaint is raised."""
    with pytest.raises(TemplateError, match="no system role"):
        render("{{ raise_exception('no system role') }}")


def test_what_is_printed_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversation that would grow past the bound is not rendered to its end."""
    monkeypatch.setattr(template, "MAX_RENDERED_CHARACTERS", 5)
    assert render("{{ messages[0].content }}") == "hello"
    with pytest.raises(CountFailed, match="too long"):
        render("{% for i in range(99999) %}{{ i }}{% endfor %}")


@pytest.mark.parametrize(
    ("source", "content", "text"),
    [
        (TURNS, "tail ", "[hello][tail "),
        ("{% for m in messages %}[{{ m.content | trim }}]{% endfor %}", "tail \n", "[hello][tail"),
        ("{% for m in messages %}[{{ m.content | trim }}]{% endfor %}", "", "[hello]["),
        (TURNS, "a CONTINUE_FINAL_MESSAGE_TAG b", "[hello][a CONTINUE_FINAL_MESSAGE_TAG b"),
        ("{% for m in messages %}{% for p in m.content %}{{ p.text }}|{% endfor %}{% endfor %}",
         [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, {"type": "tool_reference", "name": "f"}],
         "hi|a|b"),
    ],
)  # fmt: skip
def test_a_continued_message_stays_open(source: str, content: object, text: str) -> None:
    """The prompt ends with the last text, with its trailing space where the template keeps it."""
    first = "hello" if isinstance(content, str) else [{"type": "text", "text": "hi"}]
    messages = [{"role": "user", "content": first}, {"role": "assistant", "content": content}]
    assert render(source, messages, continued=True) == text
    assert messages[1]["content"] == content


@pytest.mark.parametrize(
    ("source", "content"),
    [
        ("{{ messages[0].role }}", "a"),
        ("{# content #}{{ messages[0].role }}", "a"),
        ("{{ messages[0].content | replace('secret', '') }}", "secret"),
        ("{% for p in messages[0].content %}{{ p.text }}{% endfor %}", []),
    ],
)
def test_a_message_that_cannot_be_continued_is_a_failed_count(source: str, content: object) -> None:
    """No content in the template, none in the output, another text in the output, none in the message."""
    with pytest.raises(CountFailed):
        render(source, [{"role": "assistant", "content": content}], continued=True)


def test_developers_speak_as_system_where_the_template_does_not_know_them() -> None:
    """The role is kept for a template that names it."""
    messages = [{"role": "developer", "content": "d", "tools": None}]
    assert render("{{ messages[0].role }}", messages) == "system"
    assert render("{# 'developer' #}{{ messages[0].role }}", messages) == "developer"
