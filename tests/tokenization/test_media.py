"""Tokens of pictures, recordings and videos per family of models."""

import base64
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvguard.protocols.fields import read_fields
from kvguard.protocols.media import MediaKind, MediaPart, apart
from kvguard.tokenization.media import MediaAllowance, MediaSetting
from kvguard.tokenization.media_families import (
    FAMILIES,
    NO_TOKENS,
    UNKNOWN_FAMILY,
    AudioRule,
    CellPicture,
    MediaTokens,
    RowPicture,
    TilePicture,
    family_named,
    family_of,
)
from tests.kit.properties import deterministic

QWEN2 = CellPicture(cell=28, min_pixels=3136, max_pixels=12_845_056)
O18_CHARACTERS = 2_500_000


def tokens(part: MediaPart, model: str | None, *settings: MediaSetting) -> tuple[int, int]:
    found = MediaAllowance(settings).of([part], [model or ""])
    return found.expected_tokens, found.upper_tokens


def picture(width: int | None = None, height: int | None = None) -> MediaPart:
    return MediaPart(kind=MediaKind.IMAGE, width=width, height=height)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Qwen/Qwen2-VL-7B-Instruct", "qwen2-vl"),
        ("Qwen/Qwen2.5-VL-72B-Instruct-AWQ", "qwen2-vl"),
        ("Qwen/Qwen3-VL-30B-A3B-Instruct", "qwen3-vl"),
        ("Qwen/Qwen2.5-Omni-7B", "qwen2.5-omni"),
        ("Qwen/Qwen3-Omni-30B-A3B", "qwen3-omni"),
        ("Qwen/Qwen2-Audio-7B-Instruct", "qwen2-audio"),
        ("google/gemma-3-27b-it", "gemma-3"),
        ("google/gemma-3n-E4B-it", "gemma-3n"),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "llama-4"),
        ("meta-llama/Llama-3.2-11B-Vision-Instruct", "llama-3.2-vision"),
        ("mistralai/Pixtral-12B-2409", "pixtral"),
        ("mistralai/Mistral-Small-3.1-24B-Instruct-2503", "mistral-3"),
        ("llava-hf/llava-1.5-7b-hf", "llava"),
        ("llava-hf/llava-v1.6-mistral-7b-hf", "llava-next"),
        ("llava-hf/llava-onevision-qwen2-7b-ov-hf", "llava-onevision"),
        ("OpenGVLab/InternVL3-8B", "internvl"),
        ("microsoft/Phi-4-multimodal-instruct", "phi-4-multimodal"),
        ("openai/whisper-large-v3", "whisper"),
        ("mistralai/Voxtral-Mini-3B-2507", "voxtral"),
        ("fixie-ai/ultravox-v0_5", "ultravox"),
        ("meta-llama/Llama-3.1-8B", "unknown"),
        ("", "unknown"),
    ],
)
def test_families_by_name(model: str, name: str) -> None:
    """The published names of models tell their family."""
    assert family_of(model).name == name
    assert family_named(name) is family_of(model)


@pytest.mark.parametrize(
    ("model", "size", "expected"),
    [
        ("qwen2-vl", (224, 224), 64),
        ("qwen2-vl", (1024, 1024), 37 * 37),
        ("qwen2-vl", (28, 28), 4),
        ("qwen2-vl", (10_000, 10_000), 127 * 127),
        ("qwen3-vl", (256, 256), 64),
        ("qwen3-vl", (1024, 1024), 1024),
        ("gemma-3-4b", (5000, 10), 260),
        ("llama-4", (336, 336), 145 + 148),
        ("llama-4", (337, 336), 2 * 145 + 148),
        ("llama-4", (10_000, 10_000), 16 * 145 + 148),
        ("llama-3.2-vision", (10, 10), 4 * 1601 + 1),
        ("pixtral", (1024, 1024), 64 * 65),
        ("pixtral", (2048, 1024), 32 * 65),
        ("pixtral", (16, 17), 2 * 2),
        ("mistral-small-3.1", (1540, 1540), 55 * 56),
        ("llava-1.5", (10, 10), 576),
        ("internvl", (448, 448), 12 * 256 + 258),
        ("phi-4-mm", (448, 448), 272 + 273),
        ("phi-4-mm", (4480, 4480), 36 * 272 + 273),
    ],
)
def test_pictures_of_known_size(model: str, size: tuple[int, int], expected: int) -> None:
    """By the family's own arithmetic, and then there is nothing left to be unsure of."""
    assert tokens(picture(*size), model) == (expected, expected)


@pytest.mark.parametrize(
    ("model", "expected", "upper"),
    [
        ("qwen2-vl", 27 * 27, 16_384),
        ("qwen3-vl", 24 * 24, 16_384),
        ("gemma-3", 260, 260),
        ("llama-4", 9 * 145 + 148, 16 * 145 + 148),
        ("pixtral", 48 * 49, 64 * 65),
        ("phi-4-mm", 4 * 272 + 273, 36 * 272 + 273),
        ("who-knows", 1024, 8192),
        (None, 1024, 8192),
    ],
)
@pytest.mark.parametrize("part", [picture(), picture(0, 5)])
def test_pictures_of_unknown_size(model: str | None, expected: int, upper: int, part: MediaPart) -> None:
    """The family's usual picture, and room for its largest."""
    assert tokens(part, model) == (expected, upper)


