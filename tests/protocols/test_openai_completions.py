"""POST /v1/completions: every form of prompt."""

import contextlib
import json
import re

import pytest
from hypothesis import given

from kvguard.admission.blocks import BlockRule
from kvguard.errors import InvalidRequest
from kvguard.protocols import openai_completions
from kvguard.protocols.fields import Fields
from kvguard.protocols.openai_completions import CAPS, MAX_ID_CHARACTERS, MAX_PROMPTS, PATH, ids_of, parse, prompt_of
from kvguard.protocols.prompts import Prompt, TextPrompts, TokenPrompts
from tests.kit.properties import deterministic
from tests.protocols.any_json import objects


def prompt(value: object) -> Prompt:
    return parse(json.dumps({"prompt": value}).encode()).prompt


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("hi", TextPrompts(("hi",))),
        ("h\u00e9\U0001f600", TextPrompts(("h\u00e9\U0001f600",))),
        (["hi"], TextPrompts(("hi",))),
        (["a", "", "b"], TextPrompts(("a", "", "b"))),
        ([7], TokenPrompts((1,))),
        ([True, 2.0, "5", " +1_0.0 "], TokenPrompts((4,))),
        (["5", 5], TokenPrompts((2,))),
        (["5"], TextPrompts(("5",))),
        ([""], TextPrompts(("",))),
        ([["5", True, 0.0]], TokenPrompts((3,))),
        ([1, 2, 3], TokenPrompts((3,))),
        ([[1, 2, 3]], TokenPrompts((3,))),
        ([[1, 2, 3], [4]], TokenPrompts((3, 1))),
        ([1] * (MAX_PROMPTS + 1), TokenPrompts((MAX_PROMPTS + 1,))),
        (["a"] * MAX_PROMPTS, TextPrompts(("a",) * MAX_PROMPTS)),
        ([[1]] * MAX_PROMPTS, TokenPrompts((1,) * MAX_PROMPTS)),
    ],
)
def test_forms_of_prompt(value: object, expected: Prompt) -> None:
    """A string, strings, ids or lists of ids; of ids only the lengths are kept."""
    assert prompt(value) == expected


@pytest.mark.parametrize("value", [None, "", [], [[]], [[1], []], {}, 5, True, 1.5])
def test_what_is_no_prompt(value: object) -> None:
    """Nothing, an empty list and other types are refused by name."""
    with pytest.raises(InvalidRequest, match="non-empty string or list") as caught:
        prompt(value)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    "value",
    [
        *(["a", 1], [1, "a"], [[1], "a"], [[1], 1], ["a", [1]], [1, [1]], [None], [{}], [1.5], [-1], [[-1]], [[None]]),
        *([1, ""], ["-1", 1], [[[1]]], [1, 1.5], [1, None]),
    ],
)
def test_a_mix_of_prompts(value: object) -> None:
    """Different forms in one list, and what is no token id, are refused by name."""
    with pytest.raises(InvalidRequest, match="strings only or lists of token ids only") as caught:
        prompt(value)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("one", ["a", [1]])
