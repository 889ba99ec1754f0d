"""Width and height a picture states in its first bytes, and the length of a plain recording. Nothing is decoded.

The client wrote those bytes, so a size counts only when everything up to the pixel data was seen: a file may state its
size again, and decoders take the last. Of several the largest counts.
"""

import base64
import binascii
import struct
from collections.abc import Iterator

# Base64 characters looked at, whatever the payload's length; a multiple of 4.
PEEK_CHARACTERS = 4096
_MAX_MARKERS = 64
_FRAME_MARKERS = frozenset({*range(0xC0, 0xD0), 0xDE} - {0xC4, 0xC8, 0xCC})
# Segments every decoder skips by their length; behind any other marker one may look where another does not.
_SKIPPED_MARKERS = frozenset({0xC4, 0xDB, 0xDC, 0xDD, *range(0xE0, 0xF0), 0xFE})
_SCAN_MARKER = 0xDA
_WAV_HEADER_BYTES = 44

Size = tuple[int, int]


def peek(payload: bytes) -> bytes:
    """The first bytes of a base64 payload; empty when it is not base64."""
    head = payload[:PEEK_CHARACTERS]
    try:
        return base64.b64decode(head[: len(head) // 4 * 4], validate=True)
    except binascii.Error:
        return b""


def picture_size(head: bytes) -> Size | None:
    """Width and height of a PNG, JPEG or WebP, None when they cannot be told."""
    try:
        sizes = list(_stated(head))
    except (struct.error, _UnknownError):
        return None
    return (max(width for width, _ in sizes), max(height for _, height in sizes)) if sizes else None


def wav_seconds(head: bytes, payload_bytes: int) -> float | None:
    """At most how long a plain PCM recording is, None for anything else."""
    if len(head) < _WAV_HEADER_BYTES or head[:4] != b"RIFF" or head[8:20] != b"WAVEfmt \x10\x00\x00\x00":
        return None
    form, channels, rate = struct.unpack_from("<HHI", head, 20)
    (bits,) = struct.unpack_from("<H", head, 34)
    bytes_per_second: int = channels * rate * bits // 8
    if form != 1 or head[36:40] != b"data" or not bytes_per_second:
        return None
    return payload_bytes / bytes_per_second


class _UnknownError(Exception):
    """The size cannot be told from what was seen."""


def _stated(head: bytes) -> Iterator[Size]:
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        yield from _png(head)
    elif head.startswith(b"\xff\xd8"):
        yield from _jpeg(head)
    elif head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        yield _webp(head)


def _png(head: bytes) -> Iterator[Size]:
    at = 8
    for _ in range(_MAX_MARKERS):
        length, kind = struct.unpack_from(">I4s", head, at)
        if kind == b"IDAT":
            return
        if kind == b"IHDR":
            yield struct.unpack_from(">II", head, at + 8)
        at += 12 + length
    raise _UnknownError


def _jpeg(head: bytes) -> Iterator[Size]:
    at = 2
    for _ in range(_MAX_MARKERS):
        fill, marker, length = struct.unpack_from(">BBH", head, at)
        if fill != 0xFF or length < 2:
            raise _UnknownError
        if marker == _SCAN_MARKER:
            return
        if marker in _FRAME_MARKERS:
            height, width = struct.unpack_from(">HH", head, at + 5)
            yield width, height
        elif marker not in _SKIPPED_MARKERS:
            raise _UnknownError
        at += 2 + length
    raise _UnknownError


def _webp(head: bytes) -> Size:
    kind = head[12:16]
    if kind == b"VP8X":
        wide, high = head[24:27], head[27:30]
        if len(high) == 3:
            return int.from_bytes(wide, "little") + 1, int.from_bytes(high, "little") + 1
    elif kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", head, 26)
        return width & 0x3FFF, height & 0x3FFF
    elif kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", head, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    raise _UnknownError
