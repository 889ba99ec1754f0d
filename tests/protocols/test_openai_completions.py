"""POST /v1/completions: every form of prompt."""

import json

import pytest

from kvguard.admission.blocks import BlockRule
from kvguard.errors import InvalidRequest
from kvguard.protocols.openai_completions import CAPS, MAX_PROMPTS, PATH, parse
from kvguard.protocols.request import Prompt, TextPrompts, TokenPrompts


def prompt_of(value: object) -> Prompt:
    return parse(json.dumps({"prompt": value}).encode()).prompt


@pytest.mark.parametrize(
    ("value", "prompt"),
    [
        ("hi", TextPrompts(("hi",))),
        ("", TextPrompts(("",))),
        ("h\u00e9\U0001f600", TextPrompts(("h\u00e9\U0001f600",))),
        (["hi"], TextPrompts(("hi",))),
        (["a", "", "b"], TextPrompts(("a", "", "b"))),
        ([7], TokenPrompts((1,))),
        ([1, 2, 3], TokenPrompts((3,))),
        ([[1, 2, 3]], TokenPrompts((3,))),
        ([[1, 2, 3], [4]], TokenPrompts((3, 1))),
        ([1] * (MAX_PROMPTS + 1), TokenPrompts((MAX_PROMPTS + 1,))),
        (["a"] * MAX_PROMPTS, TextPrompts(("a",) * MAX_PROMPTS)),
        ([[1]] * MAX_PROMPTS, TokenPrompts((1,) * MAX_PROMPTS)),
    ],
)
def test_forms_of_prompt(value: object, prompt: Prompt) -> None:
    """A string, strings, ids or lists of ids; of ids only the lengths are kept."""
    assert prompt_of(value) == prompt


@pytest.mark.parametrize("value", [None, [], {}, 5, True, 1.5])
def test_what_is_no_prompt(value: object) -> None:
    """Nothing, an empty list and other types are refused by name."""
    with pytest.raises(InvalidRequest, match="non-empty string or list") as caught:
        prompt_of(value)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("value", [["a", 1], [1, "a"], [[1], "a"], [[1], 1], [[1], []], [[]], [None], [{}], [1.5]])
def test_a_mix_of_prompts(value: object) -> None:
    """Different forms in one list, and prompts of no tokens, are refused by name."""
    with pytest.raises(InvalidRequest, match="strings only or lists of token ids only") as caught:
        prompt_of(value)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("one", ["a", [1]])
def test_too_many_prompts(one: object) -> None:
    """One more than vLLM takes is refused before anything is counted."""
    with pytest.raises(InvalidRequest, match="more than 1024 entries") as caught:
        prompt_of([one] * (MAX_PROMPTS + 1))
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("body", [b"{}", b'{"prompt":null}', b'{"messages":[]}'])
def test_a_prompt_there_must_be(body: bytes) -> None:
    """An absent prompt is no prompt."""
    with pytest.raises(InvalidRequest) as caught:
        parse(body)
    assert caught.value.param == "prompt"


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
