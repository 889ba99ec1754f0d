"""Groups of settings about counting prompts: counters, tokenizers, pictures and recordings."""

import enum
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator

from kvguard.section import PositiveInt, Seconds, Section
from kvguard.tokenization.media import MediaSetting
from kvguard.tokenization.media_families import FAMILIES, UNKNOWN_FAMILY

PartTokens = Annotated[int, Field(gt=0, le=10_000_000)]  # more than any model's context


class CounterChoice(enum.Enum):
    """Which counters are asked."""

    AUTO = "auto"
    LOCAL = "local"
    ENGINE = "engine"
    LEARNED = "learned"


class MediaSettings(Section):
    """What parts that are not text come to for some models. Without an entry the model's name tells its family."""

    models: str = "*"
    """Pattern of model names, with `*` and `?`, in upper or lower case. It matches the name in a request or any that
    this one stands for."""
    family: str | None = None
    """How the model turns pictures and recordings into tokens: qwen3-omni, qwen2.5-omni, qwen3-vl, qwen2-vl,
    qwen2-audio, gemma-3n, gemma-3, llama-4, llama-3.2-vision, pixtral, mistral-3, llava-onevision, llava-next, llava,
    internvl, phi-4-multimodal, voxtral, ultravox, whisper, or unknown, which allows for the largest of most. Without
    one the base model's name tells."""
    image: PartTokens | None = None
    """Tokens of every picture, whatever its size."""
    audio: PartTokens | None = None
    """Tokens of every recording."""
    video: PartTokens | None = None
    """Tokens of every video."""
    file: PartTokens | None = None
    """Tokens of every other file."""

    @field_validator("family")
    @classmethod
    def _known(cls, value: str | None) -> str | None:
        names = [family.name for family in (*FAMILIES, UNKNOWN_FAMILY)]
        if value is not None and value not in names:
            raise ValueError(f"must be one of {', '.join(names)}")
        return value

    def setting(self) -> MediaSetting:
        """The counter's value."""
        return MediaSetting(
            pattern=self.models,
            family=self.family,
            image=self.image,
            audio=self.audio,
            video=self.video,
            file=self.file,
        )


class TokenSettings(Section):
    """Counting prompts and assuming answers."""

    counter: CounterChoice = CounterChoice.AUTO
    """Who counts: local (the tokenizer here), engine (its `/tokenize`), learned (tokens per byte of earlier prompts),
    or auto, which asks them in this order. Where nobody can count, or not soon enough, what was learned stands in."""
    tokenizer: Path | None = None
    """Directory with `tokenizer.json` and chat template, for every model without one of its own."""
    tokenizers: dict[str, Path] = Field(default_factory=dict)
    """The same by model name, where backends serve several: any name a request may have, spelled alike. An adapter or
    an alias takes its own entry first, then that of the model it stands for."""
    aliases: dict[str, str] = Field(default_factory=dict)
    """Other names of a model, beside the adapters that `/v1/models` lists with their parent. One may stand for another
    or for an adapter."""
    media: tuple[MediaSettings, ...] = ()
    """Tokens of pictures, recordings and files; the first entry whose `models` matches counts."""
    exact_max_bytes: PositiveInt = 128 * 1024
    """A request whose prompts are above this together is admitted by what was learned, and so is one of more than 256
    conversations; the local tokenizer counts them meanwhile."""
    engine_max_bytes: PositiveInt = 64 * 1024
    """A request whose prompts are above this together, or more than 64, does not have them sent to `/tokenize`."""
    engine_timeout_seconds: Seconds = 1.0
    """Longest wait for `/tokenize`."""
    bytes_per_token: Annotated[float, Field(ge=0.5, le=16)] = 4.0
    """Bytes a token of usual text has, while nothing was learned; a third more tokens are allowed for."""
    assumed_output_tokens: PositiveInt = 512
    """Output to reserve for when a request names no cap and the engine's default is the rest of the context."""

    @field_validator("aliases")
    @classmethod
    def _no_circles(cls, aliases: dict[str, str]) -> dict[str, str]:
        circles = {tuple(sorted(circle)) for name in aliases if (circle := _circle(name, aliases))}
        if circles:
            raise ValueError(f"lead in a circle: {'; '.join(', '.join(circle) for circle in sorted(circles))}")
        return aliases


def _circle(name: str, aliases: dict[str, str]) -> list[str]:
    """The aliases that lead from this one back to it; none where they end."""
    led = [name]
    while (further := aliases.get(led[-1])) is not None and further not in led:
        led.append(further)
    return led if further == name else []
