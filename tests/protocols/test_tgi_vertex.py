"""Google's route of TGI: several requests in one body."""

import json

import pytest

from kvguard.admission.footprint import Trait
from kvguard.admission.policy import Degradation, SequenceCut
from kvguard.admission.release import Release
from kvguard.errors import InvalidRequest
from kvguard.protocols.openai_completions import MAX_PROMPTS
from kvguard.protocols.prompts import ChatPrompt, PromptList, TextPrompts
from kvguard.protocols.request import InferenceRequest
from kvguard.protocols.rewrite import MAX_NAMED_CHANGES, rewrite
from kvguard.protocols.tgi_errors import TGI_ERRORS
from kvguard.protocols.tgi_vertex import PATH, ROUTE, parse

ALL = Degradation(output_cap=512, cut=SequenceCut.ALL)
OLD = Release(default_output_tokens=100)


def native(cap: int | None = None, **parameters: object) -> dict:
    return {"inputs": "x", "parameters": {**({} if cap is None else {"max_new_tokens": cap}), **parameters}}


def chat(cap: int | None = None) -> dict:
    return {"messages": [{"role": "user", "content": "x"}], **({} if cap is None else {"max_tokens": cap})}


def asked(*instances: object) -> InferenceRequest:
    return parse(json.dumps({"instances": instances}).encode())


def test_one_prompt_per_instance() -> None:
    """Each of its own kind; nothing streams."""
    request = asked(native(), chat())
    assert isinstance(request.prompt, PromptList)
    first, second = request.prompt.prompts
    assert first == TextPrompts(("x",))
    assert isinstance(second, ChatPrompt)
    assert (request.stream, request.copies, request.stream_format) == (False, 1, None)
    assert request.demand((3, 4), context_tokens=100, assumed_output_tokens=256).sequences == 2


@pytest.mark.parametrize(
    ("instances", "release", "wanted"),
    [
        ([native(5)], None, 5),
        ([native(5), chat(9), native(7)], None, 9),
        ([native(5), native()], None, None),
        ([native(5), native()], OLD, 100),
        ([native(500), native()], OLD, 500),
        ([chat(), chat()], OLD, 100),
    ],
)
def test_the_longest_answer_counts(instances: list[dict], release: Release | None, wanted: int | None) -> None:
    """The cap of them all is the largest, which is open where one is."""
    request = asked(*instances)
    assert request.wanted_tokens(release) == wanted
    tokens = (3,) * len(instances)
    demand = request.demand(tokens, context_tokens=None, assumed_output_tokens=256, release=release)
    assert demand.output_cap == wanted


def test_what_is_not_passed_on_there_counts_for_nothing() -> None:
    """Of the parameters only cap and seed have an effect."""
    request = asked(native(5, best_of=2, truncate=3, grammar={"type": "json"}))
    assert (request.copies, request.truncate_to, request.traits) == (1, None, frozenset())
    assert rewrite(request, ALL).body is request.body


def test_tools_of_a_chat_count() -> None:
    """They make the whole call one that is not to be shortened."""
    request = asked(native(5), {**chat(5), "tools": [{"type": "function"}]})
    assert (request.traits, request.runs_tools) == (frozenset({Trait.TOOLS}), True)


def test_every_instance_is_trimmed_by_itself() -> None:
    """What is short enough keeps its bytes, and so does all around the instances."""
    body = (
        b'{"z":1.50,"instances":[ {"inputs":"a","parameters":{"max_new_tokens":1000,"seed":1.0}},'
        b'{ "inputs":"b" , "parameters":{"max_new_tokens":512}},{"messages":[],"max_tokens":600}], "x":null}'
    )
    rewritten = rewrite(parse(body), ALL)
    assert rewritten.body == (
        b'{"z":1.50,"instances":[{"inputs":"a","parameters":{"max_new_tokens":512,"seed":1.0}},'
        b'{ "inputs":"b" , "parameters":{"max_new_tokens":512}},{"messages":[],"max_tokens":512}],"x":null}'
    )
    assert rewritten.changes == ("max_new_tokens=1000->512", "max_tokens=600->512")


def test_an_open_cap_is_not_raised() -> None:
    """What a release generates without one may be less than the others' new cap."""
    rewritten = rewrite(asked(native(1000), native()), ALL, release=OLD)
    assert [instance["parameters"] for instance in json.loads(rewritten.body)["instances"]] == [
        {"max_new_tokens": 512},
        {},
    ]


def test_changes_are_named_once_and_not_without_end() -> None:
    """A header holds them."""
    assert rewrite(asked(*[native(1000)] * 50), ALL).changes == ("max_new_tokens=1000->512",)
    many = rewrite(asked(*(native(1000 + each) for each in range(50))), ALL)
    assert len(many.changes) == MAX_NAMED_CHANGES


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "instances"),
        ({"instances": []}, "instances"),
        ({"instances": None}, "instances"),
        ({"instances": {"inputs": "x"}}, "instances"),
        ({"instances": [native(), 5]}, "instances"),
        ({"instances": [["x"]]}, "instances"),
        ({"instances": [native()] * (MAX_PROMPTS + 1)}, "instances"),
        ({"instances": [{}]}, "messages"),
        ({"instances": [native(0)]}, "max_new_tokens"),
        ({"instances": [{"inputs": 5}]}, "inputs"),
        ({"instances": [{"inputs": "x", "messages": []}]}, "messages"),
    ],
)
def test_what_is_refused(body: dict, param: str) -> None:
    """Whatever has no instance that can be read."""
    with pytest.raises(InvalidRequest) as caught:
        parse(json.dumps(body).encode())
    assert caught.value.param == param


def test_the_route() -> None:
    """Errors are TGI's."""
    assert (ROUTE.path, ROUTE.errors) == (PATH, TGI_ERRORS)
