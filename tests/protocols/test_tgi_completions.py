"""Completions of TGI: texts side by side, each ending by itself."""

import json

import pytest

from kvguard.admission.policy import Degradation, SequenceCut
from kvguard.errors import InvalidRequest
from kvguard.protocols.openai_errors import OPENAI_ERRORS
from kvguard.protocols.prompts import TextPrompts
from kvguard.protocols.request import Copies
from kvguard.protocols.rewrite import rewrite
from kvguard.protocols.tgi_completions import PATH, ROUTE, STREAM, parse
from kvguard.protocols.tgi_usage import answer_usage
from tests.kit.recordings import recorded
from tests.protocols.streams import cut_everywhere, read

TWO = "sse_completions_v3_two_prompts.txt"


def test_a_whole_request() -> None:
    """One sequence for each prompt, whatever `n` and `best_of` say."""
    request = parse(b'{"model":"m","prompt":["a","b"],"max_tokens":50,"n":4,"best_of":"x","stream":true,"stop":["."]}')
    assert (request.prompt, request.model, request.requested_cap) == (TextPrompts(("a", "b")), "m", 50)
    assert (request.copies, request.beams, request.copied_by) == (1, False, Copies.NONE)
    assert (request.stream, request.stops, request.hides_usage) == (True, True, False)
    assert request.demand((3, 4), context_tokens=100, assumed_output_tokens=256).sequences == 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": [1, 2]}, "prompt"),
        ({"prompt": "x", "suffix": "y"}, "suffix"),
        ({"prompt": "x", "max_tokens": "5"}, "max_tokens"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "x", "stream": 1}, "stream"),
    ],
)
def test_what_is_refused(fields: dict, param: str) -> None:
    """Token ids, a suffix, and values of another type."""
    with pytest.raises(InvalidRequest) as caught:
        parse(json.dumps(fields).encode())
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "written", "changes"),
    [
        ({}, {"max_tokens": 512}, ("max_tokens=unset->512",)),
        ({"max_tokens": 1000, "n": 4}, {"max_tokens": 512, "n": 4}, ("max_tokens=1000->512",)),
        # Another route's name has no meaning here.
        (
            {"max_completion_tokens": 9},
            {"max_completion_tokens": 9, "max_tokens": 512},
            ("max_tokens=unset->512",),
        ),
        ({"max_tokens": 512, "best_of": 4}, {"max_tokens": 512, "best_of": 4}, ()),
    ],
)
def test_rewriting(fields: dict, written: dict, changes: tuple[str, ...]) -> None:
    """Only the cap is lowered; a usage need not be asked for."""
    request = parse(json.dumps({"prompt": "x", "stream": True, **fields}).encode())
    rewritten = rewrite(request, Degradation(output_cap=512, cut=SequenceCut.ALL), ask_usage=True)
    assert json.loads(rewritten.body) == {"prompt": "x", "stream": True, **written}
    assert (rewritten.changes, rewritten.asks_usage) == (changes, False)


def test_a_stream_of_two_prompts() -> None:
    """It ends with its terminator, however it is cut."""
    for blocks in cut_everywhere(recorded(TWO)):
        reader = read(STREAM, *blocks)
        assert (reader.events, reader.complete, reader.failed) == (7, True, False)


def test_a_stream_of_two_prompts_without_a_terminator() -> None:
    """Where it ends, both have; an empty reason to finish is none."""
    whole = recorded(TWO).removesuffix(b"data: [DONE]\n\n")
    events = whole.split(b"\n\n")[:-1]
    assert read(STREAM, whole).complete
    for before in range(len(events) - 2):
        assert not read(STREAM, b"".join(event + b"\n\n" for event in events[:before])).complete


def test_the_route() -> None:
    """Errors are OpenAI's."""
    assert (ROUTE.path, ROUTE.errors, ROUTE.stream, ROUTE.usage) == (PATH, OPENAI_ERRORS, STREAM, answer_usage)
