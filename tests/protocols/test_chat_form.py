"""What reaches the chat template, from any wire format."""

import msgspec
import pytest

from kvguard.errors import InvalidRequest
from kvguard.protocols.chat_form import (
    IDS_FIELD,
    chat_prompt,
    function_tool,
    has_media,
    object_list,
    raw,
    refuse_many_values_in,
    replaced_prompt,
    reused_ids,
    text_of,
    with_template_variables,
)
from kvguard.protocols.prompts import TokenPrompts
from tests.protocols.any_json import fields_of


def decoded(fields: dict[str, msgspec.Raw]) -> dict[str, object]:
    return {name: msgspec.json.decode(value) for name, value in fields.items()}


@pytest.mark.parametrize(
    ("fields", "kwargs"),
    [
        ({"reasoning_effort": "low"}, {"reasoning_effort": "low", "enable_thinking": True}),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False}),
        ({"documents": [{"text": "x"}]}, {"documents": [{"text": "x"}]}),
        (
            {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False, "a": 1}},
            {"enable_thinking": False, "a": 1, "reasoning_effort": "low"},
        ),
        (
            {"documents": [], "chat_template_kwargs": {"documents": [1]}},
            {"documents": []},
        ),
    ],
)
def test_variables_of_the_template(fields: dict[str, object], kwargs: dict[str, object]) -> None:
    """They move to where `/tokenize` takes them, with what the engine adds to an effort."""
    assert decoded(with_template_variables(fields_of({"messages": [], **fields}))) == {
        "messages": [],
        "chat_template_kwargs": kwargs,
    }


def test_an_effort_with_letters_escaped() -> None:
    """It is the word the letters stand for."""
    fields = with_template_variables({"reasoning_effort": msgspec.Raw(rb'"n\u006fne"')})
    assert msgspec.json.decode(fields["chat_template_kwargs"])["enable_thinking"] is False


@pytest.mark.parametrize(
    "fields",
    [{}, {"documents": None}, {"chat_template_kwargs": {"a": 1}}, {"documents": [1], "chat_template_kwargs": [2]}],
)
def test_fields_without_such_variables(fields: dict[str, object]) -> None:
    """Nothing to move, or nowhere to move it to, leaves the fields alone."""
    given = fields_of(fields)
    assert with_template_variables(given) is given


@pytest.mark.parametrize(
    ("messages", "media"),
    [
        (None, False),
        ("x", False),
        ([], False),
        (["x", {}], False),
        ([{"content": "x"}], False),
        ([{"content": ["x", {"type": "text", "text": "y"}, {"text": "z"}]}], False),
        ([{"content": [{"type": "tool_reference", "name": "f"}]}], False),
        ([{"content": [{"type": "text"}, {"type": "image_url"}]}], True),
        ([{"content": [{"image_url": "x"}]}], True),
        ([{"content": [{"type": "text", "text": "x", "video_url": "x"}]}], True),
        ([{"content": [{"type": "other"}]}], True),
        ([{"content": [{"type": 5}]}], True),
        ([{"content": "x"}, {"content": [{"type": "input_audio"}]}], True),
    ],
)
def test_media_in_messages(messages: object, media: bool) -> None:
    """Any key or type of a medium counts, and any type that is not known to be text."""
    assert has_media(messages) is media
    assert replaced_prompt(msgspec.Raw(b"[1]"), messages) == (None if media else TokenPrompts((1,)))


@pytest.mark.parametrize("ids", [[0], [1, 2, 3], [2**40]])
def test_ids_that_replace_the_messages(ids: list[int]) -> None:
    """Their number is the prompt's length."""
    assert replaced_prompt(raw(ids), [{"content": "hi"}]) == TokenPrompts((len(ids),))


@pytest.mark.parametrize("ids", [[], "1", {}, 5, [True], [1.0], [-1], ["1"], [None], [1, False]])
def test_ids_the_engine_refuses(ids: object) -> None:
    """Exact integers of at least zero, at least one; only messages with media save a request from the check."""
    with pytest.raises(InvalidRequest, match="non-empty list of non-negative integers") as caught:
        replaced_prompt(raw(ids), [])
    assert caught.value.param == IDS_FIELD == "kv_transfer_params.prompt_token_ids"
    assert replaced_prompt(raw(ids), [{"content": [{"type": "image_url"}]}]) is None
    assert replaced_prompt(None, []) is None


