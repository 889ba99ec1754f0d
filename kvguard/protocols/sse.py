"""Reading an event stream while it passes: how many tokens went by, how it ended, and the usage block at its end.

Nothing is parsed on the way: events are counted by their lines and only a bounded tail is kept.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

TAIL_BYTES = 16_384
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
# Where the events around the answer make the last one too long to be kept whole. Between the two counts only whole
# objects stand: an event repeats the client's tools and schemas, which may have a "usage" of their own.
_LAST_USAGE = re.compile(
    rb'"usage": ?\{"input_tokens": ?(\d{1,16})[,}]'
    rb"[^{}]*?(?:\{[^{}]*+\}[^{}]*?)*?"
    rb'"output_tokens": ?(\d{1,16})[,}]'
)


_EVENT_END = re.compile(rb"\r?\n\r?\n")
_NO_COMMENT = re.compile(rb"^[^:\r\n]", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts as the engine reports them, summed over so many `sequences`, None for all there are.

    `prompt_tokens` is None where it does not report them.
    """

    prompt_tokens: int | None
    completion_tokens: int
    sequences: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What an engine reports in an event, as the answer it would have been without a stream."""

    status: int
    body: bytes


class _UsageFields(msgspec.Struct):
    """Both families of names: those of chat and completions, and those of messages and responses."""

    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    input_tokens: _Count | None = None
    output_tokens: _Count | None = None
    cache_read_input_tokens: _Count | None = None
    cache_creation_input_tokens: _Count | None = None


class _Inner(msgspec.Struct):
    usage: _UsageFields | None = None


class _Answer(msgspec.Struct):
    """A whole answer, or an event of one, which may hold the answer so far."""

    usage: _UsageFields | None = None
    response: _Inner | None = None


_answers = msgspec.json.Decoder(_Answer)


def last_usage(tail: bytes, _: int) -> Usage | None:
    """The last usage block in the end of a stream."""
    lines = tail.split(b"\n")
    for line in reversed(lines):
        if line.startswith(b"data:") and b'"usage"' in line:
            usage = read_usage(line[5:].strip())
            if usage is not None:
                return usage
    cut = _LAST_USAGE.findall(lines[0]) if len(tail) == TAIL_BYTES else []
    return Usage(prompt_tokens=int(cut[-1][0]), completion_tokens=int(cut[-1][1])) if cut else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFormat:
    """How a wire format streams: `token` is found once for each token, after an event that says so before it.

    `complete` matches what only whole answers end with, `failed` an event that says that there will be no more. `usage`
    reads the end of a stream in which so many tokens were found. An engine that answers 200 whatever happens has a
    `failure`, which tells of an event whether it reports one.
    """

    token: bytes
    complete: re.Pattern[bytes]
    failed: re.Pattern[bytes]
    usage: Callable[[bytes, int], Usage | None] = last_usage
    failure: Callable[[bytes], Failure | None] | None = None


OPENAI: Final = StreamFormat(
    token=b"\ndata:", complete=re.compile(rb"\ndata: ?\[DONE\]"), failed=re.compile(rb'\ndata: ?\{"error"')
)


def first_event(block: bytes) -> bytes | None:
    """The first whole event that is more than comments, without the blank line at its end; None while there is none."""
    start = 0
    for end in _EVENT_END.finditer(block):
        event = block[start : end.start()]
        if _NO_COMMENT.search(event):
            return event
        start = end.end()
    return None


def read_usage(answer: bytes) -> Usage | None:
    """The usage block of one JSON answer or event, None when it carries none."""
    try:
        read = _answers.decode(answer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    usage = read.usage
    if usage is None and read.response is not None:
        usage = read.response.usage
    return None if usage is None else _usage_of(usage)


def _usage_of(usage: _UsageFields) -> Usage | None:
    if usage.prompt_tokens is not None:
        return Usage(prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens or 0)
    if usage.input_tokens is None or usage.output_tokens is None:
        return None
    # What came out of a cache is named apart from the rest in the form that `messages` has.
    cached = (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    return Usage(prompt_tokens=usage.input_tokens + cached, completion_tokens=usage.output_tokens)


class StreamReader:
    """Counts tokens as raw blocks pass. With one token an event, events are tokens over all sequences."""

    def __init__(self, form: StreamFormat = OPENAI) -> None:
        self.events = 0
        self._form = form
        # As if an event had just ended.
        self._tail = b"\n\n"

    def feed(self, block: bytes) -> None:
        """Take note of a block; it may begin and end anywhere."""
        # Enough of what was before to recognise a marker that the block boundary cuts, and no whole marker.
        joined = self._tail[-(len(self._form.token) - 1) :] + block
        self.events += joined.count(self._form.token)
        self._tail = (self._tail + block)[-TAIL_BYTES:]

    @property
    def at_boundary(self) -> bool:
        """Whether the stream stands between two events, so that another can be appended."""
        return self._tail.endswith((b"\n\n", b"\r\n\r\n"))

    @property
    def complete(self) -> bool:
        """Whether the success terminator has passed."""
        return self._form.complete.search(self._tail) is not None

    @property
    def failed(self) -> bool:
        """Whether the engine said in the stream that it could not go on."""
        return self._form.failed.search(self._tail) is not None

    def usage(self) -> Usage | None:
        """What the stream has told of its usage."""
        return self._form.usage(self._tail, self.events)
