"""What vLLM makes of messages and tools before the template."""

import json

import pytest

from kvguard.tokenization.conversation import MAX_ITEMS, read_messages, read_tools, system_for_developer
from kvguard.tokenization.counter import CountFailed

HEADER = "x-anthropic-billing-header: cch=1"


def text(value: object, **more: object) -> dict[str, object]:
    return {"type": "text", "text": value, **more}


@pytest.mark.parametrize(
    ("content", "joined", "parts"),
    [
        ("a", "a", [text("a")]),
        ("", "", [text("")]),
        (None, "", []),
        ([], "", []),
        ([text("a"), text(""), text("b")], "a\nb", [text("a"), text(""), text("b")]),
        ([text(None), {"type": "text"}, text("a")], "a", [text("a")]),
        (["bare", text("a")], "bare\na", [text("bare"), text("a")]),
        ([{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}], "a\nb", [text("a"), text("b")]),
        ([{"type": "refusal", "refusal": "no"}, {"type": "refusal"}], "no", [text("no")]),
        ([{"type": "thinking", "thinking": "hm", "closed": True}], "hm", [text("hm")]),
        ([{"z": 1, "text": "a", "type": "text", "name": "n"}], "a", [text("a", z=1)]),
        ([{"type": "tool_reference", "name": "f"}], "f", [{"type": "tool_reference", "name": "f"}]),
    ],
)
def test_contents_are_joined_or_kept_as_parts(content: object, joined: str, parts: list[object]) -> None:
    """Text parts of every kind become text; unknown keys survive for templates that are given parts."""
    message = {"role": "user", "content": content}
    assert read_messages([message], parts=False)[0]["content"] == joined
    assert read_messages([message], parts=True)[0]["content"] == parts


def test_a_tools_answer_is_text_unless_it_refers_to_tools() -> None:
    """Tool results are joined even for templates that want parts."""
    answer = {"role": "tool", "content": [text("a"), text(""), text("b")], "tool_call_id": "c"}
    assert read_messages([answer], parts=True) == [{"role": "tool", "content": "a\n\nb", "tool_call_id": "c"}]
    reference = {"type": "tool_reference", "name": "f"}
    assert read_messages([{"role": "tool", "content": [reference]}], parts=True)[0]["content"] == [reference]


def test_only_what_the_engine_passes_on_reaches_the_template() -> None:
    """Names and tasks pass, reasoning has both its names, unknown keys do not pass."""
    given = {"role": "assistant", "content": "a", "name": "n", "task": "t", "extra": 1, "reasoning_content": "r"}
    assert read_messages([given], parts=False) == [
        {"role": "assistant", "content": "a", "reasoning": "r", "reasoning_content": "r", "name": "n", "task": "t"}
    ]
    both = read_messages([{**given, "reasoning": "first"}], parts=False)[0]
    assert both["reasoning"] == both["reasoning_content"] == "first"
    assert "reasoning" not in read_messages([{"role": "user", "content": "a", "reasoning": "r"}], parts=False)[0]


@pytest.mark.parametrize(
    ("arguments", "read"),
    [
        ('{"b": 1, "a": 1e2}', {"b": 1, "a": 100.0}),
        ("", {}),
        (None, {}),
        ("{", {}),
        ("[1]", {}),
        ("3", {}),
        ({"a": 1}, {"a": 1}),
    ],
)
def test_tool_calls_are_read_into_objects(arguments: object, read: object) -> None:
    """Arguments are an object whatever was sent, and keys stand in the engine's order."""
    call = {"x": 0, "type": "function", "function": {"name": "f", "arguments": arguments}, "id": "c"}
    message = {"role": "assistant", "tool_calls": [call]}
    expected = [{"id": "c", "function": {"arguments": read, "name": "f"}, "type": "function", "x": 0}]
    assert json.dumps(read_messages([message], parts=False)[0]["tool_calls"]) == json.dumps(expected)


def test_no_tool_calls_are_none() -> None:
    """An empty list and null leave no trace."""
    for calls in ([], None):
        assert read_messages([{"role": "assistant", "content": "a", "tool_calls": calls}], parts=False) == [
            {"role": "assistant", "content": "a"}
        ]


