"""The prompts of pooling models in every shape the engine takes."""

import contextlib
import json
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given

from kvguard.errors import InvalidRequest
from kvguard.protocols.fields import Fields
from kvguard.protocols.pooling_prompt import (
    MAX_INPUTS,
    cohere_prompt_of,
    embedding_prompt_of,
    input_prompt_of,
    rerank_prompt_of,
    score_prompt_of,
)
from kvguard.protocols.prompts import ChatPrompt, PairedPrompts, Prompt, PromptList, TextPrompts, TokenPrompts
from tests.kit.properties import deterministic
from tests.protocols.any_json import fields_of, objects

USER = {"role": "user", "content": "hi"}
OFF = msgspec.Raw(b"false")
PICTURE = {"type": "image_url", "image_url": {"url": "http://x"}}


def texts(*values: str) -> PromptList:
    return PromptList((TextPrompts(values),))


def chat(*messages: object) -> ChatPrompt:
    """A conversation as `/tokenize` is asked about it."""
    text = json.dumps(list(messages), separators=(",", ":")).encode()
    return ChatPrompt({"messages": msgspec.Raw(text), "add_generation_prompt": OFF})


INPUTS = [
    ("x", TextPrompts(("x",))),
    ("", TextPrompts(("",))),
    (["a", "b"], TextPrompts(("a", "b"))),
    (["1", "2"], TextPrompts(("1", "2"))),
    ([1, 2, 3], TokenPrompts((3,))),
    ([1, "2", 3.0, True], TokenPrompts((4,))),
    ([[1, 2], [3]], TokenPrompts((2, 1))),
    ([[1], ["2", 3]], TokenPrompts((1, 2))),
    (["a"] * MAX_INPUTS, TextPrompts(("a",) * MAX_INPUTS)),
    ([[1]] * MAX_INPUTS, TokenPrompts((1,) * MAX_INPUTS)),
]


@pytest.mark.parametrize("prompt_of", [input_prompt_of, embedding_prompt_of])
@pytest.mark.parametrize(("value", "prompt"), INPUTS)
def test_text_and_ids(prompt_of: Callable[[Fields], Prompt], value: object, prompt: Prompt) -> None:
    """`input` is one or many of either, as for completions; an empty string is a prompt."""
    assert prompt_of(fields_of({"input": value})) == prompt


@pytest.mark.parametrize("prompt_of", [input_prompt_of, embedding_prompt_of])
@pytest.mark.parametrize(
    "value", [None, 5, {}, [], [[]], ["a", [1]], [1.5], [-1], [["a"]], ["a"] * (MAX_INPUTS + 1), [[1]] * 3000, [None]]
)
def test_what_is_no_input(prompt_of: Callable[[Fields], Prompt], value: object) -> None:
    """Anything else is refused by name."""
    with pytest.raises(InvalidRequest) as caught:
        prompt_of(fields_of({"input": value}))
    assert caught.value.param == "input"


@pytest.mark.parametrize("prompt_of", [input_prompt_of, embedding_prompt_of])
def test_one_conversation(prompt_of: Callable[[Fields], Prompt]) -> None:
    """It has what the template may look at, and no generation prompt unless it asks for one."""
    fields = msgspec.json.decode(
        b'{"messages":[{"role":"user"}],"add_special_tokens":1,"tools":[1],"chat_template_kwargs":{"a": 1}}',
        type=Fields,
    )
    kept = {name: fields[name] for name in ("messages", "add_special_tokens", "chat_template_kwargs")}
    assert prompt_of(fields) == ChatPrompt({**kept, "add_generation_prompt": OFF})
    asked = prompt_of({**fields, "add_generation_prompt": msgspec.Raw(b"true")})
    assert isinstance(asked, ChatPrompt)
    assert bytes(asked.fields["add_generation_prompt"]) == b"true"
    assert prompt_of({"input": msgspec.Raw(b"null"), "messages": msgspec.Raw(b"[]")}) == chat()


@pytest.mark.parametrize("name", ["messages", "input"])
def test_conversations_to_embed(name: str) -> None:
    """One or several of them, in either field."""
    one, several = b'[ {"role": "user"}]', b'[\n[{"role": "user"}], [1]]'
    alone = embedding_prompt_of({name: msgspec.Raw(one)})
    assert alone == ChatPrompt({"messages": msgspec.Raw(one), "add_generation_prompt": OFF})
    both = embedding_prompt_of({name: msgspec.Raw(several)})
    assert isinstance(both, PromptList)
    assert [bytes(p.fields["messages"]) for p in both.prompts if isinstance(p, ChatPrompt)] == [
        b'[{"role": "user"}]',
        b"[1]",
    ]


