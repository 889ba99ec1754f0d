"""TGI's native requests: how they are read, and how their streams end."""

import json

import pytest

from kvguard.admission.footprint import Trait
from kvguard.admission.policy import Degradation, SequenceCut
from kvguard.admission.release import Release
from kvguard.errors import InvalidRequest
from kvguard.protocols.prompts import TextPrompts
from kvguard.protocols.request import MAX_COPIES, Copies, InferenceRequest
from kvguard.protocols.rewrite import rewrite
from kvguard.protocols.sse import TAIL_BYTES
from kvguard.protocols.tgi_errors import TGI_ERRORS
from kvguard.protocols.tgi_generate import ROUTES, STREAM, parse, parse_either, parse_stream
from kvguard.protocols.tgi_usage import answer_usage
from tests.kit.recordings import recorded
from tests.protocols.streams import cut_everywhere, read

TRIM = Degradation(output_cap=512)


def asked(**parameters: object) -> InferenceRequest:
    return parse(json.dumps({"inputs": "x", "parameters": parameters}).encode())


# Reading


def test_a_request_that_sets_nothing() -> None:
    """One sequence of the rest of the context, unless the release has a default."""
    request = parse(b'{"inputs":"x"}')
    assert (request.prompt, request.copies, request.copied_by) == (TextPrompts(("x",)), 1, Copies.BEST_OF)
    assert (request.requested_cap, request.wanted_tokens(None)) == (None, None)
    assert request.wanted_tokens(Release(default_output_tokens=20)) == 20
    assert (request.beams, request.stops, request.truncate_to, request.traits) == (False, False, None, frozenset())
    assert (request.stream, request.hides_usage, request.model) == (False, False, None)


def test_which_requests_stream() -> None:
    """The route says so, and only at / the body."""
    asks, asks_not = b'{"inputs":"x","stream":true}', b'{"inputs":"x","stream":false}'
    assert (parse(asks).stream, parse(asks_not).stream) == (False, False)
    assert (parse_stream(asks).stream, parse_stream(asks_not).stream) == (True, True)
    assert (parse_either(asks).stream, parse_either(asks_not).stream) == (True, False)
    assert not parse_either(b'{"inputs":"x"}').stream
    with pytest.raises(InvalidRequest):
        parse_either(b'{"inputs":"x","stream":1}')


def test_parameters() -> None:
    """All that matters to the cache."""
    request = asked(max_new_tokens=50, best_of=2, truncate=30, stop=["a"], grammar={"type": "json", "value": {}})
    assert (request.requested_cap, request.copies, request.beams, request.truncate_to) == (50, 2, True, 30)
    assert (request.stops, request.traits) == (True, frozenset({Trait.STRUCTURED_OUTPUT}))
    demand = request.demand((40,), context_tokens=100, assumed_output_tokens=256)
    assert (demand.prompts, demand.output_cap, demand.copies) == ((30,), 50, 2)


@pytest.mark.parametrize(
    "parameters", [None, {}, {"max_new_tokens": None, "best_of": None, "truncate": None, "grammar": None, "stop": []}]
)
def test_parameters_that_say_nothing(parameters: object) -> None:
    """Null and nothing are the same."""
    request = parse(json.dumps({"inputs": "x", "parameters": parameters}).encode())
    assert (request.requested_cap, request.copies, request.truncate_to) == (None, 1, None)
    assert (request.traits, request.stops) == (frozenset(), False)


def test_what_tgi_does_not_look_at_is_not_looked_at_here() -> None:
    """Beams, `n`, least lengths: no value of them is refused or counted, and none is touched."""
    request = asked(num_beams=4, n=3, num_return_sequences=2, early_stopping=True, min_tokens="x", max_tokens=9)
    assert (request.copies, request.requested_cap, request.min_tokens) == (1, None, 0)
    assert rewrite(request, Degradation(cut=SequenceCut.ALL)).body is request.body


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"inputs": 5}, "inputs"),
        ({}, "inputs"),
        ({"inputs": "x", "parameters": 5}, "parameters"),
        # TGI would take the entries for its parameters in their order.
        ({"inputs": "x", "parameters": [None, None]}, "parameters"),
        ({"inputs": "x", "parameters": {"max_new_tokens": 0}}, "max_new_tokens"),
        ({"inputs": "x", "parameters": {"max_new_tokens": "5"}}, "max_new_tokens"),
        ({"inputs": "x", "parameters": {"max_new_tokens": 5.0}}, "max_new_tokens"),
        ({"inputs": "x", "parameters": {"max_new_tokens": True}}, "max_new_tokens"),
        ({"inputs": "x", "parameters": {"truncate": 0}}, "truncate"),
        ({"inputs": "x", "parameters": {"truncate": "x"}}, "truncate"),
        ({"inputs": "x", "parameters": {"best_of": 0}}, "best_of"),
        ({"inputs": "x", "parameters": {"best_of": MAX_COPIES + 1}}, "best_of"),
    ],
)
def test_what_is_refused(body: object, param: str) -> None:
    """A value the engine answers with 422 is refused by the name of its field."""
    with pytest.raises(InvalidRequest) as caught:
        parse(json.dumps(body).encode())
    assert caught.value.param == param


