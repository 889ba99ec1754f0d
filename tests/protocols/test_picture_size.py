"""What the first bytes of a picture or a recording state."""

import base64
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvguard.protocols.picture_size import PEEK_CHARACTERS, Size, peek, picture_size, wav_seconds
from tests.kit.properties import deterministic


def png(*sizes: Size, before_data: bytes = b"", end: bytes = b"IDAT") -> bytes:
    headers = b"".join(struct.pack(">I4sII5xI", 13, b"IHDR", width, height, 0) for width, height in sizes)
    return b"\x89PNG\r\n\x1a\n" + headers + before_data + struct.pack(">I4s", 1, end)


def jpeg(*segments: bytes) -> bytes:
    return b"\xff\xd8" + b"".join(segments) + b"\xff\xda\x00\x02"


def frame(width: int, height: int, marker: int = 0xC0) -> bytes:
    return struct.pack(">BBHBHH", 0xFF, marker, 8, 8, height, width) + b"\x00"


def webp(kind: bytes, body: bytes) -> bytes:
    return b"RIFF\x00\x00\x00\x00WEBP" + kind + b"\x00\x00\x00\x00" + body


SEGMENT = b"\xff\xe0\x00\x04ab"


@pytest.mark.parametrize(
    ("head", "size"),
    [
        (png((640, 480)), (640, 480)),
        (png((640, 480), before_data=struct.pack(">I4s2sI", 2, b"gAMA", b"ab", 0)), (640, 480)),
        (png((640, 480), (100, 5000)), (640, 5000)),
        (png(), None),
        (png((640, 480), end=b"gAMA"), None),
        (png((640, 480))[:20], None),
        (png(*[(1, 1)] * 64), None),
        (jpeg(SEGMENT, frame(640, 480)), (640, 480)),
        (jpeg(frame(640, 480, 0xC2), SEGMENT, frame(1000, 10, 0xCF)), (1000, 480)),
        (jpeg(SEGMENT), None),
        (jpeg(frame(640, 480, 0xC4)), None),
        (jpeg(b"\xff\xe0\x00\x01"), None),
        (jpeg(frame(640, 480), b"\xff\xff\x00\x04ab"), None),
        (jpeg(frame(640, 480), b"\xff\xcc\x00\x04ab"), None),
        (jpeg(frame(640, 480, 0xDE)), (640, 480)),
        (jpeg(b"\x00\xe0\x00\x04ab"), None),
        (jpeg(*[SEGMENT] * 64), None),
        (jpeg(frame(640, 480))[:9], None),
        (jpeg(frame(640, 480))[:12], None),
        (webp(b"VP8X", b"\x00" * 4 + b"\x7f\x02\x00" + b"\xdf\x01\x00"), (640, 480)),
        (webp(b"VP8X", b"\x00" * 4 + b"\x7f\x02\x00" + b"\xdf\x01"), None),
        (webp(b"VP8 ", b"\x00" * 6 + struct.pack("<HH", 640 | 0x4000, 480)), (640, 480)),
        (webp(b"VP8 ", b"\x00" * 6), None),
        (webp(b"VP8L", b"\x2f" + struct.pack("<I", 639 | 479 << 14)), (640, 480)),
        (webp(b"VP8L", b"\x2f"), None),
        (webp(b"ALPH", b"\x00" * 20), None),
        (b"GIF89a\x80\x02\xe0\x01", None),
        (b"RIFF\x00\x00\x00\x00WAVE", None),
        (b"", None),
    ],
)
def test_sizes(head: bytes, size: Size | None) -> None:
    """Only with all that comes before the pixels; of several statements the largest; frames of a GIF may be larger."""
    assert picture_size(head) == size


def wav(form: int = 1, channels: int = 1, rate: int = 16_000, bits: int = 16, data: bytes = b"data") -> bytes:
    form_chunk = struct.pack("<4sIHHIIHH", b"fmt ", 16, form, channels, rate, 0, 0, bits)
    return b"RIFF\x00\x00\x00\x00WAVE" + form_chunk + data + b"\x00\x00\x00\x00"


@pytest.mark.parametrize(
    ("head", "seconds"),
    [
        (wav(), 10.0),
        (wav(channels=2), 5.0),
        (wav(rate=8000, bits=8), 40.0),
        (wav(form=3), None),
        (wav(rate=0), None),
        (wav(data=b"LIST"), None),
        (wav()[:-1], None),
        (b"fLaC" + b"\x00" * 60, None),
        (b"", None),
    ],
)
def test_seconds_of_a_plain_recording(head: bytes, seconds: float | None) -> None:
    """Bytes over bytes a second, as the samples say it and not the header's own rate."""
    assert wav_seconds(head, 320_000) == seconds


def test_a_peek() -> None:
    """A bounded number of characters is looked at, whatever comes after them."""
    payload = base64.b64encode(bytes(range(256)) * 40)
    assert peek(payload) == (bytes(range(256)) * 40)[: PEEK_CHARACTERS // 4 * 3]
    assert peek(payload[:PEEK_CHARACTERS] + b"!") == peek(payload)
    assert peek(b"AAAAB") == b"\x00\x00\x00"
    assert peek(b"A!AA") == peek(b"\\/AA") == peek(b"") == b""


@deterministic
@given(st.sampled_from([b"", png(), b"\xff\xd8", webp(b"VP8 ", b"")]), st.binary(max_size=200))
def test_any_bytes(start: bytes, rest: bytes) -> None:
    """Whatever the bytes, there is an answer."""
    size = picture_size(start + rest)
    assert size is None or len(size) == 2
    assert wav_seconds(start + rest, 5) is None
