"""How many tokens TGI says an answer took."""

import json

import pytest

from kvguard.protocols.route import AnswerHeaders
from kvguard.protocols.sse import TAIL_BYTES, StreamReader, Usage
from kvguard.protocols.tgi_completions import STREAM as COMPLETIONS_STREAM
from kvguard.protocols.tgi_generate import STREAM as NATIVE_STREAM
from kvguard.protocols.tgi_usage import answer_usage, frames_usage, summed_usage
from tests.kit.recordings import recorded, recorded_json

HEADERS: AnswerHeaders = [
    (name.encode(), value.encode())
    for name, _, value in (
        line.partition(": ") for line in recorded_json("response_headers_v3.json")["generate_non_stream"]
    )
]


def told(prompt: int | None, generated: int, sequences: int | None = None) -> Usage:
    return Usage(prompt_tokens=prompt, completion_tokens=generated, sequences=sequences)


@pytest.mark.parametrize(
    ("answer", "headers", "usage"),
    [
        ("chat_response_v3.json", HEADERS, told(39, 4)),
        ("completions_response_v3.json", [], told(6, 4)),
        ("generate_response_v3_no_details.json", HEADERS, told(6, 20, 1)),
        ("generate_response_v3_details.json", HEADERS, told(6, 20, 1)),
        ("root_post_response_v3.json", HEADERS, told(6, 20, 1)),
        # Two of four tokens each; the headers would tell of the better one.
        ("generate_response_v3_best_of_2.json", HEADERS, told(6, 8, 2)),
        ("generate_response_v3_best_of_2.json", [], told(None, 8, 2)),
        ("generate_response_v3_no_details.json", [], None),
    ],
)
def test_a_whole_answer(answer: str, headers: AnswerHeaders, usage: Usage | None) -> None:
    """The body if it has a usage, then the details of several answers, then the headers of one."""
    assert answer_usage(recorded(answer), headers) == usage


@pytest.mark.parametrize(
    ("body", "headers", "usage"),
    [
        # Too long to be kept.
        (b"", HEADERS, told(6, 20, 1)),
        (
            b'[{"generated_text":"","details":%s}]' % b'{"generated_tokens":1,"best_of_sequences":[]}',
            [],
            told(None, 1, 1),
        ),
        (b'{"generated_text":"\\"best_of_sequences\\""}', HEADERS, told(6, 20, 1)),
        (b'"best_of_sequences"', HEADERS, told(6, 20, 1)),
        (b'{"details":{"generated_tokens":1,"best_of_sequences":[{}]}}', [], None),
        (b"{}", [(b"x-generated-tokens", b"20")], told(None, 20, 1)),
        (b"{}", [(b"x-generated-tokens", b"-1"), (b"x-prompt-tokens", b"6")], None),
        (b"{}", [(b"x-generated-tokens", b"1e3")], None),
        (b"{}", [(b"x-generated-tokens", b"9" * 5000)], None),
    ],
)
def test_odd_answers(body: bytes, headers: AnswerHeaders, usage: Usage | None) -> None:
    """What is no count is none."""
    assert answer_usage(body, headers) == usage


@pytest.mark.parametrize(
    ("stream", "usage"),
    [
        ("sse_generate_stream_v3.txt", told(6, 4, 1)),
        ("sse_generate_stream_v1.4-v2.0.txt", told(None, 4, 1)),
        ("sse_generate_stream_v3_queued_keepalive.txt", told(None, 4, 1)),
        ("sse_generate_stream_v3_oom_midstream.txt", told(None, 2, 1)),
        ("sse_generate_stream_v3_overloaded.txt", None),
        ("sse_generate_stream_v3_validation.txt", None),
    ],
)
def test_a_native_stream(stream: str, usage: Usage | None) -> None:
    """A frame is a token; the prompt is known where the details have its length."""
    reader = StreamReader(NATIVE_STREAM)
    reader.feed(recorded(stream))
    assert reader.usage() == usage


@pytest.mark.parametrize("details", [b'{"input_length":"x","generated_tokens":1}', b"{}", b'{"input_length":-1}'])
def test_details_that_are_none(details: bytes) -> None:
    """They tell nothing of the prompt."""
    assert frames_usage(b'data: {"details":%s}\n\n' % details, 1) == told(None, 1, 1)


def test_a_stream_of_several_prompts() -> None:
    """Each has its usage in its last chunk; they are summed up."""
    reader = StreamReader(COMPLETIONS_STREAM)
    reader.feed(recorded("sse_completions_v3_two_prompts.txt"))
    assert reader.usage() == told(14, 6, 2)


def test_a_prompt_that_ended_long_ago() -> None:
    """What is no longer there is not part of the sum, and the sum says of how many it is."""
    chunk = {"choices": [{"index": 0, "text": "x", "finish_reason": "length"}], "usage": {"prompt_tokens": 6}}
    first = b"data: " + json.dumps(chunk).encode() + b"\n\n"
    assert summed_usage((first + b":" * TAIL_BYTES + b"\n\n" + first)[-TAIL_BYTES:], 2) == told(6, 0, 1)
    assert summed_usage(b'data: {"choices":[{"text":"\\"usage\\""}]}\n\n', 1) is None
