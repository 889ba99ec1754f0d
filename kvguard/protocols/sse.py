"""Reading an OpenAI event stream while it passes: how many tokens went by, and the usage block at its end.

Nothing is parsed on the way: events are counted by their `data:` lines and only a bounded tail is kept.
"""

import re
from dataclasses import dataclass
from typing import Annotated

import msgspec

TAIL_BYTES = 16_384
_EVENT = b"\ndata:"
_DONE = re.compile(rb"\ndata: ?\[DONE\]")
_ERROR = re.compile(rb'\ndata: ?\{"error"')
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts as the engine reports them; completion tokens are summed over all sequences."""

    prompt_tokens: int
    completion_tokens: int


class _UsageFields(msgspec.Struct):
    prompt_tokens: _Count
    completion_tokens: _Count = 0


class _Answer(msgspec.Struct):
    usage: _UsageFields | None = None


_answers = msgspec.json.Decoder(_Answer)


def read_usage(answer: bytes) -> Usage | None:
    """The usage block of one JSON answer or event, None when it carries none."""
    try:
        usage = _answers.decode(answer).usage
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if usage is None:
        return None
    return Usage(prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens)


class StreamReader:
    """Counts events as raw blocks pass. With one token an event, events are tokens over all sequences."""

    def __init__(self) -> None:
        self.events = 0
        # As if an event had just ended.
        self._tail = b"\n\n"

    def feed(self, block: bytes) -> None:
        """Take note of a block; it may begin and end anywhere."""
        # Enough of what was before to recognise a marker that the block boundary cuts, and no whole marker.
        joined = self._tail[-(len(_EVENT) - 1) :] + block
        self.events += joined.count(_EVENT)
        self._tail = (self._tail + block)[-TAIL_BYTES:]

    @property
    def at_boundary(self) -> bool:
        """Whether the stream stands between two events, so that another can be appended."""
        return self._tail.endswith((b"\n\n", b"\r\n\r\n"))

    @property
    def complete(self) -> bool:
        """Whether the success terminator has passed."""
        return _DONE.search(self._tail) is not None

    @property
    def failed(self) -> bool:
        """Whether the engine said in the stream that it could not go on."""
        return _ERROR.search(self._tail) is not None

    def usage(self) -> Usage | None:
        """The last usage block that passed."""
        for line in reversed(self._tail.split(b"\n")):
            if line.startswith(b"data:") and b'"usage"' in line:
                usage = read_usage(line[5:].strip())
                if usage is not None:
                    return usage
        return None
