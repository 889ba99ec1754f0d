"""POST /v1/messages in the chat form, as vLLM 0.32 converts it. Rows were compared with a running server's usage."""

import contextlib

import msgspec
import pytest
from hypothesis import given

from kvguard.errors import InvalidRequest
from kvguard.protocols.anthropic_prompt import prompt_of
from kvguard.protocols.fields import Fields
from kvguard.protocols.prompts import ChatPrompt, TokenPrompts
from tests.kit.properties import deterministic
from tests.protocols.any_json import fields_of, objects

Json = dict[str, object]
HI: Json = {"role": "user", "content": "hi"}
SCHEMA: Json = {"type": "object", "properties": {}}
TOOL: Json = {"name": "f", "description": "d", "input_schema": SCHEMA}


def text(value: str) -> Json:
    return {"type": "text", "text": value}


def chat(merge: bool = False, **fields: object) -> Json:
    prompt = prompt_of(fields_of({"messages": [HI], **fields}), merge_inline_system=merge)
    assert isinstance(prompt, ChatPrompt)
    return {name: msgspec.json.decode(value) for name, value in prompt.fields.items()}


def refused(**fields: object) -> str | None:
    with pytest.raises(InvalidRequest) as caught:
        prompt_of(fields_of(fields))
    return caught.value.param


@pytest.mark.parametrize(
    ("system", "leading"),
    [
        (None, None),
        ("", None),
        ("a", "a"),
        ("x-anthropic-billing-header: 1", "x-anthropic-billing-header: 1"),
        ([], None),
        ([text("a"), text(""), text("b")], "ab"),
        ([text("x-anthropic-billing-header: 1"), text("b"), {"type": "image"}], "b"),
    ],
)
def test_system(system: object, leading: str | None) -> None:
    """One message in front, without the attribution of Claude Code, which the engine drops from blocks only."""
    front = [] if leading is None else [{"role": "system", "content": leading}]
    assert chat(system=system) == {"messages": [*front, HI]}


@pytest.mark.parametrize(
    ("merge", "messages"),
    [
        (
            False,
            [
                {"role": "system", "content": "a"},
                HI,
                {"role": "system", "content": "b"},
                {"role": "system", "content": "cd"},
            ],
        ),
        (True, [{"role": "system", "content": "abcd"}, HI]),
    ],
)
def test_system_messages_inside(merge: bool, messages: list[Json]) -> None:
    """They stay where they are, or join the first one for a template that takes no other."""
    inline = [
        {"role": "system", "content": "b"},
        {"role": "system", "content": [text("c"), text("d")]},
        {"role": "system", "content": "x-anthropic-billing-header: 1"},
        {"role": "system", "content": []},
    ]
    assert chat(merge, system="a", messages=[HI, *inline]) == {"messages": messages}


@pytest.mark.parametrize(
    ("content", "converted"),
    [
        ("x", [{"role": "user", "content": "x"}]),
        ([text("x")], [{"role": "user", "content": "x"}]),
        ([text("x"), text(""), text("y")], [{"role": "user", "content": [text("x"), text("y")]}]),
        ([], []),
        ([{"type": "redacted_thinking", "data": "x"}, {"type": "tool_reference"}, {"type": "image"}], []),
        (
            [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}],
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}],
        ),
        (
            [{"type": "image", "source": {"data": "AAAA"}}],
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,AAAA"}}]}],
        ),
        (
            [{"type": "image", "source": {"type": "url", "url": "http://x"}}],
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}],
        ),
        (
            [text("x"), {"type": "tool_result", "tool_use_id": "t", "content": "ok"}],
            [{"role": "tool", "tool_call_id": "t", "content": "ok"}, {"role": "user", "content": "x"}],
        ),
        ([{"type": "tool_result"}], [{"role": "tool", "tool_call_id": "", "content": ""}]),
        (
            [
                {
                    "type": "tool_result",
                    "tool_use_id": "t",
                    "content": [
                        text("a"),
                        text("b"),
                        "c",
                        {"type": "image", "source": {"type": "url", "url": "u"}},
                        {"type": "tool_reference", "tool_name": "f"},
                        {"type": "tool_reference", "name": "g"},
                        {"type": "tool_reference"},
                        {"type": "other"},
                    ],
                }
            ],
            [
                {"role": "tool", "tool_call_id": "t", "content": "a\nb"},
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]},
                {
                    "role": "tool",
                    "tool_call_id": "t",
                    "content": [{"type": "tool_reference", "name": "f"}, {"type": "tool_reference", "name": "g"}],
                },
            ],
        ),
    ],
)
def test_user_messages(content: object, converted: list[Json]) -> None:
    """Results of tools come first as messages of their own; nothing is left of a message without content."""
    assert chat(messages=[{"role": "user", "content": content}]) == {"messages": converted}


