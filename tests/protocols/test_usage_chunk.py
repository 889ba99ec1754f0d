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
    (OTHER + COMMENT + LAST % b"" + USAGE % FINGERPRINT + DONE, COMMENT + OTHER + LAST % FINGERPRINT + DONE),
    # Nothing to take out, or an end without an end.
    (TOKEN + LAST % FINGERPRINT + DONE, TOKEN + LAST % FINGERPRINT + DONE),
    (LAST % FINGERPRINT + USAGE % FINGERPRINT, LAST % FINGERPRINT),
    (TOKEN + ERROR + DONE, TOKEN + ERROR + DONE),
    (LAST % b"", LAST % b""),
    (TOKEN + b"data: {", TOKEN + b"data: {"),
    (b"", b""),
    (USAGE % FINGERPRINT, b""),
    (b'data: {"choices":[],"usage":null}\n\n' + DONE, b'data: {"choices":[],"usage":null}\n\n' + DONE),
    (b'data: {"usage":{\n\n' + USAGE % b"" + DONE, b'data: {"usage":{\n\n' + DONE),
    (b'data: {"choices":[{"usage":{}}]}\n\n' + USAGE % b"", b'data: {"choices":[{"usage":{}}]}\n\n'),
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
@given(stream=st.sampled_from(STREAMS[:12]), cuts=st.lists(st.integers(0, 700), max_size=6))
def test_it_is_the_same_however_it_is_cut(stream: tuple[bytes, bytes], cuts: list[int]) -> None:
    """Cuts inside an event or inside its end change nothing, the fingerprint included."""
    sent, left = stream
    edges = [0, *sorted(min(cut, len(sent)) for cut in cuts), len(sent)]
    assert filtered(*(sent[start:end] for start, end in itertools.pairwise(edges))) == left


@pytest.mark.parametrize("framing", [bytes, windows])
@pytest.mark.parametrize(("sent", "left"), STREAMS)
def test_byte_by_byte(sent: bytes, left: bytes, framing: type) -> None:
    """Every cut at once, those between the two line endings of an event included."""
    sent = framing(sent)
    assert filtered(*(sent[at : at + 1] for at in range(len(sent)))) == framing(left)


@pytest.mark.parametrize(
    ("part", "passes", "between"),
    [
        (TOKEN, True, True),
        (TOKEN[:60], False, False),
        (b'data: {"choices": [{', False, False),
        (b"da", False, False),
        ((USAGE % b"")[:80], False, False),
        # What ends a choice waits for what comes next.
        (LAST % b"", False, True),
        ((LAST % b"")[:-1], False, False),
        (COMMENT, True, True),
    ],
)
def test_only_what_may_have_to_change_is_kept_back(part: bytes, passes: bool, between: bool) -> None:
    """A token passes as soon as it is whole, and a comment may stand wherever no event is half there."""
    passing = UsageChunkFilter()
    assert passing.feed(part) == (part if passes else b"")
    assert passing.between_events is between
    assert passing.rest() == (b"" if passes else part)
    assert passing.between_events


def test_comments_do_not_wait_for_the_end_of_a_choice() -> None:
    """Nor do they cost it its fingerprint."""
    stream = LAST % b"" + COMMENT + b"\n: alive\n" + USAGE % FINGERPRINT + DONE
    assert filtered(stream) == COMMENT + LAST % FINGERPRINT + DONE


@pytest.mark.parametrize("lead", [b"\n", b"event: chunk\n", b"id: 1\r\n", b"\r\n"])
def test_usage_is_found_behind_other_lines(lead: bytes) -> None:
    """Empty lines, and fields of the same event."""
    assert filtered(TOKEN, lead + USAGE % b"", DONE) == TOKEN + DONE


def test_usage_of_a_server_that_tells_everybody_stays() -> None:
    """Such a server tells it in every chunk, asked or not, and the client would have got it without kvguard."""
    token = b'data: {"choices":[{"index":0,"delta":{}}],"usage":{"prompt_tokens":5,"completion_tokens":0}}\n\n'
    stream = token + LAST % b"" + USAGE % FINGERPRINT + DONE
    assert filtered(stream) == stream


def test_an_event_without_end_passes_in_parts() -> None:
    """What is kept is bounded, and what comes after it is looked at again."""
    passing = UsageChunkFilter()
    long = b"data: " + b"x" * MAX_EVENT_BYTES
    assert passing.feed(LAST % b"") == b""
    assert passing.feed(long) == LAST % b"" + long
    assert [passing.feed(block) for block in (b'"usage":{', b"}\r", b"\n", b"\r")] == [
        b'"usage":{',
        b"}\r",
        b"\n",
        b"\r",
    ]
    assert not passing.between_events
    assert passing.feed(b"\n" + USAGE % b"" + DONE) == b"\n" + DONE
    assert passing.between_events
    assert passing.rest() == b""


def test_a_long_event_in_small_blocks_is_looked_at_once() -> None:
    """What has come is not searched again for each block: no more than the blocks is ever compared."""
    passing = UsageChunkFilter()
    blocks = MAX_EVENT_BYTES // 64
    assert b"".join(passing.feed(b"x" * 64) for _ in range(blocks)) == b""
    assert passing.rest() == b"x" * MAX_EVENT_BYTES