@pytest.mark.parametrize(
    ("prompt_of", "body", "param"),
    [
        (input_prompt_of, {"input": "x", "messages": [USER]}, "input"),
        (embedding_prompt_of, {"input": "x", "messages": [USER]}, "input"),
        (input_prompt_of, {"messages": "x"}, "messages"),
        (embedding_prompt_of, {"messages": {}}, "messages"),
        (embedding_prompt_of, {"messages": [[USER], []]}, "messages"),
        (embedding_prompt_of, {"input": [[USER], "x"]}, "input"),
        (embedding_prompt_of, {"input": [[USER]] * (MAX_INPUTS + 1)}, "input"),
        (input_prompt_of, {"input": [USER]}, "input"),
        (input_prompt_of, {"data": None, "input": "x"}, "data"),
        (input_prompt_of, {"data": {"x": 1}}, "data"),
        (input_prompt_of, {"messages": [[]] * 70_000}, "messages"),
    ],
)
def test_what_may_be_something_else(prompt_of: Callable[[Fields], Prompt], body: dict[str, object], param: str) -> None:
    """Text beside a conversation, data for a plugin, half a list of conversations: by the name of the field."""
    with pytest.raises(InvalidRequest) as caught:
        prompt_of(fields_of(body))
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("body", "prompt"),
    [
        ({"texts": ["a", ""]}, TextPrompts(("a", ""))),
        ({"texts": ["a"], "images": None}, TextPrompts(("a",))),
        ({"images": ["http://x"]}, PromptList((chat({"role": "user", "content": [PICTURE]}),))),
    ],
)
def test_what_cohere_embeds(body: dict[str, object], prompt: Prompt) -> None:
    """Texts are prompts, each picture a conversation of one."""
    assert cohere_prompt_of(fields_of(body)) == prompt


def test_mixed_inputs_of_cohere_keep_their_parts() -> None:
    """Each is a conversation of its content, byte for byte."""
    prompt = cohere_prompt_of({"inputs": msgspec.Raw(b'[{"content":[ {"type": "text"} ]},{"content":[]}]')})
    assert isinstance(prompt, PromptList)
    assert [bytes(p.fields["messages"]) for p in prompt.prompts if isinstance(p, ChatPrompt)] == [
        b'[{"role":"user","content":[ {"type": "text"} ]}]',
        b'[{"role":"user","content":[]}]',
    ]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "texts"),
        ({"texts": ["a"], "images": ["b"]}, "texts"),
        ({"texts": "a"}, "texts"),
        ({"texts": []}, "texts"),
        ({"texts": ["a", 1]}, "texts"),
        ({"texts": ["a"] * (MAX_INPUTS + 1)}, "texts"),
        ({"images": ["a", None]}, "images"),
        ({"inputs": ["a"]}, "inputs"),
        ({"inputs": [{"content": "a"}]}, "inputs"),
        ({"inputs": [[]] * 70_000}, "inputs"),
    ],
)
def test_what_cohere_does_not_embed(body: dict[str, object], param: str) -> None:
    """None or two of the three fields, and entries of another kind."""
    with pytest.raises(InvalidRequest) as caught:
        cohere_prompt_of(fields_of(body))
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("first", "second"), [("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2")]
)
@pytest.mark.parametrize(
    ("one", "two", "pairs"),
    [
        ("q", "d", (("q",), ("d",))),
        ("q", ["d", "e"], (("q",), ("d", "e"))),
        (["q"], ["d", "e"], (("q",), ("d", "e"))),
        (["q", "r"], ["d", "e"], (("q", "r"), ("d", "e"))),
        ("q", ["d"] * MAX_INPUTS, (("q",), ("d",) * MAX_INPUTS)),
    ],
)
def test_pairs(first: str, second: str, one: object, two: object, pairs: tuple[tuple[str, ...], ...]) -> None:
    """One with each or each with its own, whatever the two are called."""
    queries, documents = pairs
    assert score_prompt_of(fields_of({first: one, second: two})) == PairedPrompts(texts(*queries), texts(*documents))