@pytest.mark.parametrize(
    ("content", "converted"),
    [
        ([], {}),
        ([{"type": "thinking", "thinking": "a"}, {"type": "thinking", "thinking": "b"}], {"reasoning": "ab"}),
        (
            [text("x"), {"type": "tool_use", "id": "t", "name": "f", "input": {"a": "\u00e9", "b": [1, None]}}],
            {
                "tool_calls": [
                    {
                        "id": "t",
                        "type": "function",
                        "function": {"name": "f", "arguments": '{"a": "\\u00e9", "b": [1, null]}'},
                    }
                ],
                "content": "x",
            },
        ),
        (
            [{"type": "tool_use"}],
            {
                "tool_calls": [
                    {"id": "call_1700000000", "type": "function", "function": {"name": "", "arguments": "{}"}}
                ]
            },
        ),
        ([{"type": "tool_result", "content": [{"a": None}]}], {"content": "Tool result: [{'a': None}]"}),
        ([{"type": "tool_result"}], {"content": "Tool result: "}),
    ],
)
def test_assistant_messages(content: object, converted: Json) -> None:
    """Thinking, calls and text are parts of one message, which is there even when it is empty."""
    assert chat(messages=[{"role": "assistant", "content": content}]) == {
        "messages": [{"role": "assistant", **converted}]
    }


def test_tools() -> None:
    """In the shape of chat, a schema without a type made an object."""
    tools = [
        {**TOOL, "input_schema": {"properties": {}}, "cache_control": {}},
        {**TOOL, "strict": True, "description": None},
    ]
    assert chat(tools=tools, tool_choice={"type": "auto"})["tools"] == [
        {
            "type": "function",
            "function": {"name": "f", "description": "d", "parameters": {"properties": {}, "type": "object"}},
        },
        {"type": "function", "function": {"name": "f", "description": None, "parameters": SCHEMA, "strict": True}},
    ]
    assert "tools" not in chat()
    assert chat(tools=[])["tools"] == []


def change(kind: str, tool: object) -> Json:
    return {"type": kind, "tool": tool}


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ([], ["f", "g"]),
        ([text("x")], ["f", "g"]),
        ([change("tool_removal", {"type": "tool_reference", "name": "f"})], ["g"]),
        ([change("tool_addition", {"type": "tool_reference", "name": "g"})], ["f", "g"]),
        ([change("tool_addition", {"type": "tool_definition", "definition": {**TOOL, "name": "h"}})], ["f", "g", "h"]),
        (
            [
                change("tool_removal", {"type": "tool_reference", "name": "f"}),
                change("tool_addition", {"type": "tool_reference", "name": "f"}),
            ],
            ["f", "g"],
        ),
    ],
)
def test_changes_of_tools(changes: list[Json], names: list[str]) -> None:
    """The template sees the tools in effect at the end."""
    tools = [TOOL, {**TOOL, "name": "g", "defer_loading": True}]
    found = chat(tools=tools, messages=[HI, {"role": "system", "content": changes}])["tools"]
    assert isinstance(found, list)
    assert [tool["function"]["name"] for tool in found] == names
    deferred = [tool["function"].get("defer_loading") for tool in found if tool["function"]["name"] == "g"]
    assert deferred == [None if "g" in str(changes) else True]


def test_a_tool_defined_later_only() -> None:
    """There need be no tools at the start."""
    added = change("tool_addition", {"type": "tool_definition", "definition": TOOL})
    assert chat(messages=[{"role": "system", "content": [added]}])["tools"]


