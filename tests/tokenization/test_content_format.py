"""Which templates are given part lists."""

import pytest
from jinja2 import Environment

from kvguard.tokenization.content_format import wants_parts

LOOP = "{% for message in messages %}%s{% endfor %}"


@pytest.mark.parametrize(
    "source",
    [
        LOOP.replace("%s", "{% for part in message.content %}{% endfor %}"),
        LOOP.replace("%s", "{% for part in message['content'] %}{% endfor %}"),
        LOOP.replace("%s", "{% for part in message.content[1:] | list %}{% endfor %}"),
        LOOP.replace("%s", "{% set content = message.content %}{% for part in content %}{% endfor %}"),
        "{% set turns = messages[1:] %}{% set rest = turns | list %}{% for m in rest %}"
        "{% for part in m.content %}{% endfor %}{% endfor %}",
        "{% set a = messages %}{% set b = a %}{% set a = b %}{% for m in a %}{% for p in m.content %}{% endfor %}"
        "{% endfor %}",
        "{% macro show(text) %}{% for part in text %}{% endfor %}{% endmacro %}"
        + LOOP.replace("%s", "{{ show(message.content) }}"),
        "{% macro show(role, text) %}{% for part in text %}{% endfor %}{% endmacro %}"
        + LOOP.replace("%s", "{{ show('a', text=message['content']) }}"),
    ],
)
def test_a_loop_over_a_content_asks_for_parts(source: str) -> None:
    """Directly, through names, slices, filters and macro arguments."""
    assert wants_parts(Environment().parse(source))


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages }}",
        LOOP.replace("%s", "{{ message.content }}"),
        LOOP.replace("%s", "{% for call in message.tool_calls %}{% endfor %}"),
        LOOP.replace("%s", "{% for key in message[content] %}{% endfor %}"),
        "{% for turn in turns %}{% for part in turn.content %}{% endfor %}{% endfor %}",
        "{% macro show(content) %}{% for part in content %}{% endfor %}{% endmacro %}{{ show(other) }}",
        "{% macro show(text) %}{% for part in text %}{% endfor %}{% endmacro %}"
        + LOOP.replace("%s", "{{ show(message.role, text='a', more=message.content) }}"),
        "{% for role, content in messages %}{% for part in content %}{% endfor %}{% endfor %}",
        LOOP.replace("%s", "{% for a, b in message.content %}{% endfor %}"),
        "{% set a, b = messages %}{% for part in content %}{% endfor %}",
    ],
)
def test_any_other_template_is_given_text(source: str) -> None:
    """Other loops, other names, and contents that are unpacked."""
    assert not wants_parts(Environment().parse(source))
