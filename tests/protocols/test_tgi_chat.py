"""Chats of TGI: one conversation, one cap under two names."""

import json

import pytest

from kvguard.admission.footprint import Trait
from kvguard.admission.policy import Degradation, SequenceCut
from kvguard.admission.release import Release
from kvguard.errors import InvalidRequest
from kvguard.protocols.openai_errors import OPENAI_ERRORS
from kvguard.protocols.prompts import ChatPrompt
from kvguard.protocols.request import Copies, InferenceRequest
from kvguard.protocols.rewrite import rewrite
from kvguard.protocols.sse import Usage
from kvguard.protocols.tgi_chat import PATH, ROUTE, STREAM, parse
from kvguard.protocols.tgi_usage import answer_usage
from kvguard.protocols.usage_chunk import UsageChunkFilter
from tests.kit.recordings import recorded
from tests.protocols.streams import cut_everywhere, read

ALL = Degradation(output_cap=512, cut=SequenceCut.ALL)
OLD = Release(default_output_tokens=100, ignored_caps=frozenset({"max_completion_tokens"}))
OLDER = Release(default_output_tokens=None, ignored_caps=frozenset({"max_completion_tokens"}))
NEW = Release()


def asked(fields: str = "") -> InferenceRequest:
    return parse(b'{"messages":[]' + (f",{fields}" if fields else "").encode() + b"}")


def test_a_whole_request() -> None:
    """All that matters to the cache; `n` does not."""
    request = asked('"model":"lora","stream":true,"max_tokens":50,"n":4,"best_of":3,"stop":["a"],"temperature":0')
    assert (request.model, request.stream, request.requested_cap, request.stops) == ("lora", True, 50, True)
    assert (request.copies, request.beams, request.copied_by) == (1, False, Copies.NONE)
    assert (request.hides_usage, request.runs_tools, request.traits) == (True, False, frozenset())
    assert isinstance(request.prompt, ChatPrompt)


@pytest.mark.parametrize(
    ("fields", "model"), [("", None), ('"model":null', None), ('"model":"tgi"', None), ('"model":"lora"', "lora")]
)
def test_the_model(fields: str, model: str | None) -> None:
    """An adapter by its name; `tgi` is whatever model there is, and stays in what is asked about it."""
    assert asked(fields).model == model
    assert asked('"model":"tgi"').model_field.keys() == {"model"}


def test_media_stand_beside_the_conversation() -> None:
    """Their payload is none of its text."""
    url = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 5000}}
    request = parse(json.dumps({"messages": [{"role": "user", "content": [url]}]}).encode())
    assert isinstance(request.prompt, ChatPrompt)
    assert len(request.prompt.media) == 1
    assert len(bytes(request.prompt.fields["messages"])) < 200


@pytest.mark.parametrize(
    ("fields", "traits", "runs_tools"),
    [
        ('"tools":null', set(), False),
        ('"tools":[]', set(), False),
        ('"tools":[{"type":"function"}]', {Trait.TOOLS}, True),
        ('"response_format":null', set(), False),
        ('"response_format":{"type":"json_object"}', {Trait.STRUCTURED_OUTPUT}, False),
    ],
)
def test_traits(fields: str, traits: set[Trait], runs_tools: bool) -> None:
    """Tools may cost a second generation, of which alone the usage is."""
    request = asked(fields)
    assert (request.traits, request.runs_tools) == (traits, runs_tools)


@pytest.mark.parametrize(
    ("fields", "hides"),
    [
        ('"stream":false', False),
        ('"stream":true', True),
        ('"stream":true,"stream_options":null', True),
        ('"stream":true,"stream_options":{"include_usage":false}', True),
        ('"stream":true,"stream_options":{"include_usage":true}', False),
        ('"stream_options":{"include_usage":false}', False),
    ],
)
def test_which_streams_hide_their_usage(fields: str, hides: bool) -> None:
    """Those that do not ask for it."""
    assert asked(fields).hides_usage is hides


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ('"max_tokens":0', "max_tokens"),
        ('"max_tokens":"5"', "max_tokens"),
        ('"max_completion_tokens":5.0', "max_completion_tokens"),
        ('"stream":"true"', "stream"),
        ('"stream_options":[]', "stream_options"),
        ('"stream_options":{"include_usage":1}', "include_usage"),
        ('"messages":5', "messages"),
    ],
)
def test_what_is_refused(fields: str, param: str) -> None:
    """A value of another type, by the name of its field."""
    with pytest.raises(InvalidRequest) as caught:
        asked(fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "release", "wanted"),
    [
        ("", None, None),
        ("", OLD, 100),
        ("", OLDER, None),
        ("", NEW, None),
        ('"max_tokens":50', OLD, 50),
        ('"max_completion_tokens":50', None, 50),
        ('"max_completion_tokens":50', NEW, 50),
        # It is not known there, so the answer is as long as without it.
        ('"max_completion_tokens":50', OLD, 100),
        ('"max_completion_tokens":50,"max_tokens":70', OLD, 70),
    ],
)
def test_caps_by_release(fields: str, release: Release | None, wanted: int | None) -> None:
    """A name that a release does not know caps nothing there."""
    request = asked(fields)
    assert request.wanted_tokens(release) == wanted
    demand = request.demand((10,), context_tokens=None, assumed_output_tokens=256, release=release)
    assert demand.output_cap == wanted