def test_an_unknown_family_ignores_the_size() -> None:
    """Nothing is known of what it does with one."""
    assert tokens(picture(10, 10), "who-knows") == (1024, 8192)


def test_a_picture_too_long_and_narrow() -> None:
    """The engine refuses it; until then it is as large as any."""
    assert QWEN2.of_size(201, 1) == QWEN2.largest() == 16_384
    assert (QWEN2.of_size(2735, 14), QWEN2.of_size(1, 9), QWEN2.of_size(776, 6)) == (28, 6, 23)


@pytest.mark.parametrize(
    ("model", "seconds", "expected", "upper"),
    [
        ("whisper", 1.0, 1501, 1501),
        ("whisper", 300.0, 1501, 1501),
        ("whisper", None, 1501, 1501),
        ("qwen2-audio", 4.5, 126, 126),
        ("qwen2-audio", None, 751, 751),
        ("qwen2.5-omni", None, 751, 7501),
        ("phi-4-multimodal", 8.0, 101, 101),
        ("voxtral", 31.0, 751, 751),
        ("gemma-3n", 1.0, 189, 189),
        ("who-knows", None, 1501, 6001),
    ],
)
def test_recordings(model: str, seconds: float | None, expected: int, upper: int) -> None:
    """Tokens a second, in whole chunks where the family pads, up to its longest."""
    assert tokens(MediaPart(kind=MediaKind.AUDIO, seconds=seconds), model) == (expected, upper)


@pytest.mark.parametrize(
    ("kind", "model", "expected", "upper"),
    [
        (MediaKind.VIDEO, "qwen2-vl", 6000, 262_144),
        (MediaKind.VIDEO, "qwen3-vl", 6000, 12_544),
        (MediaKind.VIDEO, "internvl", 8192, 8576),
        (MediaKind.VIDEO, "who-knows", 4096, 16_384),
        (MediaKind.FILE, "qwen2-vl", 1024, 16_384),
    ],
)
def test_videos_and_files(kind: MediaKind, model: str, expected: int, upper: int) -> None:
    """So many frames as the engine reads by default, and a guess for files, which it reads none of."""
    assert tokens(MediaPart(kind=kind), model) == (expected, upper)


SETTINGS = (
    MediaSetting(pattern="Mine/*", image=300, audio=10, video=20, file=30),
    MediaSetting(pattern="served-as-*", family="gemma-3", audio=7),
    MediaSetting(pattern="plain*", family="unknown"),
    MediaSetting(pattern="mine/late", image=1),
)


@pytest.mark.parametrize(
    ("kind", "model", "expected", "upper"),
    [
        (MediaKind.IMAGE, "mine/late", 300, 300),
        (MediaKind.AUDIO, "mine/x", 10, 10),
        (MediaKind.VIDEO, "mine/x", 20, 20),
        (MediaKind.FILE, "mine/x", 30, 30),
        (MediaKind.IMAGE, "served-as-qwen2-vl", 260, 260),
        (MediaKind.AUDIO, "SERVED-AS-X", 7, 7),
        (MediaKind.IMAGE, "plain-qwen2-vl", 1024, 8192),
        (MediaKind.IMAGE, "gemma-3", 260, 260),
    ],
)
def test_what_an_operator_says(kind: MediaKind, model: str, expected: int, upper: int) -> None:
    """The first setting that matches counts: its tokens first, then its family, then the model's name."""
    assert tokens(MediaPart(kind=kind), model, *SETTINGS) == (expected, upper)


def test_a_family_there_is_not() -> None:
    """A misspelt family is an error, not a guess."""
    with pytest.raises(KeyError):
        tokens(picture(), "x", MediaSetting(pattern="*", family="no such"))


def test_several_parts() -> None:
    """They add up, and none is nothing."""
    parts = [picture(), picture(448, 448), MediaPart(kind=MediaKind.FILE)]
    total = MediaAllowance().of(parts, ["phi-4-multimodal"])
    assert total == MediaTokens(expected_tokens=1361 + 545 + 1024, upper_tokens=10_065 + 545 + 16_384)
    assert MediaAllowance().of([], ["x"]) == NO_TOKENS


def test_a_large_picture_inside_a_request() -> None:
    """A data URL of 2.5 million characters is a bounded number of tokens, and not by its length."""
    url = b"data:image/jpeg;base64," + b"A" * O18_CHARACTERS
    body = b'{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"%s"}}]}]}' % url
    found = MediaAllowance().of(apart(read_fields(body))[1], ["some-vision-model"])
    assert 0 < found.expected_tokens <= found.upper_tokens < 10_000