def test_too_many_prompts(one: object) -> None:
    """One more than vLLM takes is refused before anything is counted."""
    with pytest.raises(InvalidRequest, match="more than 1024 entries") as caught:
        prompt([one] * (MAX_PROMPTS + 1))
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("body", [b"{}", b'{"prompt":null}', b'{"messages":[]}'])
def test_a_prompt_there_must_be(body: bytes) -> None:
    """An absent prompt is no prompt."""
    with pytest.raises(InvalidRequest) as caught:
        parse(body)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        (b'"prompt":"a","suffix":null', TextPrompts(("a",))),
        (b'"prompt":"a","suffix":"b"', TextPrompts(("a <suffix> <prefix> b",))),
        (b'"prompt":["a","c"],"suffix":""', TextPrompts(("a <suffix> <prefix> ", "c <suffix> <prefix> "))),
        (b'"prompt":"a","echo":true', TextPrompts(("a",))),
        (b'"prompt":"a","prompt_embeds":null', TextPrompts(("a",))),
        (b'"prompt":"a","prompt_embeds":[ ]', TextPrompts(("a",))),
        (b'"prompt":"a","kv_transfer_params":{"prompt_token_ids":[1,2]}', TextPrompts(("a",))),
    ],
)
def test_what_else_makes_a_prompt(fields: bytes, prompt: Prompt) -> None:
    """A suffix comes on top, with something in the place of the tokens between; an echo and ids change nothing."""
    assert parse(b"{%s}" % fields).prompt == prompt


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (b'"prompt":[1],"suffix":"b"', "suffix"),
        (b'"prompt":"a","suffix":5', "suffix"),
        (b'"prompt":"a","suffix":"b","echo":true', "suffix"),
        (b'"prompt":"a","suffix":"b","truncate_prompt_tokens":5', "suffix"),
        (b'"prompt":"a","prompt_embeds":"AAAA"', "prompt_embeds"),
        (b'"prompt":"a","prompt_embeds":""', "prompt_embeds"),
        (b'"prompt_embeds":["AAAA"]', "prompt_embeds"),
    ],
)
def test_what_the_engine_refuses(fields: bytes, param: str) -> None:
    """Suffixes where there is no text to join, and tensors, which need a flag and cannot be counted."""
    with pytest.raises(InvalidRequest) as caught:
        parse(b"{%s}" % fields)
    assert caught.value.param == param


@deterministic
@given(objects("prompt", "suffix", "prompt_embeds", "echo"))
def test_any_json(fields: Fields) -> None:
    """Whatever the fields hold is a prompt or an invalid request."""
    with contextlib.suppress(InvalidRequest):
        prompt_of(fields)


@pytest.mark.parametrize(
    ("fields", "cap"),
    [
        (b"", None),
        (b',"max_tokens":null', None),
        (b',"max_tokens":7', 7),
        (b',"max_completion_tokens":7', None),
        (b',"max_tokens":0,"echo":true', 1),
    ],
)
def test_the_cap(fields: bytes, cap: int | None) -> None:
    """Only `max_tokens` counts here; an echo of no tokens still runs one."""
    assert parse(b'{"prompt":"hi"%s}' % fields).requested_cap == cap


def test_the_engines_own_default() -> None:
    """Without a cap vLLM generates sixteen tokens."""
    request = parse(b'{"prompt":"hi"}')
    demand = request.demand((100,), context_tokens=2048, assumed_output_tokens=256)
    assert (request.caps, demand.output_cap, demand.expected_output) == (CAPS, 16, 16)
    assert demand.reserved_blocks(BlockRule.plain(16)) == 8


def test_the_path() -> None:
    """The route is OpenAI's own."""
    assert PATH == "/v1/completions"


@pytest.mark.parametrize(
    ("prompt", "lengths"),
    [
        (b"[1]", (1,)),
        (b" [1 , 2,\n3] ", (3,)),
        (b"[[1,2],[3]]", (2, 1)),
        (b" [ [1, 2] , [3] ,[4,5,6] ] ", (2, 1, 3)),
        (b"[1.0, 2]", (2,)),
        (b'[[1.0], ["2", 3]]', (1, 2)),
    ],
)
def test_ids_are_counted_however_they_are_written(prompt: bytes, lengths: tuple[int, ...]) -> None:
    """Plain numbers by their commas, anything else one by one, with the same result."""
    assert parse(b'{"prompt":' + prompt + b"}").prompt == TokenPrompts(lengths)


@pytest.mark.parametrize(
    "prompt", [b"[[1],2]", b"[1,[2]]", b"[[]]", b"[[1],[]]", b"[[1][2]]", b"[[[1]]]", b"[[1],[2]3]"]
)
def test_lists_that_only_look_like_ids_are_refused(prompt: bytes) -> None:
    """What stands between the brackets matters."""
    with pytest.raises(InvalidRequest):
        parse(b'{"prompt":' + prompt + b"}")


