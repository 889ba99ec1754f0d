"""POST /inference/v1/generate: bytes in, request out."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvguard.admission.footprint import Trait
from kvguard.admission.policy import Degradation, SequenceCut
from kvguard.errors import InvalidRequest
from kvguard.protocols.generate import PATH, ROUTE, parse
from kvguard.protocols.media import MAX_PARTS, MediaKind, MediaPart
from kvguard.protocols.prompts import TokenPrompts
from kvguard.protocols.request import InferenceRequest
from kvguard.protocols.rewrite import rewrite
from kvguard.protocols.sse import StreamReader, Usage
from kvguard.protocols.usage_chunk import UsageChunkFilter
from tests.kit.properties import deterministic


def generate(params: object = None, **fields: object) -> InferenceRequest:
    body = {"token_ids": [1, 2, 3], "sampling_params": {} if params is None else params, **fields}
    return parse(json.dumps(body).encode())


def test_a_request() -> None:
    """Everything that says how to generate is inside `sampling_params`; the same names beside it mean nothing."""
    params = {"max_tokens": "50", "n": 2, "min_tokens": 5, "ignore_eos": 1, "stop": "x", "structured_outputs": {}}
    request = generate(params, model="m", max_tokens=7, n=9, truncate_prompt_tokens=1)
    assert request.prompt == TokenPrompts((3,))
    assert (request.model, request.requested_cap, request.copies, request.min_tokens) == ("m", 50, 2, 5)
    assert (request.fixed_length, request.stops, request.truncate_to) == (True, True, None)
    assert request.traits == {Trait.STRUCTURED_OUTPUT}
    assert ROUTE.path == PATH


@pytest.mark.parametrize(
    ("params", "cap"), [({}, 97), ({"max_tokens": None}, 97), ({"max_tokens": 40}, 40), ({"max_tokens": 400}, 97)]
)
def test_without_a_cap_it_is_the_rest_of_the_context(params: dict[str, object], cap: int) -> None:
    """As the engine has it for every generating route but completions."""
    demand = generate(params).demand((3,), context_tokens=100, assumed_output_tokens=512)
    assert demand.output_cap == cap


def test_there_are_no_beams() -> None:
    """The engine ignores the field here, so the copies are plain ones."""
    request = generate({"use_beam_search": True, "n": 4})
    assert (request.beams, request.copies) == (False, 4)
    assert rewrite(request, Degradation(cut=SequenceCut.BEAMS)).changes == ()
    assert rewrite(request, Degradation(cut=SequenceCut.ALL)).changes == ("n=4->1",)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"sampling_params": None}, "sampling_params"),
        ({"sampling_params": "x"}, "sampling_params"),
        ({"sampling_params": []}, "sampling_params"),
        ({"sampling_params": {"max_tokens": 0}}, "max_tokens"),
        ({"sampling_params": {"max_tokens": 5.5}}, "max_tokens"),
        ({"sampling_params": {"n": 0}}, "n"),
        ({"sampling_params": {"ignore_eos": "perhaps"}}, "ignore_eos"),
        ({"stream": "perhaps"}, "stream"),
        ({"stream": True, "stream_options": {"include_usage": 7}}, "include_usage"),
        ({"token_ids": []}, "token_ids"),
    ],
)
def test_what_is_refused(fields: dict[str, object], param: str) -> None:
    """What the engine could not read, by the name of the field."""
    with pytest.raises(InvalidRequest) as caught:
        generate(**fields)
    assert caught.value.param == param
    with pytest.raises(InvalidRequest):
        parse(b'{"token_ids":[1]}')


def test_many_allowed_ids_are_no_reason_to_refuse() -> None:
    """A whole vocabulary may be listed in a parameter that is passed on unread."""
    assert generate({"allowed_token_ids": list(range(150_000)), "max_tokens": 5}).requested_cap == 5


def test_media_come_on_top_of_the_ids() -> None:
    """Parts are allowed for by their kind; unknown ones are what the engine passes over."""
    parts = [{"type": "image_url", "url": "http://x"}, {"type": "audio_url", "url": "http://x"}, {"type": "smell"}]
    media = (MediaPart(kind=MediaKind.IMAGE), MediaPart(kind=MediaKind.AUDIO))
    assert generate(content_parts=parts).prompt == TokenPrompts((3,), media)
    assert generate(content_parts=None).prompt == TokenPrompts((3,))
    with pytest.raises(InvalidRequest) as caught:
        generate(content_parts=[parts[0]] * (MAX_PARTS + 1))
    assert caught.value.param == "content_parts"
    with pytest.raises(InvalidRequest) as caught:
        generate(content_parts=[[]] * 70_000)
    assert caught.value.param == "content_parts"


def test_a_rewritten_request_is_changed_inside_only() -> None:
    """The cap and the copies change where they stand, the usage is asked for beside them, the rest keeps its bytes."""
    body = (
        b'{"token_ids": [ 1,2 ],"sampling_params":{"temperature":1.0, "max_tokens":1e3,"n":4,"extra":[ 1 ]},'
        b'"stream":true,"max_tokens":5}'
    )
    rewritten = rewrite(parse(body), Degradation(output_cap=64, cut=SequenceCut.ALL), ask_usage=True)
    assert rewritten.changes == ("max_tokens=1000->64", "n=4->1")
    assert rewritten.body == (
        b'{"token_ids":[ 1,2 ],"sampling_params":{"temperature":1.0,"max_tokens":64,"n":1,"extra":[ 1 ]},'
        b'"stream":true,"max_tokens":5,"stream_options":{"include_usage":true}}'
    )
    added = rewrite(parse(b'{"token_ids":[1],"sampling_params":{"n":1}}'), Degradation(output_cap=64))
    assert added.body == b'{"token_ids":[1],"sampling_params":{"n":1,"max_tokens":64}}'
    assert added.changes == ("max_tokens=unset->64",)


@deterministic
@given(st.integers(1, 2000), st.integers(1, 8), st.integers(1, 2000))
def test_a_rewritten_request_asks_for_less(cap: int, copies: int, lowered: int) -> None:
    """Read again it has at most the cap it was given and no more sequences than before."""
    request = generate({"max_tokens": cap, "n": copies})
    again = parse(rewrite(request, Degradation(output_cap=lowered, cut=SequenceCut.ALL)).body)
    assert (again.requested_cap, again.copies) == (min(cap, lowered), 1)
    assert again.prompt == request.prompt


@pytest.mark.parametrize(
    ("fields", "hides"),
    [
        ({}, False),
        ({"stream": None}, False),
        ({"stream": True}, True),
        ({"stream": True, "stream_options": {"include_usage": True}}, False),
        ({"stream": True, "stream_options": {"include_usage": False}}, True),
    ],
)
def test_which_streams_hide_their_usage(fields: dict[str, object], hides: bool) -> None:
    """Those that do not ask for it, as with completions."""
    assert generate(**fields).hides_usage is hides


CHUNKS = [
    b'data: {"request_id":"g","usage":null,"output_mode":"tokens","choices":[{"index":0,"finish_reason":null,'
    b'"stop_reason":null,"token_ids":[7],"routed_experts":null,"sampling_mask":null,"weight_versions":null,'
    b'"logprobs":null}]}\n\n',
    b'data: {"request_id":"g","usage":null,"output_mode":"tokens","choices":[{"index":0,"finish_reason":"length",'
    b'"stop_reason":null,"token_ids":[8],"routed_experts":null,"sampling_mask":null,"weight_versions":null,'
    b'"logprobs":null}]}\n\n',
]
USAGE = (
    b'data: {"request_id":"g","usage":{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2},'
    b'"output_mode":"tokens","choices":[]}\n\n'
)
DONE = b"data: [DONE]\n\n"


def test_its_streams_are_read_like_those_of_completions() -> None:
    """A chunk for each token, the usage before the end, and what was asked for on top is taken out again."""
    reader, held_back = StreamReader(ROUTE.stream), UsageChunkFilter()
    passed = b""
    for event in (*CHUNKS, USAGE, DONE):
        reader.feed(event)
        passed += held_back.feed(event)
    assert reader.complete
    assert not reader.failed
    assert reader.usage() == Usage(prompt_tokens=3, completion_tokens=2)
    assert passed + held_back.rest() == b"".join([*CHUNKS, DONE])
    failed = StreamReader(ROUTE.stream)
    failed.feed(CHUNKS[0] + b'data: {"error":{"message":"x"}}\n\n' + DONE)
    assert failed.failed