@pytest.mark.parametrize(
    ("fields", "release", "written", "changes"),
    [
        ("", None, {"max_tokens": 512}, "max_tokens=unset->512"),
        ('"max_tokens":1000', None, {"max_tokens": 512}, "max_tokens=1000->512"),
        ('"max_completion_tokens":1000', None, {"max_completion_tokens": 512}, "max_completion_tokens=1000->512"),
        ('"max_completion_tokens":1000', NEW, {"max_completion_tokens": 512}, "max_completion_tokens=1000->512"),
        # One field under two names: null in one of them is a second field already.
        ('"max_completion_tokens":null', NEW, {"max_completion_tokens": 512}, "max_completion_tokens=unset->512"),
        ('"max_tokens":null', NEW, {"max_tokens": 512}, "max_tokens=unset->512"),
        # Not known, so it stays as it came, and the cap is written by the name that is.
        (
            '"max_completion_tokens":1000',
            OLDER,
            {"max_completion_tokens": 1000, "max_tokens": 512},
            "max_tokens=unset->512",
        ),
        ('"max_completion_tokens":1000', OLD, {"max_completion_tokens": 1000}, None),
    ],
)
def test_trimming(fields: str, release: Release | None, written: dict, changes: str | None) -> None:
    """The cap is written where the client has it; a second name is never put beside a first that is known."""
    rewritten = rewrite(asked(fields), ALL, release=release)
    after = json.loads(rewritten.body)
    assert {name: value for name, value in after.items() if name.startswith("max_")} == written
    assert rewritten.changes == ((changes,) if changes else ())


@pytest.mark.parametrize("fields", ['"n":4', '"best_of":4', '"num_beams":4', '"use_beam_search":true'])
def test_what_has_no_effect_is_left_alone(fields: str) -> None:
    """Taking it out would change nothing but the client's own words."""
    request = asked(f'{fields},"max_tokens":5')
    assert rewrite(request, ALL).body is request.body


@pytest.mark.parametrize(
    ("options", "asked_for"),
    [
        ("", {"include_usage": True}),
        (',"stream_options":null', {"include_usage": True}),
        (',"stream_options":{"x":1}', {"x": 1, "include_usage": True}),
    ],
)
def test_usage_is_asked_for_by_an_object(options: str, asked_for: dict) -> None:
    """Null in its place would be refused."""
    rewritten = rewrite(asked(f'"stream":true{options}'), Degradation(), ask_usage=True)
    assert rewritten.asks_usage
    assert json.loads(rewritten.body)["stream_options"] == asked_for


@pytest.mark.parametrize(
    ("stream", "complete", "failed", "usage"),
    [
        ("sse_chat_v3.txt", True, False, None),
        ("sse_chat_v3_length.txt", True, False, None),
        ("sse_chat_v3_include_usage.txt", True, False, Usage(prompt_tokens=39, completion_tokens=4)),
        # A terminator after an error does not make it an answer.
        ("sse_chat_v3_oom_midstream.txt", True, True, None),
        ("sse_chat_v3_overloaded.txt", True, True, None),
    ],
)
def test_streams(stream: str, complete: bool, failed: bool, usage: Usage | None) -> None:
    """The end, and the usage where it was asked for, however the stream is cut."""
    for blocks in cut_everywhere(recorded(stream)):
        reader = read(STREAM, *blocks)
        assert (reader.complete, reader.failed, reader.usage()) == (complete, failed, usage)


@pytest.mark.parametrize("stream", ["sse_chat_v3.txt", "sse_chat_v3_length.txt"])
def test_streams_without_a_terminator(stream: str) -> None:
    """Before it, the event with a reason to finish is the last: it is whole with that and with nothing less."""
    whole = recorded(stream).removesuffix(b"data: [DONE]\n\n")
    assert read(STREAM, whole).complete
    assert not any(read(STREAM, whole[:cut]).complete for cut in range(len(whole)))


def test_a_text_that_looks_like_an_end() -> None:
    """Quotes inside a text are escaped, so it is none."""
    chunk = {"choices": [{"delta": {"content": '"finish_reason":"stop"'}, "finish_reason": None}]}
    assert not read(STREAM, b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n").complete


def test_the_usage_nobody_asked_for_is_taken_out() -> None:
    """What is left is to the byte the stream of a client that does not ask."""
    for blocks in cut_everywhere(recorded("sse_chat_v3_include_usage.txt")):
        held_back = UsageChunkFilter()
        passed = [held_back.feed(block) for block in blocks]
        assert b"".join([*passed, held_back.rest()]) == recorded("sse_chat_v3.txt")


def test_the_route() -> None:
    """Errors are OpenAI's."""
    assert (ROUTE.path, ROUTE.errors, ROUTE.stream, ROUTE.usage) == (PATH, OPENAI_ERRORS, STREAM, answer_usage)
    assert asked().stream_format is STREAM
