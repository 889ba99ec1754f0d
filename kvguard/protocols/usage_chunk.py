"""Taking out of an OpenAI stream the usage that kvguard asked for and the client did not.

vLLM puts `system_fingerprint` on the last chunk there is, so an event that ends a choice is kept back until it is known
whether the usage comes next; what passes is then the stream the client would have got.
"""

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from kvguard.protocols.fields import opens

MAX_EVENT_BYTES: Final = 1024 * 1024  # of an event that is kept until it is whole; a longer one passes in parts

_EVENT_END = re.compile(rb"\r?\n\r?\n")
_FINISHED: Final = b'"finish_reason":"'
_CONTENT = re.compile(rb'"choices": ?\[ ?[^\]\s]')
_USAGE: Final = b'"usage"'
_FINGERPRINT: Final = "system_fingerprint"


class _Chunk(msgspec.Struct):
    choices: list[msgspec.Raw]
    usage: msgspec.Raw = msgspec.Raw(b"null")
    system_fingerprint: msgspec.Raw = msgspec.Raw(b"null")


_chunks = msgspec.json.Decoder(_Chunk)


class UsageChunkFilter:
    """Blocks go in as they arrive, and come out without the usage chunk."""

    def __init__(self) -> None:
        self._unfinished = b""
        self._kept = b""

    @property
    def between_events(self) -> bool:
        """Whether everything that came has passed, to the end of an event."""
        return not self._unfinished and not self._kept

    def feed(self, block: bytes) -> bytes:
        """What may pass now."""
        return b"".join(self._passing(self._unfinished + block))

    def rest(self) -> bytes:
        """What was kept back, once nothing more comes."""
        rest = self._kept + self._unfinished
        self._kept = self._unfinished = b""
        return rest

    def _passing(self, text: bytes) -> Iterator[bytes]:
        start = 0
        for end in _EVENT_END.finditer(text):
            yield from self._event(text[start : end.end()])
            start = end.end()
        self._unfinished = text[start:]
        # What has a choice is no usage chunk, so half of it may pass already.
        if _CONTENT.search(self._unfinished) or len(self._unfinished) > MAX_EVENT_BYTES:
            yield self.rest()

    def _event(self, event: bytes) -> Iterator[bytes]:
        usage = _usage_chunk(event)
        before, self._kept = self._kept, b""
        if usage is not None:
            yield _with_fingerprint(before, usage)
            return
        yield before
        if _FINISHED in event:
            self._kept = event
        else:
            yield event


def _usage_chunk(event: bytes) -> _Chunk | None:
    """The chunk, if it has usage and nothing else."""
    if _USAGE not in event or not event.startswith(b"data:"):
        return None
    try:
        chunk = _chunks.decode(event[len(b"data:") :])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return None if chunk.choices or not opens(chunk.usage, b"{") else chunk


def _with_fingerprint(event: bytes, usage: _Chunk) -> bytes:
    """The event with the fingerprint that stood on the chunk after it."""
    end = event.rfind(b"}")
    if not opens(usage.system_fingerprint, b'"') or end < 0 or f'"{_FINGERPRINT}"'.encode() in event:
        return event
    return event[:end] + f',"{_FINGERPRINT}":'.encode() + bytes(usage.system_fingerprint) + event[end:]