def test_tools_are_dumped_as_the_engine_dumps_them() -> None:
    """Known keys only, in the engine's order, description and parameters always there."""
    tool = {"x": 1, "defer_loading": True, "function": {"strict": False, "y": 2, "name": "f", "parameters": {"b": 1}}}
    function = {"name": "f", "description": None, "parameters": {"b": 1}, "strict": False, "defer_loading": True}
    expected = [{"type": "function", "function": function, "defer_loading": True}]
    assert json.dumps(read_tools([tool])) == json.dumps(expected)
    assert read_tools(None) is None


def test_the_billing_line_of_a_coding_client_is_dropped() -> None:
    """A system text loses that first line, and the part with it when nothing else is there."""
    parts = [text(HEADER), f"{HEADER}\nbare", text(f"{HEADER}\nkept", z=1), {"type": "refusal", "refusal": HEADER}]
    assert read_messages([{"role": "system", "content": parts}], parts=False)[0]["content"] == f"bare\nkept\n{HEADER}"
    assert read_messages([{"role": "user", "content": HEADER}], parts=False)[0]["content"] == HEADER


def test_a_developers_tools_are_kept_in_order() -> None:
    """Templates that know the role are given its tools."""
    tool = {"type": "function", "function": {"parameters": {}, "name": "f"}}
    read = read_messages([{"role": "developer", "content": "d", "tools": [tool]}], parts=False)[0]
    assert json.dumps(read["tools"]) == '[{"function": {"name": "f", "parameters": {}}, "type": "function"}]'
    assert read_messages([{"role": "developer", "content": "d"}], parts=False)[0]["tools"] is None


def test_developers_become_system_messages_in_front() -> None:
    """System texts are merged into one, but only where a developer spoke."""
    user = {"role": "user", "content": "u"}
    system = {"role": "system", "content": [text("s"), text("t"), {"type": "tool_reference", "name": "f"}]}
    developer = {"role": "developer", "content": "d", "tools": None, "name": "n"}
    assert system_for_developer([system, user, system]) == [system, user, system]
    assert system_for_developer([developer, user]) == [{"role": "system", "content": "d", "name": "n"}, user]
    empty = {"role": "system", "content": ""}
    assert system_for_developer([user, system, empty, developer]) == [{"role": "system", "content": "s\nt\n\nd"}, user]


@pytest.mark.parametrize(
    "messages",
    [
        None,
        [],
        [{"role": "user", "content": "a"}] * (MAX_ITEMS + 1),
        [{"role": "user", "content": ["a"] * MAX_ITEMS}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}] * MAX_ITEMS}],
        ["text"],
        [{"content": "a"}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": [5]}],
        [{"role": "user", "content": [{"text": "a"}]}],
        [{"role": "user", "content": [text("a", uuid="u")]}],
        [{"role": "user", "content": [text(5)]}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}],
        [{"role": "assistant", "tool_calls": {"a": 1}}],
        [{"role": "assistant", "tool_calls": ["f"]}],
        [{"role": "assistant", "tool_calls": [{"type": "custom", "custom": {}}]}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[" * 100_000}}]}],
        [{"role": "developer", "content": "d", "tools": [3]}],
        [{"role": "developer", "content": "d", "tools": "f"}],
        [{"role": "developer", "content": "d", "tools": [{"type": "function", "function": {"name": 5}}]}],
    ],
)
def test_what_the_engine_refuses_is_a_failed_count(messages: object) -> None:
    """Shapes that are no conversation, media, and calls that are none never become a number."""
    with pytest.raises(CountFailed):
        read_messages(messages, parts=False)


@pytest.mark.parametrize(
    "tools",
    [
        "f",
        ["f"],
        [{"function": {"name": "f"}}] * (MAX_ITEMS + 1),
        [{"function": "f"}],
        [{"function": {}}],
        [{"function": {"name": "f", "strict": "yes"}}],
    ],
)
def test_tools_that_are_none_are_a_failed_count(tools: object) -> None:
    """Only named functions with plain flags are tools."""
    with pytest.raises(CountFailed):
        read_tools(tools)
