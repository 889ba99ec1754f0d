"""Streams that arrive in any blocks: events counted, the end recognised, usage found."""

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvguard.protocols.sse import TAIL_BYTES, StreamReader, Usage, first_event, read_usage
from tests.kit.properties import deterministic

# vLLM 0.32.0, chat with include_usage, and completions; ids shortened.
CHAT = """\
data: {"id":"chatcmpl-9","model":"tiny","choices":[{"index":0,"delta":{"role":"assistant","content":""},\
"logprobs":null,"finish_reason":null}],"prompt_token_ids":null,"prompt_text":null}

data: {"id":"chatcmpl-9","model":"tiny","choices":[{"index":0,"delta":{"content":"*)(["},"finish_reason":null}]}

data: {"id":"chatcmpl-9","model":"tiny","choices":[{"index":0,"delta":{"content":"\u00e9"},"finish_reason":"length"}]}

data: {"id":"chatcmpl-9","model":"tiny","choices":[],"usage":{"prompt_tokens":5,"total_tokens":13,\
"completion_tokens":8},"system_fingerprint":"vllm-0.32.0-762c8c9a"}

data: [DONE]

""".encode()
# With continuous_usage_stats and n = 2, and comments to keep the connection alive.
CONTINUOUS = b"""\
: keep-alive

data: {"choices":[{"index":0,"text":"a"}],"usage":{"prompt_tokens":5,"total_tokens":6,"completion_tokens":1}}

: keep-alive

data: {"choices":[{"index":1,"text":"data: b"}],"usage":{"prompt_tokens":5,"total_tokens":7,"completion_tokens":2}}

data: {"choices":[],"usage":{"prompt_tokens":5,"total_tokens":11,"completion_tokens":6}}

data: [DONE]

"""
# TGI: no space after the colon, usage null until the end.
TIGHT = (
    b'data:{"choices":[],"usage":null}\n\ndata:{"usage":{"prompt_tokens":39,"completion_tokens":4}}\n\ndata: [DONE]\n\n'
)
NO_USAGE = b'data: {"choices":[{"text":"a"}]}\n\ndata: {"choices":[{"text":"\\"usage\\""}]}\n\ndata: [DONE]\n\n'

STREAMS = [
    (CHAT, 5, Usage(prompt_tokens=5, completion_tokens=8)),
    (CONTINUOUS, 4, Usage(prompt_tokens=5, completion_tokens=6)),
    (TIGHT, 3, Usage(prompt_tokens=39, completion_tokens=4)),
    (NO_USAGE, 3, None),
]


def windows(stream: bytes) -> bytes:
    return stream.replace(b"\n", b"\r\n")


def fed(*blocks: bytes) -> StreamReader:
    reader = StreamReader()
    for block in blocks:
        reader.feed(block)
    return reader