@pytest.mark.parametrize(
    ("fields", "ids"),
    [
        ({}, None),
        ({"kv_transfer_params": None}, None),
        ({"kv_transfer_params": {}}, None),
        ({"kv_transfer_params": {"prompt_token_ids": None}}, None),
        ({"kv_transfer_params": {"prompt_token_ids": [1]}}, msgspec.Raw(b"[1]")),
    ],
)
def test_where_ids_are(fields: dict[str, object], ids: object) -> None:
    """Inside the parameters of a KV transfer."""
    assert reused_ids(fields_of(fields)) == ids


@pytest.mark.parametrize("params", [[1], "x", 5])
def test_transfer_parameters_must_be_an_object(params: object) -> None:
    """Anything else is refused by name."""
    with pytest.raises(InvalidRequest) as caught:
        reused_ids(fields_of({"kv_transfer_params": params}))
    assert caught.value.param == "kv_transfer_params"


@pytest.mark.parametrize("value", [None, "x", {}, [1], [{}, "x"]])
def test_a_list_of_objects(value: object) -> None:
    """Everything in it must be an object."""
    assert object_list([{}, {"a": 1}], "field") == [{}, {"a": 1}]
    with pytest.raises(InvalidRequest, match="'field' must be a list of objects") as caught:
        object_list(value, "field")
    assert caught.value.param == "field"


def test_text_inside_a_field() -> None:
    """Absent and null are empty, anything but a string is refused."""
    assert [text_of(values, "a", "field") for values in ({}, {"a": None}, {"a": ""}, {"a": "x"})] == ["", "", "", "x"]
    with pytest.raises(InvalidRequest, match="'a' inside 'field' must be a string") as caught:
        text_of({"a": 5}, "a", "field")
    assert caught.value.param == "field"


def test_a_value_that_cannot_be_written() -> None:
    """A value nested deeper than JSON can be written is an invalid request."""
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        raw(deep)


def test_a_tool_as_the_template_sees_it() -> None:
    """Keys in the engine's order, unknown ones gone, absent ones null unless they are optional."""
    tool = function_tool({"parameters": {}, "x": 1, "strict": True, "name": "f", "defer_loading": None})
    assert msgspec.json.encode(tool) == (
        b'{"type":"function","function":{"name":"f","description":null,"parameters":{},"strict":true}}'
    )


def test_a_chat_prompt() -> None:
    """Every value as JSON bytes, variables moved."""
    prompt = chat_prompt({"messages": [{"role": "user"}], "reasoning_effort": "high"})
    assert decoded(prompt.fields) == {
        "messages": [{"role": "user"}],
        "chat_template_kwargs": {"reasoning_effort": "high", "enable_thinking": True},
    }


def test_ids_by_the_million_replace_the_messages() -> None:
    """They are counted by their commas."""
    assert replaced_prompt(msgspec.Raw(b"[" + b"7," * 1_000_000 + b"7]"), []) == TokenPrompts((1_000_001,))


def test_values_of_several_fields_are_bounded_together() -> None:
    """The field with which there are too many is named."""
    fields = fields_of({"a": [0] * 40_000, "b": [0] * 30_000, "c": [0] * 40_000})
    refuse_many_values_in(fields, ["a", "absent"])
    with pytest.raises(InvalidRequest, match="more than 65536") as caught:
        refuse_many_values_in(fields, ["c", "a"])
    assert caught.value.param == "a"


def test_a_long_number_in_what_a_template_may_look_at() -> None:
    """Whoever renders the template would read it."""
    fields = {"a": msgspec.Raw(b"[" + b"9" * 256 + b"]")}
    with pytest.raises(InvalidRequest, match="'a' has a number of more than 255 digits"):
        refuse_many_values_in(fields, ["a"])
