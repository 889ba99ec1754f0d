"""POST /v1/responses in the chat form, as vLLM 0.32 converts it. Rows were compared with a running server's usage."""

import contextlib

import msgspec
import pytest
from hypothesis import given

from kvguard.errors import InvalidRequest
from kvguard.protocols.fields import Fields
from kvguard.protocols.prompts import ChatPrompt, OpenEndedPrompt, TokenPrompts
from kvguard.protocols.responses_prompt import prompt_of
from tests.kit.properties import deterministic
from tests.protocols.any_json import fields_of, objects

Json = dict[str, object]


def chat(**fields: object) -> Json:
    prompt = prompt_of(fields_of(fields))
    assert isinstance(prompt, ChatPrompt)
    return {name: msgspec.json.decode(value) for name, value in prompt.fields.items()}


def call(call_id: str, name: str = "f", arguments: str = "{}") -> Json:
    return {"id": call_id, "function": {"name": name, "arguments": arguments}, "type": "function"}


def function_call(call_id: str, **more: object) -> Json:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}", **more}


def thought(text: str) -> Json:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def answer(*texts: str) -> Json:
    parts = [{"type": "output_text", "text": text} for text in texts]
    return {"type": "message", "role": "assistant", "content": parts}


USER: Json = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("instructions", "messages"),
    [
        (None, [{"role": "user", "content": "hi"}]),
        ("", [{"role": "user", "content": "hi"}]),
        ("be", [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}]),
    ],
)
def test_text(instructions: str | None, messages: list[Json]) -> None:
    """A text is what the user says; the tokenizer's own special tokens come on top of the template here."""
    assert chat(input="hi", instructions=instructions) == {"messages": messages, "add_special_tokens": True}


@pytest.mark.parametrize(
    ("items", "messages"),
    [
        ([], []),
        ([USER], [USER]),
        (
            [
                {
                    "type": "message",
                    "role": "user",
                    "content": [{"type": "input_text", "text": "a"}, {"type": "input_image"}, "b"],
                }
            ],
            [
                {
                    "type": "message",
                    "role": "user",
                    "content": [{"type": "text", "text": "a"}, {"type": "input_image"}, "b"],
                }
            ],
        ),
        ([answer("a", "b")], [{"role": "assistant", "content": "a"}]),
        ([{"role": "assistant", "content": "a"}], [{"role": "assistant", "content": "a"}]),
        ([{"role": "assistant", "content": []}], [{"role": "assistant", "content": []}]),
        ([{"role": "assistant", "content": ["a"]}], [{"role": "assistant", "content": ["a"]}]),
        ([answer("a"), answer("b")], [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]),
        ([thought("t")], [{"role": "assistant", "reasoning": "t"}]),
        (
            [thought("t"), thought("u")],
            [{"role": "assistant", "reasoning": "t"}, {"role": "assistant", "reasoning": "u"}],
        ),
        ([{"type": "reasoning", "summary": [{"text": "s"}]}], [{"role": "assistant", "reasoning": "s"}]),
        ([{"type": "reasoning"}], [{"role": "assistant", "reasoning": ""}]),
        (
            [thought("t"), function_call("1"), function_call("2"), answer("a")],
            [{"role": "assistant", "reasoning": "t", "tool_calls": [call("1"), call("2")], "content": "a"}],
        ),
        ([USER, function_call("1")], [USER, {"role": "assistant", "tool_calls": [call("1")]}]),
        ([function_call("1", namespace="n")], [{"role": "assistant", "tool_calls": [call("1", "n__f")]}]),
        (
            [{"type": "custom_tool_call", "call_id": "1", "name": "c", "input": "\u00e9"}],
            [{"role": "assistant", "tool_calls": [call("1", "c", '{"input": "\u00e9"}')]}],
        ),
        (
            [function_call("1"), {"type": "function_call_output", "call_id": "1", "output": "ok"}],
            [{"role": "assistant", "tool_calls": [call("1")]}, {"role": "tool", "content": "ok", "tool_call_id": "1"}],
        ),
        (
            [{"type": "custom_tool_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "a"}]}],
            [{"role": "tool", "content": [{"type": "text", "text": "a"}], "tool_call_id": "1"}],
        ),
    ],
)
def test_items(items: list[Json], messages: list[Json]) -> None:
    """Thoughts, calls and an answer that follow each other are one turn of the assistant."""
    assert chat(input=items)["messages"] == messages


def test_items_do_not_join_what_is_not_input() -> None:
    """A turn of earlier messages is closed."""
    previous = [{"role": "assistant", "content": "old"}]
    assert chat(input=[thought("t")], previous_input_messages=previous)["messages"] == [
        {"role": "assistant", "content": "old"},
        {"role": "assistant", "reasoning": "t"},
    ]


@pytest.mark.parametrize(
    ("last", "continued"),
    [
        (answer("a"), False),
        ({**answer("a"), "status": "completed"}, False),
        ({**answer("a"), "status": "in_progress"}, True),
        ({**answer("a"), "status": "incomplete"}, True),
        ({"role": "user", "content": "x", "status": "incomplete"}, True),
        ({**thought("t"), "status": "incomplete"}, True),
        (function_call("1", status="incomplete"), False),
    ],
)
def test_an_unfinished_message_is_continued(last: Json, continued: bool) -> None:
    """Then there is no prompt for a new turn."""
    options = chat(input=[USER, last])
    assert options.get("continue_final_message", False) is continued
    assert options.get("add_generation_prompt", True) is not continued


def test_tools() -> None:
    """Functions, those of a namespace by their full names, and free-form tools as functions of one string."""
    function = {"type": "function", "name": "f", "parameters": {"a": 1}, "strict": True}
    custom = {"type": "custom", "name": "c", "description": "d"}
    space = {
        "type": "namespace",
        "name": "n",
        "tools": [{"type": "function", "name": "g"}, {"type": "custom", "name": "h"}],
    }
    shown = chat(input="x", tools=[function, custom, space, {"type": "web_search"}])["tools"]
    assert isinstance(shown, list)
    assert [tool["function"]["name"] for tool in shown] == ["f", "c", "n__g"]
    assert shown[0]["function"] == {"name": "f", "description": None, "parameters": {"a": 1}, "strict": True}
    assert shown[1]["function"]["parameters"]["required"] == ["input"]
    assert "tools" not in chat(input="x", tools=[])


def test_options_of_the_template() -> None:
    """What chat takes as `reasoning_effort` is `reasoning.effort` here."""
    options = chat(input="x", reasoning={"effort": "low"}, chat_template_kwargs={"a": 1})
    assert options["chat_template_kwargs"] == {"a": 1, "reasoning_effort": "low", "enable_thinking": True}
    assert "chat_template_kwargs" not in chat(input="x", reasoning={"summary": "auto"})
    assert "chat_template_kwargs" not in chat(input="x", reasoning="low")


def test_earlier_messages() -> None:
    """In chat or harmony form, each as one text; those of the system are dropped as in the engine."""
    previous = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"author": {"role": "developer"}, "content": "d"},
        {"author": {"role": "assistant"}, "content": [{"type": "text", "text": "a"}]},
        {"role": "tool", "content": "t", "name": "f"},
        {"content": "x"},
    ]
    assert chat(input="hi", previous_input_messages=previous)["messages"] == [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": '{"content": [{"type": "text", "text": "a"}]}'},
        {"role": "assistant", "content": '{"content": "t", "name": "f"}'},
        {"role": "assistant", "content": "x"},
        {"role": "user", "content": "hi"},
    ]


