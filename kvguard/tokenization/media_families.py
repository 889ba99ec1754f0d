"""How each family of models turns pictures, recordings and videos into tokens.

The rules are those of vLLM 0.32's processors (`model_executor/models/`) with the numbers of the published preprocessor
configurations. Owns formulas and the table; must not know what a request looks like.
"""

import math
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Protocol

# vLLM reads so many frames of a video unless the request may, and does, ask for more.
_FRAMES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaTokens:
    """Tokens to expect, and the bound that admission makes room for."""

    expected_tokens: int
    upper_tokens: int

    def __add__(self, other: "MediaTokens") -> "MediaTokens":
        return MediaTokens(
            expected_tokens=self.expected_tokens + other.expected_tokens,
            upper_tokens=self.upper_tokens + other.upper_tokens,
        )


NO_TOKENS = MediaTokens(expected_tokens=0, upper_tokens=0)


class PictureRule(Protocol):
    """How a family turns a picture into tokens."""

    def of_size(self, width: int, height: int) -> int:
        """At most how many tokens a picture of this size has."""
        ...

    def largest(self) -> int:
        """At most how many tokens any picture has."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedPicture:
    """The same tokens for every picture."""

    tokens: int

    def of_size(self, width: int, height: int) -> int:
        return self.tokens

    def largest(self) -> int:
        return self.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class CellPicture:
    """One token per cell, after the picture was scaled to a number of pixels between two limits (Qwen-VL)."""

    cell: int
    min_pixels: int
    max_pixels: int

    def of_size(self, width: int, height: int) -> int:
        if max(width, height) > 200 * min(width, height):
            return self.largest()  # such a picture is refused
        columns, rows = round(width / self.cell), round(height / self.cell)
        pixels = columns * rows * self.cell**2
        if pixels > self.max_pixels:
            shrink = math.sqrt(width * height / self.max_pixels)
            columns = max(math.floor(width / shrink / self.cell), 1)
            rows = max(math.floor(height / shrink / self.cell), 1)
        elif pixels < self.min_pixels:
            grow = math.sqrt(self.min_pixels / (width * height))
            columns, rows = math.ceil(width * grow / self.cell), math.ceil(height * grow / self.cell)
        return columns * rows

    def largest(self) -> int:
        return self.max_pixels // self.cell**2


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPicture:
    """One token per cell and one at the end of each row, the longer side scaled down to a limit (Pixtral)."""

    cell: int
    max_side: int

    def of_size(self, width: int, height: int) -> int:
        scale = max(width / self.max_side, height / self.max_side, 1.0)
        columns, rows = math.ceil(width / scale / self.cell), math.ceil(height / scale / self.cell)
        return (columns + 1) * rows

    def largest(self) -> int:
        return self.of_size(self.max_side, self.max_side)


@dataclass(frozen=True, slots=True, kw_only=True)
class TilePicture:
    """Tiles of a fixed number of tokens, and an overview where `overview_tokens` are (Llama 4, InternVL, Phi-4).

    `exact` families cover the picture with as few tiles as go; others choose by its shape and may take up to
    `max_tiles` for any size. `tile_tokens` includes the separators of a tile.
    """

    side: int
    tile_tokens: int
    max_tiles: int
    overview_tokens: int
    exact: bool = False

    def of_size(self, width: int, height: int) -> int:
        tiles = math.ceil(width / self.side) * math.ceil(height / self.side)
        return self._of(tiles if self.exact and tiles <= self.max_tiles else self.max_tiles)

    def largest(self) -> int:
        return self._of(self.max_tiles)

    def _of(self, tiles: int) -> int:
        return tiles * self.tile_tokens + self.overview_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioRule:
    """Tokens a second, up to the longest recording the family cuts to or is made for; some pad to whole chunks."""

    tokens_per_second: float
    max_seconds: float
    padded_to_seconds: float = 1.0

    def of_length(self, seconds: float) -> int:
        """At most how many tokens a recording of this length has."""
        padded = math.ceil(seconds / self.padded_to_seconds) * self.padded_to_seconds
        return math.ceil(min(padded, self.max_seconds) * self.tokens_per_second) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaFamily:
    """The rules of one family of models; a kind it cannot read is refused by the engine and counts as the default's."""

    name: str
    patterns: tuple[str, ...]
    picture: PictureRule
    audio: AudioRule = AudioRule(tokens_per_second=50.0, max_seconds=120.0)
    video: MediaTokens = MediaTokens(expected_tokens=4096, upper_tokens=16_384)
    file: MediaTokens = MediaTokens(expected_tokens=1024, upper_tokens=16_384)