def test_pairs_of_parts() -> None:
    """An object is a message of its content, among strings too."""
    prompt = rerank_prompt_of(fields_of({"query": "q", "documents": ["d", {"content": [PICTURE]}]}))
    spoken = chat({"role": "user", "content": [PICTURE]})
    assert prompt.queries == texts("q")
    first, second = prompt.documents.prompts
    assert first == TextPrompts(("d",))
    assert isinstance(second, ChatPrompt)
    assert json.loads(bytes(second.fields["messages"])) == json.loads(bytes(spoken.fields["messages"]))


def test_instructions_are_part_of_each_query() -> None:
    """A score template may print both of them; they stand before a text and in a message before parts."""
    body = {"instruction": "be brief", "chat_template_kwargs": {"a": 1}, "documents": "d"}
    before = '"be brief"\n{"a": 1}\n'
    assert rerank_prompt_of(fields_of({**body, "query": "q"})).queries == texts(f"{before}q")
    [spoken] = rerank_prompt_of(fields_of({**body, "query": {"content": []}})).queries.prompts
    assert isinstance(spoken, ChatPrompt)
    assert json.loads(bytes(spoken.fields["messages"])) == [
        {"role": "system", "content": before},
        {"role": "user", "content": []},
    ]
    with pytest.raises(InvalidRequest, match="too large"):
        score_prompt_of(fields_of({"queries": ["q"] * 9, "documents": ["d"] * 9, "instruction": "x" * 3_000_000}))


@pytest.mark.parametrize(
    ("prompt_of", "body", "param"),
    [
        (score_prompt_of, {}, "queries"),
        (score_prompt_of, {"queries": "q"}, "queries"),
        (score_prompt_of, {"queries": "q", "documents": "d", "items": "i"}, "queries"),
        (score_prompt_of, {"queries": "q", "documents": "d", "text_1": "a", "text_2": "b"}, "queries"),
        (score_prompt_of, {"queries": ["q", "r"], "documents": ["d"]}, "queries"),
        (score_prompt_of, {"queries": [], "documents": ["d"]}, "queries"),
        (score_prompt_of, {"queries": "q", "documents": []}, "documents"),
        (score_prompt_of, {"queries": "q", "documents": [1]}, "documents"),
        (score_prompt_of, {"text_1": 5, "text_2": "d"}, "text_1"),
        (score_prompt_of, {"queries": "q", "documents": ["d"] * (MAX_INPUTS + 1)}, "documents"),
        (score_prompt_of, {"queries": "q", "documents": {"text": "d"}}, "documents"),
        (rerank_prompt_of, {"documents": ["d"]}, "query"),
        (rerank_prompt_of, {"query": ["q"], "documents": ["d"]}, "query"),
        (rerank_prompt_of, {"query": "q"}, "documents"),
        (rerank_prompt_of, {"query": "q", "documents": [[]] * 70_000}, "documents"),
    ],
)
def test_what_is_no_pair(prompt_of: Callable[[Fields], Prompt], body: dict[str, object], param: str) -> None:
    """Names of two pairs, lengths that do not match, and entries of another kind."""
    with pytest.raises(InvalidRequest) as caught:
        prompt_of(fields_of(body))
    assert caught.value.param == param


@pytest.mark.parametrize("value", [None, 5, True])
def test_what_is_missing_in_a_pair_is_said_as_it_is(value: object) -> None:
    """A field that is not there is no object without content, and the names that may be used are listed."""
    with pytest.raises(InvalidRequest, match="'query' must be a string or an object with 'content'"):
        rerank_prompt_of(fields_of({"query": value, "documents": ["d"]}))
    with pytest.raises(InvalidRequest, match="'documents' must be a string, an object with 'content' or a list of"):
        rerank_prompt_of(fields_of({"query": "q", "documents": value}))
    with pytest.raises(InvalidRequest, match=r"'queries' and 'documents'; 'queries' and 'items'; .* 'text_2'"):
        score_prompt_of(fields_of({"queries": value}))


@deterministic
@given(
    objects(
        *("input", "messages", "data", "texts", "images", "inputs", "queries", "documents", "query", "text_1"),
        *("text_2", "instruction", "chat_template_kwargs", "chat_template"),
    )
)
def test_any_json(fields: Fields) -> None:
    """Whatever the fields hold is a prompt or an invalid request."""
    for prompt_of in (input_prompt_of, embedding_prompt_of, cohere_prompt_of, score_prompt_of, rerank_prompt_of):
        with contextlib.suppress(InvalidRequest):
            prompt_of(fields)