# Writing


@pytest.mark.parametrize(
    ("body", "written", "changes"),
    [
        # Without parameters TGI samples, with some it does not.
        (
            b'{"inputs":"x"}',
            b'{"inputs":"x","parameters":{"max_new_tokens":512,"do_sample":true}}',
            ("max_new_tokens=unset->512",),
        ),
        (
            b'{"inputs":"x","parameters":null}',
            b'{"inputs":"x","parameters":{"max_new_tokens":512,"do_sample":true}}',
            ("max_new_tokens=unset->512",),
        ),
        (
            b'{"inputs":"x","parameters":{}}',
            b'{"inputs":"x","parameters":{"max_new_tokens":512}}',
            ("max_new_tokens=unset->512",),
        ),
        (
            b'{"inputs":"x","parameters":{"max_new_tokens":1024,"num_beams":4,"seed":1.50}, "stream":true}',
            b'{"inputs":"x","parameters":{"max_new_tokens":512,"num_beams":4,"seed":1.50},"stream":true}',
            ("max_new_tokens=1024->512",),
        ),
        (
            b'{"inputs":"x","parameters":{"best_of":2,"do_sample":true,"max_new_tokens":512}}',
            b'{"inputs":"x","parameters":{"do_sample":true,"max_new_tokens":512}}',
            ("best_of=2->unset",),
        ),
    ],
)
def test_rewriting(body: bytes, written: bytes, changes: tuple[str, ...]) -> None:
    """What is lowered is lowered where it was said, sampling stays what it was, and one answer needs no `best_of`."""
    rewritten = rewrite(parse_either(body), Degradation(output_cap=512, cut=SequenceCut.BEAMS), ask_usage=True)
    assert (rewritten.body, rewritten.changes, rewritten.asks_usage) == (written, changes, False)


@pytest.mark.parametrize(("default", "changes"), [(None, 1), (513, 1), (512, 0), (20, 0)])
def test_a_default_below_the_cap_stays(default: int | None, changes: int) -> None:
    """What a release generates without a cap is not raised by naming one."""
    request = parse(b'{"inputs":"x"}')
    assert len(rewrite(request, TRIM, release=Release(default_output_tokens=default)).changes) == changes


# Answering


@pytest.mark.parametrize(
    ("stream", "frames", "complete", "failed"),
    [
        ("sse_generate_stream_v3.txt", 4, True, False),
        ("sse_generate_stream_v1.4-v2.0.txt", 4, True, False),
        ("sse_generate_stream_v3_queued_keepalive.txt", 4, True, False),
        ("sse_generate_stream_v3_oom_midstream.txt", 2, False, True),
        ("sse_generate_stream_v3_overloaded.txt", 0, False, True),
        ("sse_generate_stream_v3_validation.txt", 0, False, True),
    ],
)
def test_streams(stream: str, frames: int, complete: bool, failed: bool) -> None:
    """Frames and the end are the same however the stream is cut."""
    for blocks in cut_everywhere(recorded(stream)):
        reader = read(STREAM, *blocks)
        assert (reader.events, reader.complete, reader.failed) == (frames, complete, failed)
        assert reader.at_boundary


@pytest.mark.parametrize("stream", ["sse_generate_stream_v3.txt", "sse_generate_stream_v1.4-v2.0.txt"])
def test_a_stream_that_breaks_anywhere(stream: str) -> None:
    """Nothing but the whole of it is complete."""
    whole = recorded(stream)
    assert not any(read(STREAM, whole[:cut]).complete for cut in range(len(whole)))


@pytest.mark.parametrize("details", ["null", '{"finish_reason":"length","generated_tokens":1,"seed":null}'])
@pytest.mark.parametrize("text", ["", "x" * TAIL_BYTES, '"details":null}\n\n'])
def test_a_last_frame_of_any_length(details: str, text: str) -> None:
    """Its beginning need not be there any more."""
    token = '{"id":1,"text":"\\"token\\":{","logprob":-0.1,"special":false}'
    frame = f'data: {{"index":1,"token":{token},"generated_text":{json.dumps(text)},"details":{details}}}\n\n'
    reader = read(STREAM, frame.encode())
    assert (reader.events, reader.complete, reader.failed) == (1, True, False)


def test_a_text_that_looks_like_an_end() -> None:
    """Quotes inside a text are escaped, so it is none."""
    frame = {"token": {"text": '","details":null}\n\n'}, "generated_text": None, "details": None}
    reader = read(STREAM, b"data: " + json.dumps(frame, separators=(",", ":")).encode() + b"\n\n")
    assert (reader.events, reader.complete, reader.failed) == (1, False, False)


def test_the_routes() -> None:
    """Three paths of one form."""
    assert [route.path for route in ROUTES] == ["/generate", "/generate_stream", "/"]
    for route in ROUTES:
        assert (route.errors, route.stream, route.usage) == (TGI_ERRORS, STREAM, answer_usage)
    assert [route.parse for route in ROUTES] == [parse, parse_stream, parse_either]