def test_numbers_by_the_million_are_counted_or_refused_without_being_built() -> None:
    """Plain ids of any number are counted; as many odd ones are refused by name."""
    assert parse(b'{"prompt":[' + b"1," * 200_000 + b"1]}").prompt == TokenPrompts((200_001,))
    with pytest.raises(InvalidRequest, match="more than 65536 lists, objects and entries"):
        parse(b'{"prompt":[' + b"1.0," * 200_000 + b"1]}")
    assert parse(b'{"prompt":["' + b"a," * 200_000 + b'"]}').prompt == TextPrompts(("a," * 200_000,))


@pytest.mark.parametrize("entry", [b'"a"', b"[]", b"[[1]]"])
def test_long_lists_of_prompts_are_refused_without_being_split(entry: bytes) -> None:
    """Several million short prompts fit a body."""
    with pytest.raises(InvalidRequest, match="more than 65536"):
        parse(b'{"prompt":[' + (entry + b",") * 100_000 + entry + b"]}")


class CountingPattern:
    """A pattern that notes how many characters it was given."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self.pattern, self.characters = pattern, 0

    def fullmatch(self, text: str) -> re.Match[str] | None:
        self.characters += len(text)
        return self.pattern.fullmatch(text)


@pytest.mark.parametrize("one", ["5", " ", "5_", "5.0"])
def test_an_id_is_no_long_text(monkeypatch: pytest.MonkeyPatch, one: str) -> None:
    """Up to a length it is looked at, above it is refused unread, alone or in a list of lists."""
    pattern = CountingPattern(openai_completions._ID)
    monkeypatch.setattr(openai_completions, "_ID", pattern)
    longest = "5".rjust(MAX_ID_CHARACTERS, " ")
    assert ids_of([longest, 1], "x") == TokenPrompts((2,))
    for value in ([1, one * 200_000], [[1, one * 200_000]], [1, f"{longest} "], [1, one * 200_000 + "x"]):
        with pytest.raises(InvalidRequest, match="strings only or lists of token ids only"):
            prompt(value)
    assert pattern.characters == MAX_ID_CHARACTERS


def test_a_suffix_for_many_prompts() -> None:
    """It is written behind each of them, so both together are bounded; one prompt may have any."""
    suffix = b"x" * 20_000
    parse(b'{"prompt":["a"],"suffix":"%s"}' % (suffix * 1_000))
    parse(b'{"prompt":["a"%s],"suffix":"%s"}' % (b',"a"' * 838, suffix))
    with pytest.raises(InvalidRequest, match="too long for so many prompts") as caught:
        parse(b'{"prompt":["a"%s],"suffix":"%s"}' % (b',"a"' * 839, suffix))
    assert caught.value.param == "suffix"


@pytest.mark.parametrize(("value", "on"), [("null", False), ("false", False), ("true", True), ('"no"', False)])
def test_special_tokens_may_be_switched_off(value: str, on: bool) -> None:
    """They are on unless the request says otherwise, and what is no truth value is refused by name."""
    assert parse(f'{{"prompt":"a","add_special_tokens":{value}}}'.encode()).special_tokens is on
    assert parse(b'{"prompt":"a"}').special_tokens
    with pytest.raises(InvalidRequest, match="add_special_tokens"):
        parse(b'{"prompt":"a","add_special_tokens":[]}')


def test_stop_sequences_are_noticed() -> None:
    """Their answers end sooner, so they are known apart."""
    assert parse(b'{"prompt":"hi","stop":["###"]}').stops
    assert not parse(b'{"prompt":"hi"}').stops


@pytest.mark.parametrize("name", ["echo", "stream", "ignore_eos", "use_beam_search", "add_special_tokens"])
@pytest.mark.parametrize("value", ["3", "[]", '"maybe"'])
def test_what_is_no_truth_value_is_refused_by_name(name: str, value: str) -> None:
    """Every flag is read, whether it matters or not; one this route does not have is none."""
    with pytest.raises(InvalidRequest, match=f"'{name}' must be true or false") as caught:
        parse(f'{{"prompt":"a","{name}":{value}}}'.encode())
    assert caught.value.param == name
    parse(f'{{"prompt":"a","{name}":"yes","continue_final_message":{value}}}'.encode())