def test_a_picture_that_states_its_size() -> None:
    """The header alone makes the bound exact."""
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII5xI", 13, b"IHDR", 640, 480, 0) + struct.pack(">I4sx", 1, b"IDAT")
    url = b"data:image/png;base64," + base64.b64encode(head) + b"A" * 1000
    body = b'{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"%s"}}]}]}' % url
    found = MediaAllowance().of(apart(read_fields(body))[1], ["qwen2.5-vl-7b"])
    assert found == MediaTokens(expected_tokens=23 * 17, upper_tokens=23 * 17)


def test_text_beside_a_uuid_of_null_is_counted() -> None:
    """The engine keeps such a text, so it is no picture of 576 tokens."""
    part = {"type": "text", "text": "word " * 40_000, "uuid": None, "image_url": {"url": "https://x"}}
    fields, found = apart(read_fields(json.dumps({"messages": [{"role": "user", "content": [part]}]}).encode()))
    assert len(bytes(fields["messages"])) > 200_000
    assert MediaAllowance().of(found, ["llava"]) == NO_TOKENS


@pytest.mark.parametrize(
    ("url", "decoy", "expected", "upper"),
    [
        ("https://x/huge.jpg", {"data": "small"}, 27 * 27, 16_384),
        ("https://x/huge.jpg", {"image_url": {"url": "https://x/huge.jpg", "data": "small"}}, 27 * 27, 16_384),
        ("huge", {"file": "longer"}, 16_384, 16_384),
    ],
)
def test_the_size_of_a_decoy(url: str, decoy: dict[str, object], expected: int, upper: int) -> None:
    """Only the picture the engine reads is allowed for, whatever else is in the part."""
    sizes = {"small": (28, 28), "huge": (8000, 8000), "longer": (28, 28)}
    data = {name: f"data:image/png;base64,{_png(*size)}" for name, size in sizes.items()}
    data["longer"] += "A" * 1000
    text = json.dumps({"type": "image_url", "image_url": {"url": url}, **decoy})
    for name, value in data.items():
        text = text.replace(f'"{name}"', f'"{value}"')
    _, found = apart(read_fields(b'{"messages":[{"content":[%s]}]}' % text.encode()))
    allowed = MediaAllowance().of(found, ["qwen2.5-vl-7b"])
    assert (allowed.expected_tokens, allowed.upper_tokens) == (expected, upper)


def _png(width: int, height: int) -> str:
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII5xI", 13, b"IHDR", width, height, 0)
    return base64.b64encode(head + struct.pack(">I4sx", 1, b"IDAT")).decode()


@pytest.mark.parametrize("escape", ["/", "\\/", "\\u002f"])
def test_a_picture_with_escaped_slashes(escape: str) -> None:
    """A JPEG begins with one; its size is known however the client writes it."""
    head = b"\xff\xd8" + struct.pack(">BBHBHH", 0xFF, 0xC0, 8, 8, 480, 640) + b"\x00\xff\xda\x00\x02"
    url = f"data:image/jpeg;base64,{base64.b64encode(head).decode()}".replace("/", escape)
    assert escape in url
    body = b'{"messages":[{"content":[{"type":"image_url","image_url":{"url":"%s"}}]}]}' % url.encode()
    found = MediaAllowance().of(apart(read_fields(body))[1], ["qwen2.5-vl-7b"])
    assert found == MediaTokens(expected_tokens=23 * 17, upper_tokens=23 * 17)


SIDES = st.integers(min_value=1, max_value=2**32)


@deterministic
@given(st.sampled_from([*FAMILIES, UNKNOWN_FAMILY]), SIDES, SIDES)
def test_no_picture_is_more_than_the_largest(family: object, width: int, height: int) -> None:
    """Whatever the size, expected is at least one token and at most the bound, and the bound at most the family's."""
    allowance = MediaAllowance([MediaSetting(pattern="*", family=getattr(family, "name", None))])
    known, unknown = allowance.of([picture(width, height)], ["x"]), allowance.of([picture()], ["x"])
    assert 1 <= known.expected_tokens <= known.upper_tokens <= unknown.upper_tokens
    assert unknown.expected_tokens <= unknown.upper_tokens


@deterministic
@given(st.floats(min_value=0, max_value=1e9), st.floats(min_value=0, max_value=1e9))
def test_longer_recordings_are_not_less(one: float, other: float) -> None:
    """Tokens grow with the length up to the longest."""
    rule = AudioRule(tokens_per_second=12.5, max_seconds=600.0, padded_to_seconds=30.0)
    assert rule.of_length(min(one, other)) <= rule.of_length(max(one, other)) <= 7501


@deterministic
@given(
    SIDES,
    SIDES,
    st.sampled_from(
        [
            RowPicture(cell=16, max_side=1024),
            TilePicture(side=9, tile_tokens=3, max_tiles=5, overview_tokens=1, exact=True),
        ]
    ),
)
def test_pictures_are_bounded(width: int, height: int, rule: RowPicture | TilePicture) -> None:
    """No size has more tokens than the largest picture."""
    assert rule.of_size(width, height) <= rule.largest()