@pytest.mark.parametrize(
    ("fields", "kwargs"),
    [
        ({}, None),
        ({"output_config": {}}, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, None),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, ("none", False)),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}, ("high", True)),
    ],
)
def test_effort(fields: Json, kwargs: tuple[str, bool] | None) -> None:
    """The template hears of it, and thinking switched off wins."""
    wanted = {} if kwargs is None else {"reasoning_effort": kwargs[0], "enable_thinking": kwargs[1]}
    assert chat(**fields).get("chat_template_kwargs", {}) == wanted
    assert chat(**fields, chat_template_kwargs={"a": 1})["chat_template_kwargs"] == {"a": 1, **wanted}


def test_ids_replace_the_messages() -> None:
    """Unless there is a picture among them."""
    ids = {"kv_transfer_params": {"prompt_token_ids": [1, 2]}}
    picture = {"type": "image", "source": {"data": "AAAA"}}
    assert prompt_of(fields_of({"messages": [HI], **ids})) == TokenPrompts((2,))
    assert isinstance(prompt_of(fields_of({"messages": [{"role": "user", "content": [picture]}], **ids})), ChatPrompt)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "messages"),
        ({"messages": "x"}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": []}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": [text("x") | {"text": 5}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": "x"}]}]}, "messages"),
        ({"messages": [{"role": "system", "content": None}]}, "messages"),
        ({"messages": [{"role": "system", "content": [change("tool_addition", None)]}]}, "messages"),
        ({"messages": [{"role": "system", "content": [change("tool_removal", {"name": "f"})]}]}, "messages"),
        ({"messages": [{"role": "user", "content": [change("tool_removal", {"name": "f"})]}]}, "messages"),
        ({"messages": [HI], "system": 5}, "system"),
        ({"messages": [HI], "tools": "x"}, "tools"),
        ({"messages": [HI], "tools": [{"name": "f"}]}, "tools"),
        ({"messages": [HI], "kv_transfer_params": 5}, "kv_transfer_params"),
        ({"messages": [HI], "kv_transfer_params": {"prompt_token_ids": []}}, "kv_transfer_params.prompt_token_ids"),
    ],
)
def test_what_is_refused(fields: Json, param: str) -> None:
    """Where the engine answers 400, by the name of the field."""
    assert refused(**fields) == param


@pytest.mark.parametrize("depth", [*range(700, 1000), 10_000])
def test_deep_values(depth: int) -> None:
    """However deep the input of a call is, it is a prompt or an invalid request."""
    deep = b"[" * depth + b"]" * depth
    body = (
        b'[{"role":"assistant","content":[{"type":"tool_use","input":{"a":%s}},{"type":"tool_result","content":[%s]}]}]'
    )
    with contextlib.suppress(InvalidRequest):
        prompt_of(
            {"messages": msgspec.Raw(body % (deep, deep)), "tools": msgspec.Raw(b'[{"input_schema":{"a":%s}}]' % deep)}
        )


def test_what_is_too_deep_to_convert_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever on the way the stack runs out, the answer is the same."""

    def too_deep(*_: object) -> None:
        raise RecursionError

    monkeypatch.setattr("kvguard.protocols.anthropic_prompt._prompt", too_deep)
    with pytest.raises(InvalidRequest, match="deep"):
        prompt_of({})


@deterministic
@given(
    objects("messages", "system", "tools", "thinking", "output_config", "chat_template_kwargs", "kv_transfer_params")
)
def test_any_json(fields: Fields) -> None:
    """Whatever the fields hold is a prompt or an invalid request."""
    with contextlib.suppress(InvalidRequest):
        prompt_of(fields)


def test_many_changes_of_many_tools() -> None:
    """The work is that of their number, not of one times the other."""
    tools = [{"name": str(number), "input_schema": {}} for number in range(8_000)]
    changes = [{"type": "tool_removal", "tool": {"name": str(number)}} for number in range(1, 8_000)]
    shown = chat(tools=tools, messages=[HI, {"role": "system", "content": changes}])["tools"]
    assert isinstance(shown, list)
    assert len(shown) == 1