def split(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    return [stream[start:end] for start, end in itertools.pairwise(edges)]


@pytest.mark.parametrize("framing", [bytes, windows])
@pytest.mark.parametrize(("stream", "events", "usage"), STREAMS)
def test_a_stream_in_one_piece_and_byte_by_byte(stream: bytes, events: int, usage: Usage | None, framing: type) -> None:
    """Events, end and usage are the same, with either kind of line ending."""
    framed = framing(stream)
    for blocks in ([framed], [framed[n : n + 1] for n in range(len(framed))]):
        reader = fed(*blocks)
        assert reader.events == events
        assert reader.usage() == usage
        assert reader.complete
        assert reader.at_boundary


@deterministic
@given(
    chosen=st.sampled_from(STREAMS),
    framing=st.sampled_from((bytes, windows)),
    cuts=st.lists(st.integers(0, 900), max_size=12),
)
def test_a_stream_in_any_pieces(chosen: tuple[bytes, int, Usage | None], framing: type, cuts: list[int]) -> None:
    """However the same bytes are cut into blocks, empty ones included, they read the same."""
    stream, events, usage = chosen
    reader = fed(*split(framing(stream), cuts))
    assert (reader.events, reader.usage(), reader.complete, reader.at_boundary) == (events, usage, True, True)


@deterministic
@given(chosen=st.sampled_from(STREAMS), framing=st.sampled_from((bytes, windows)), end=st.integers(0, 900))
def test_a_stream_that_breaks_anywhere(chosen: tuple[bytes, int, Usage | None], framing: type, end: int) -> None:
    """Up to the break, events are counted by their first bytes, and only a whole terminator completes the stream."""
    framed = framing(chosen[0])
    begun = framed[:end]
    reader = fed(*split(begun, [end // 3, end // 2]))
    assert reader.events == (b"\n" + begun).count(b"\ndata:")
    assert reader.complete is (b"data: [DONE]" in begun)
    blank = framing(b"\n\n")
    assert reader.at_boundary is (not begun or begun.endswith(blank))


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"", 0),
        (b"data:", 1),
        (b"data", 0),
        (b"\n\ndata: 1\n\n", 1),
        (b"data: 1\ndata: 2\n\n", 2),
        (b": data: 1\n\n", 0),
        (b"event: x\ndata: 1\n\n", 1),
        (b'data: {"text":"data: data:"}\n\n', 1),
    ],
)
def test_what_counts_as_an_event(stream: bytes, events: int) -> None:
    """A line that begins with `data:`, nothing inside a line."""
    assert fed(stream).events == events


@pytest.mark.parametrize(
    ("stream", "complete"),
    [
        (b"", False),
        (b"data: [DONE]", True),
        (b"data: [DON", False),
        (b'data: 1\n\ndata: {"text":"data: [DONE]"}\n\n', False),
        (b": data: [DONE]\n\n", False),
        (b"data: [DONE]\n\n: bye\n\n", True),
    ],
)
def test_what_completes_a_stream(stream: bytes, complete: bool) -> None:
    """The terminator as a line of its own."""
    assert fed(stream).complete is complete


@pytest.mark.parametrize(
    ("stream", "boundary"),
    [
        (b"", True),
        (b"data: 1", False),
        (b"data: 1\n", False),
        (b"data: 1\n\n", True),
        (b"data: 1\r\n", False),
        (b"data: 1\r\n\r", False),
        (b"data: 1\r\n\r\n", True),
        (b"data: 1\n\nd", False),
    ],
)
def test_between_two_events(stream: bytes, boundary: bool) -> None:
    """Before the first event and after a blank line another event can follow."""
    assert fed(stream).at_boundary is boundary


FILLER = b": filler\n\n"


@pytest.mark.parametrize(("room", "found"), [(1, True), (0, True), (-1, False)])
def test_only_a_bounded_tail_is_kept(room: int, found: bool) -> None:
    """Usage is found while it is within the last bytes of the stream, to the byte."""
    usage = b'data: {"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\n'
    after = b":" + b"x" * (TAIL_BYTES - len(usage) - room - 1)
    reader = fed(FILLER * 10_000, usage, after)
    assert (reader.usage() is not None) is found
    assert reader.events == 1


def test_a_terminator_quoted_at_the_edge_of_the_tail_completes_nothing() -> None:
    """What was cut off before the tail does not make a line of the rest of one."""
    quoted = b'data: [DONE]"}\n\n'
    reader = fed(b'data: {"text":"', quoted, b":" + b"x" * (TAIL_BYTES - len(quoted) - 1))
    assert not reader.complete


@pytest.mark.parametrize(
    ("answer", "usage"),
    [
        (b'{"usage":{"prompt_tokens":2,"total_tokens":10,"completion_tokens":8}}', (2, 8)),
        (b'{"choices":[{"text":"x"}],"usage":{"prompt_tokens":2,"completion_tokens":8},"metrics":null}', (2, 8)),
        # An answer of no tokens, as embeddings have it.
        (b'{"usage":{"prompt_tokens":2,"total_tokens":2}}', (2, 0)),
        (b'{"usage":{"prompt_tokens":0,"completion_tokens":0}}', (0, 0)),
        (b'{"usage":null}', None),
        (b'{"choices":[]}', None),
        (b'{"usage":{"completion_tokens":8}}', None),
        (b'{"usage":{"prompt_tokens":"2","completion_tokens":8}}', None),
        (b'{"usage":{"prompt_tokens":2.5,"completion_tokens":8}}', None),
        (b'{"usage":{"prompt_tokens":null,"completion_tokens":8}}', None),
        (b'{"usage":[]}', None),
        (b"[]", None),
        (b"", None),
        (b"[DONE]", None),
        (b'{"usage":{"prompt_tokens":2,"completion_tokens":8}', None),
        (b'{"text":"\xff","usage":{"prompt_tokens":2,"completion_tokens":8}}', (2, 8)),
        pytest.param(b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", None, id="too deep"),
    ],
)
def test_usage_of_one_answer(answer: bytes, usage: tuple[int, int] | None) -> None:
    """Whole numbers of both kinds, or nothing; a broken answer is none of kvguard's business."""
    expected = usage and Usage(prompt_tokens=usage[0], completion_tokens=usage[1])
    assert read_usage(answer) == expected


def test_the_last_usage_counts() -> None:
    """A block that cannot be read is passed over for the one before it."""
    good = b'data: {"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\n'
    assert fed(good, b'data: {"usage":null}\n\n', b'data: {"usage":{"x"\n\n').usage() == Usage(
        prompt_tokens=1, completion_tokens=2
    )


@pytest.mark.parametrize(
    ("answer", "usage"),
    [
        (b'{"usage":{"prompt_tokens":5,"completion_tokens":3}}', (5, 3)),
        (b'{"usage":{"prompt_tokens":5}}', (5, 0)),
        (b'{"usage":{"input_tokens":5,"output_tokens":3}}', (5, 3)),
        (
            b'{"usage":{"input_tokens":5,"output_tokens":3,"cache_read_input_tokens":7,"cache_creation_input_tokens":1}}',
            (13, 3),
        ),
        (b'{"type":"response.completed","response":{"usage":{"input_tokens":5,"output_tokens":3}}}', (5, 3)),
        (b'{"type":"response.created","response":{"usage":null}}', None),
        (b'{"usage":{"input_tokens":5}}', None),
        (b'{"usage":{"output_tokens":5}}', None),
        (b'{"usage":{}}', None),
        (b'{"response":null}', None),
        (b'{"usage":{"prompt_tokens":-1}}', None),
        (b"[]", None),
    ],
)
def test_usage_is_read_under_every_name_it_has(answer: bytes, usage: tuple[int, int] | None) -> None:
    """Chat and completions call them otherwise than messages and responses."""
    expected = None if usage is None else Usage(prompt_tokens=usage[0], completion_tokens=usage[1])
    assert read_usage(answer) == expected


@pytest.mark.parametrize(("padding", "found"), [(100, True), (TAIL_BYTES - 300, True), (TAIL_BYTES, True)])
def test_usage_is_found_in_an_event_too_long_to_be_kept(padding: int, found: bool) -> None:
    """The whole answer stands once more in the last event of `responses`, the usage behind it."""
    event = b'event: response.completed\ndata: {"response":{"output":"' + b"x" * padding
    event += (
        b'","usage":{"input_tokens":5,"input_tokens_details":{"cached_tokens":0},"output_tokens":4,"total_tokens":9}}}'
    )
    reader = fed(event + b"\n\n")
    assert (reader.usage() == Usage(prompt_tokens=5, completion_tokens=4)) is found


USAGE = b'"usage":{"input_tokens":5,"input_tokens_details":{"cached_tokens":0},"output_tokens":4,"total_tokens":9}'


@pytest.mark.parametrize(
    ("schema", "usage"),
    [
        (b'{"usage":{"input_tokens":1}}', USAGE),
        (b'{"usage":{"input_tokens":1,"a":{"b":{"c":{}}}}}', USAGE),
        (b'{"usage":{"input_tokens":1,"output_tokens":2}}', USAGE),
        (b'{"usage":{"input_tokens":1,"a":{}}}', b'"usage": {"input_tokens": 5, "output_tokens": 4}'),
    ],
)
def test_a_schema_of_the_client_is_no_usage(schema: bytes, usage: bytes) -> None:
    """It is repeated in the last event as it came, before the usage."""
    event = b'data: {"response":{"output":"' + b"x" * TAIL_BYTES + b'","text":{"schema":' + schema + b"}," + usage
    assert fed(event + b"}}\n\n").usage() == Usage(prompt_tokens=5, completion_tokens=4)


@pytest.mark.parametrize("part", [b'"usage":{"input_tokens":1,', b'"usage":{"input_tokens":1,"a":{},', b"{}"])
def test_what_looks_like_the_beginning_of_usage_is_not_searched_again_and_again(part: bytes) -> None:
    """The search takes time that grows with what is kept, not with its square."""
    event = b'data: "usage":{"input_tokens":1,' + part * (TAIL_BYTES // len(part))
    assert fed(event * 2).usage() is None


def test_usage_behind_which_too_much_comes_is_not_known() -> None:
    """What is kept is bounded."""
    event = b'data: {"response":{"usage":{"input_tokens":5,"output_tokens":4},"output":"' + b"x" * TAIL_BYTES
    assert fed(event + b'"}}\n\n').usage() is None


@pytest.mark.parametrize("framing", [bytes, windows])
@pytest.mark.parametrize(
    ("held", "event"),
    [
        (b"", None),
        (b"data: 1", None),
        (b"data: 1\n", None),
        (b"data: 1\n\n", b"data: 1"),
        (b"data:1\n\ndata: 2\n\n", b"data:1"),
        (b":\n\n", None),
        (b": waiting\n\n:\n\nda", None),
        (b":\n\n: still\n: so\n\ndata: 1\n\n", b"data: 1"),
        (b"\n\ndata: 1\n\n", b"data: 1"),
        (b": about it\nevent: x\ndata: 1\n\n", b": about it\nevent: x\ndata: 1"),
    ],
)
def test_the_first_event(held: bytes, event: bytes | None, framing: Callable[[bytes], bytes]) -> None:
    """Comments are none, and neither is what has no end yet."""
    assert first_event(framing(held)) == (None if event is None else framing(event))
