"""Taking out of an OpenAI stream the usage that kvguard asked for and the client did not.

vLLM puts `system_fingerprint` on the last chunk there is, so an event that ends a choice is kept back until it is known
whether the usage comes next; what passes is then the stream the client would have got. A client can do nothing with
half an event, so events pass whole. A server that tells usage to everybody does so in every chunk, and keeps doing it.
"""

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from kvguard.protocols.fields import opens

MAX_EVENT_BYTES: Final = 1024 * 1024  # of an event that is kept until it is whole; a longer one passes in parts

_EVENT_END = re.compile(rb"\r?\n\r?\n")
_CUT_END: Final = 3  # bytes of an event's end that may stand before a block that completes it
_DATA = re.compile(rb"^data:(.*)", re.MULTILINE)
_NO_COMMENT = re.compile(rb"^[^:\r\n]", re.MULTILINE)
_FINISHED = re.compile(rb'"finish_reason": ?"')
_USAGE = re.compile(rb'"usage": ?\{')
_FINGERPRINT: Final = "system_fingerprint"


class _Chunk(msgspec.Struct):
    choices: list[msgspec.Raw]
    usage: msgspec.Raw = msgspec.Raw(b"null")
    system_fingerprint: msgspec.Raw = msgspec.Raw(b"null")


_chunks = msgspec.json.Decoder(_Chunk)


class UsageChunkFilter:
    """Blocks go in as they arrive, and come out without the usage chunk.

    Of what has not ended only what a block brings is looked at: an event may come in any number of them.
    """

    def __init__(self) -> None:
        self._unfinished = bytearray()
        self._kept = b""
        # How much of the unfinished event has passed already, because it is too long to be kept.
        self._passed = 0
        self._told_anyway = False

    @property
    def between_events(self) -> bool:
        """Whether no half event has come, so that what is written now stands between two."""
        return not self._unfinished

    def feed(self, block: bytes) -> bytes:
        """What may pass now."""
        return b"".join(self._passing(block))

    def rest(self) -> bytes:
        """What was kept back, once nothing more comes."""
        rest = self._kept + self._unfinished[self._passed :]
        self._kept, self._passed = b"", 0
        self._unfinished.clear()
        return rest

    def _passing(self, block: bytes) -> Iterator[bytes]:
        seen = max(len(self._unfinished) - _CUT_END, 0)
        self._unfinished += block
        start = 0
        for end in [match.end() for match in _EVENT_END.finditer(self._unfinished, seen)]:
            event = bytes(self._unfinished[start + self._passed : end])
            yield from [event] if self._passed else self._event(event)
            start, self._passed = end, 0
        del self._unfinished[:start]
        if self._passed or len(self._unfinished) > MAX_EVENT_BYTES:
            yield self._kept + self._unfinished[self._passed :]
            self._kept = b""
            del self._unfinished[:-_CUT_END]
            self._passed = len(self._unfinished)

    def _event(self, event: bytes) -> Iterator[bytes]:
        if not _NO_COMMENT.search(event):
            yield event
            return
        reporting = _reporting_chunk(event)
        before, self._kept = self._kept, b""
        if reporting is not None and not reporting.choices and not self._told_anyway:
            yield _with_fingerprint(before, reporting)
            return
        self._told_anyway = self._told_anyway or reporting is not None
        yield before
        if _FINISHED.search(event):
            self._kept = event
        else:
            yield event


def _reporting_chunk(event: bytes) -> _Chunk | None:
    """The chunk, if it has usage."""
    data = _DATA.findall(event) if _USAGE.search(event) else []
    try:
        chunk = _chunks.decode(data[0]) if len(data) == 1 else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return None if chunk is None or not opens(chunk.usage, b"{") else chunk


def _with_fingerprint(event: bytes, usage: _Chunk) -> bytes:
    """The event with the fingerprint that stood on the chunk after it."""
    end = event.rfind(b"}")
    if not opens(usage.system_fingerprint, b'"') or end < 0 or f'"{_FINGERPRINT}"'.encode() in event:
        return event
    return event[:end] + f',"{_FINGERPRINT}":'.encode() + bytes(usage.system_fingerprint) + event[end:]
