"""Usage that nobody asked for is taken out of a stream, and what is left is the stream there would have been."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvguard.protocols.usage_chunk import MAX_EVENT_BYTES, UsageChunkFilter
from tests.kit.properties import deterministic

FINGERPRINT = b',"system_fingerprint":"vllm-0.32.0-762c8c9a"'
USAGE = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}%s}\n\n'
# As vLLM 0.32 sends them: the last JSON chunk there is has the fingerprint.
ROLE = b'data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
TOKEN = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"\\"usage\\":{}"},"finish_reason":null}]}\n\n'
LAST = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"b"},"finish_reason":"length"}]%s}\n\n'
OTHER = b'data: {"id":"c","choices":[{"index":1,"delta":{"content":"b"},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error":{"message":"usage"}}\n\n'
COMMENT = b": keep-alive\n\n"

STREAMS = [
    (ROLE + TOKEN + LAST % b"" + USAGE % FINGERPRINT + DONE, ROLE + TOKEN + LAST % FINGERPRINT + DONE),
    (ROLE + TOKEN + LAST % b"" + USAGE % b"" + DONE, ROLE + TOKEN + LAST % b"" + DONE),
    # Two choices: the one that ends last has it.
    (TOKEN + OTHER + TOKEN + LAST % b"" + USAGE % FINGERPRINT, TOKEN + OTHER + TOKEN + LAST % FINGERPRINT),
    (OTHER + COMMENT + LAST % b"" + USAGE % FINGERPRINT + DONE, OTHER + COMMENT + LAST % FINGERPRINT + DONE),
    # Nothing to take out, or an end without an end.
    (TOKEN + LAST % FINGERPRINT + DONE, TOKEN + LAST % FINGERPRINT + DONE),
    (LAST % FINGERPRINT + USAGE % FINGERPRINT, LAST % FINGERPRINT),
    (TOKEN + ERROR + DONE, TOKEN + ERROR + DONE),
    (LAST % b"", LAST % b""),
    (TOKEN + b"data: {", TOKEN + b"data: {"),
    (b"", b""),
    (USAGE % FINGERPRINT, b""),
    (b'data: {"choices":[],"usage":null}\n\n' + DONE, b'data: {"choices":[],"usage":null}\n\n' + DONE),
    (b'data: {"usage":[\n\n' + DONE, b'data: {"usage":[\n\n' + DONE),
]


def filtered(*blocks: bytes) -> bytes:
    passing = UsageChunkFilter()
    return b"".join([*map(passing.feed, blocks), passing.rest()])


def windows(stream: bytes) -> bytes:
    return stream.replace(b"\n", b"\r\n")


@pytest.mark.parametrize("framing", [bytes, windows])
@pytest.mark.parametrize(("stream", "left"), STREAMS)
def test_what_is_left_is_what_the_client_asked_for(stream: bytes, left: bytes, framing: type) -> None:
    """In one piece and event by event, with either kind of line ending."""
    stream, left = framing(stream), framing(left)
    end = framing(b"\n\n")
    events = [event + end for event in stream.split(end)]
    assert filtered(stream) == left
    assert filtered(*events[:-1], events[-1].removesuffix(end)) == left


@deterministic
@given(cuts=st.lists(st.integers(0, 700), max_size=6))
def test_tokens_come_whole_and_usage_never_does_however_it_is_cut(cuts: list[int]) -> None:
    """A cut inside the event that ends a choice may cost the fingerprint, nothing else."""
    stream, left = STREAMS[0]
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    came = filtered(*(stream[start:end] for start, end in itertools.pairwise(edges)))
    assert came in (left, left.replace(FINGERPRINT, b""))


@pytest.mark.parametrize(
    ("part", "passes"),
    [
        (TOKEN, True),
        (TOKEN[:60], True),
        (b'data: {"choices": [{', True),
        (b'data: {"id":"c","choices":[', False),
        (b"da", False),
        ((USAGE % b"")[:80], False),
        # What ends a choice waits for what comes next.
        (LAST % b"", False),
    ],
)
def test_only_what_may_have_to_change_is_kept_back(part: bytes, passes: bool) -> None:
    """A token passes as it comes, half an event included."""
    passing = UsageChunkFilter()
    assert passing.feed(part) == (part if passes else b"")
    assert passing.between_events is passes
    assert passing.rest() == (b"" if passes else part)
    assert passing.between_events


def test_an_event_without_end_passes_in_parts() -> None:
    """What is kept is bounded."""
    passing = UsageChunkFilter()
    long = b"data: " + b"x" * MAX_EVENT_BYTES
    assert passing.feed(long) == long