_QWEN2_VL = CellPicture(cell=28, min_pixels=56 * 56, max_pixels=16_384 * 28 * 28)
_QWEN3_VL = CellPicture(cell=32, min_pixels=64 * 32 * 32, max_pixels=16_384 * 32 * 32)
_QWEN_AUDIO = AudioRule(tokens_per_second=25.0, max_seconds=300.0)
# Two frames make one grid of at most a picture's tokens.
_QWEN2_VIDEO = MediaTokens(expected_tokens=6000, upper_tokens=_FRAMES // 2 * 16_384)
# The limit of 25165824 pixels holds for two frames' worth of the whole video; each grid has a time stamp.
_QWEN3_VIDEO = MediaTokens(expected_tokens=6000, upper_tokens=12_288 + _FRAMES // 2 * 16)

# In the order they are tried, the more special pattern first; matched against the model's name in lower case.
FAMILIES: tuple[MediaFamily, ...] = (
    MediaFamily(
        name="qwen3-omni", patterns=("*qwen3-omni*",), picture=_QWEN3_VL, audio=_QWEN_AUDIO, video=_QWEN2_VIDEO
    ),
    MediaFamily(
        name="qwen2.5-omni", patterns=("*qwen2.5-omni*",), picture=_QWEN2_VL, audio=_QWEN_AUDIO, video=_QWEN2_VIDEO
    ),
    MediaFamily(name="qwen3-vl", patterns=("*qwen3*vl*", "*qwen3.5*"), picture=_QWEN3_VL, video=_QWEN3_VIDEO),
    MediaFamily(name="qwen2-vl", patterns=("*qwen2*vl*", "*qvq*"), picture=_QWEN2_VL, video=_QWEN2_VIDEO),
    MediaFamily(
        name="qwen2-audio",
        patterns=("*qwen2-audio*",),
        picture=FixedPicture(tokens=1024),
        audio=AudioRule(tokens_per_second=25.0, max_seconds=30.0),
    ),
    MediaFamily(
        name="gemma-3n",
        patterns=("*gemma-3n*", "*gemma3n*"),
        picture=FixedPicture(tokens=260),
        audio=AudioRule(tokens_per_second=6.25, max_seconds=30.0, padded_to_seconds=30.0),
    ),
    MediaFamily(name="gemma-3", patterns=("*gemma-3*", "*gemma3*"), picture=FixedPicture(tokens=260)),
    MediaFamily(
        name="llama-4",
        patterns=("*llama-4*", "*llama4*"),
        picture=TilePicture(side=336, tile_tokens=145, max_tiles=16, overview_tokens=148, exact=True),
    ),
    MediaFamily(
        name="llama-3.2-vision",
        patterns=("*llama-3.2*vision*",),
        picture=TilePicture(side=560, tile_tokens=1601, max_tiles=4, overview_tokens=1),
    ),
    MediaFamily(name="pixtral", patterns=("*pixtral*",), picture=RowPicture(cell=16, max_side=1024)),
    MediaFamily(
        name="mistral-3",
        patterns=("*mistral-small-3*", "*mistral-medium-3*", "*mistral3*", "*magistral*", "*ministral-3*"),
        picture=RowPicture(cell=28, max_side=1540),
    ),
    MediaFamily(
        name="llava-onevision",
        patterns=("*llava-onevision*",),
        picture=FixedPicture(tokens=7371),
        video=MediaTokens(expected_tokens=_FRAMES * 196, upper_tokens=_FRAMES * 196 + 1),
    ),
    MediaFamily(name="llava-next", patterns=("*llava-v1.6*", "*llava-next*"), picture=FixedPicture(tokens=2928)),
    MediaFamily(name="llava", patterns=("*llava*",), picture=FixedPicture(tokens=576)),
    MediaFamily(
        name="internvl",
        patterns=("*internvl*",),
        picture=TilePicture(side=448, tile_tokens=256, max_tiles=12, overview_tokens=258),
        video=MediaTokens(expected_tokens=_FRAMES * 256, upper_tokens=_FRAMES * (256 + 12)),
    ),
    MediaFamily(
        name="phi-4-multimodal",
        patterns=("*phi-4-m*", "*phi4mm*"),
        picture=TilePicture(side=448, tile_tokens=272, max_tiles=36, overview_tokens=273, exact=True),
        audio=AudioRule(tokens_per_second=12.5, max_seconds=2400.0),
    ),
    MediaFamily(
        name="voxtral",
        patterns=("*voxtral*",),
        picture=FixedPicture(tokens=1024),
        audio=AudioRule(tokens_per_second=12.5, max_seconds=2400.0, padded_to_seconds=30.0),
    ),
    MediaFamily(
        name="ultravox",
        patterns=("*ultravox*",),
        picture=FixedPicture(tokens=1024),
        audio=AudioRule(tokens_per_second=6.3, max_seconds=2400.0, padded_to_seconds=30.0),
    ),
    MediaFamily(
        name="whisper",
        patterns=("*whisper*",),
        picture=FixedPicture(tokens=1024),
        audio=AudioRule(tokens_per_second=50.0, max_seconds=30.0, padded_to_seconds=30.0),
    ),
)

# Above all families but Qwen-VL and Phi-4, whose names say so.
UNKNOWN_FAMILY = MediaFamily(name="unknown", patterns=("*",), picture=FixedPicture(tokens=8192))


def family_of(model: str) -> MediaFamily:
    """The family a model's name tells, else the unknown one."""
    matching = (one for one in FAMILIES if any(fnmatchcase(model.lower(), pattern) for pattern in one.patterns))
    return next(matching, UNKNOWN_FAMILY)


def family_named(name: str) -> MediaFamily:
    """A family by its own name. Raises KeyError when there is none."""
    return {family.name: family for family in (*FAMILIES, UNKNOWN_FAMILY)}[name]