def test_history_the_engine_keeps() -> None:
    """Only the context bounds such a prompt."""
    prompt = prompt_of(fields_of({"input": "hi", "previous_response_id": "r"}))
    assert isinstance(prompt, OpenEndedPrompt)
    assert prompt.known == prompt_of(fields_of({"input": "hi", "previous_response_id": None}))


def test_ids_replace_the_messages() -> None:
    """Unless there is a picture among them."""
    ids = {"kv_transfer_params": {"prompt_token_ids": [1, 2]}}
    picture = [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]
    assert prompt_of(fields_of({"input": "hi", **ids})) == TokenPrompts((2,))
    assert isinstance(prompt_of(fields_of({"input": picture, **ids})), ChatPrompt)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": 5}, "input"),
        ({"input": ["x"]}, "input"),
        ({"input": [{}]}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input"),
        ({"input": [{"type": [], "role": 5}]}, "input"),
        ({"input": [{"type": "reasoning", "encrypted_content": "x"}]}, "input"),
        ({"input": [{"type": "reasoning", "content": "x"}]}, "input"),
        ({"input": [{"type": "function_call", "name": 5}]}, "input"),
        ({"input": "x", "instructions": 5}, "instructions"),
        ({"input": "x", "tools": {"a": 1}}, "tools"),
        ({"input": "x", "tools": [{"type": "namespace"}]}, "tools"),
        ({"input": "x", "prompt": {"id": "p"}}, "prompt"),
        ({"input": "x", "previous_input_messages": "x"}, "previous_input_messages"),
        ({"input": "x", "kv_transfer_params": {"prompt_token_ids": [True]}}, "kv_transfer_params.prompt_token_ids"),
    ],
)
def test_what_is_refused(fields: Json, param: str) -> None:
    """Where the engine answers 400, by the name of the field."""
    with pytest.raises(InvalidRequest) as caught:
        prompt_of(fields_of(fields))
    assert caught.value.param == param


@pytest.mark.parametrize("depth", [*range(700, 1000), 10_000])
def test_deep_values(depth: int) -> None:
    """However deep a value is, it is a prompt or an invalid request."""
    deep = b"[" * depth + b"]" * depth
    previous, tools = (
        msgspec.Raw(b'[{"content":%s}]' % deep),
        msgspec.Raw(b'[{"type":"function","parameters":%s}]' % deep),
    )
    with contextlib.suppress(InvalidRequest):
        prompt_of({"input": msgspec.Raw(b'"x"'), "previous_input_messages": previous, "tools": tools})


def test_what_is_too_deep_to_convert_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever on the way the stack runs out, the answer is the same."""

    def too_deep(*_: object) -> None:
        raise RecursionError

    monkeypatch.setattr("kvguard.protocols.responses_prompt._prompt", too_deep)
    with pytest.raises(InvalidRequest, match="deep"):
        prompt_of({})


@deterministic
@given(objects("input", "instructions", "tools", "reasoning", "previous_input_messages", "kv_transfer_params"))
def test_any_json(fields: Fields) -> None:
    """Whatever the fields hold is a prompt or an invalid request."""
    with contextlib.suppress(InvalidRequest):
        prompt_of(fields)


def test_many_calls_of_one_turn() -> None:
    """Each is added to those before it, which are not copied."""
    (turn,) = chat(input=[function_call(str(number)) for number in range(8_000)])["messages"]
    assert [call["id"] for call in turn["tool_calls"]] == [str(number) for number in range(8_000)]
