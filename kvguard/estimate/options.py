"""What was asked for on the command line, read and checked: every fault at once."""

import argparse
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final

from kvguard.engines.kind import EngineKind
from kvguard.engines.vllm_blocks import EngineSettings
from kvguard.errors import SettingsError
from kvguard.estimate.capacity import Request
from kvguard.estimate.sizes import parse_size
from kvguard.modelspec.dtype import Serving

AUTO: Final = "auto"
PLOT_FORMATS: Final = (".png", ".svg")
_MAX_TOKENS: Final = 1 << 24
_MAX_BATCH: Final = 1_000_000
_MAX_ITEMS: Final = 64
_MAX_GPUS: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOptions:
    """`weights_bytes` None: from the model."""

    gpu_bytes: int
    utilization: Fraction
    weights_bytes: int | None
    overhead_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`block_size` None: the engine's own. `max_num_seqs` None: no such limit."""

    configs: tuple[str, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    beams: int
    serving: Serving
    engine: EngineKind
    settings: EngineSettings
    block_size: int | None
    max_num_seqs: int | None
    request: Request | None
    memory: MemoryOptions | None
    bound: bool
    json: bool
    plot: Path | None


class _Reader:
    """Reads arguments and collects what is wrong with them."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self._chosen = chosen
        self.faults: list[str] = []

    def text(self, name: str) -> str | None:
        value = getattr(self._chosen, name)
        return None if value is None else str(value)

    def number(self, name: str, *, default: int = 0, least: int = 1, most: int = _MAX_TOKENS) -> int:
        text = self.text(name)
        return default if text is None else self._number(name, text, least=least, most=most)

    def numbers(self, name: str, *, most: int) -> tuple[int, ...]:
        texts = [part.strip() for part in (self.text(name) or "").split(",")]
        if len(texts) > _MAX_ITEMS:
            self.fault(name, f"expected at most {_MAX_ITEMS} numbers, got {len(texts)}")
            return ()
        return tuple(dict.fromkeys(self._number(name, text, least=1, most=most) for text in texts))

    def size(self, name: str, *, default: int = 0) -> int:
        text = self.text(name)
        if text is None:
            return default
        try:
            return parse_size(text)
        except ValueError as error:
            self.fault(name, str(error))
            return default

    def ratio(self, name: str) -> Fraction:
        text = self.text(name) or ""
        try:
            value = Fraction(text) if len(text) < _MAX_ITEMS and "e" not in text.lower() else Fraction(0)
        except (ValueError, ZeroDivisionError):
            value = Fraction(0)
        if not 0 < value <= 1:
            self.fault(name, f"expected a ratio above 0 and up to 1, got {text!r}")
        return value

    def fault(self, name: str, problem: str) -> None:
        self.faults.append(f"--{name.replace('_', '-')}: {problem}")

    def _number(self, name: str, text: str, *, least: int, most: int) -> int:
        digits = text.replace("_", "")
        value = int(digits) if digits.isascii() and digits.lstrip("-").isdigit() and len(digits) < _MAX_ITEMS else None
        if value is None or not least <= value <= most:
            self.fault(name, f"expected a whole number from {least} to {most}, got {text[:_MAX_ITEMS]!r}")
            return least
        return value


def read_options(chosen: argparse.Namespace) -> Options:
    """Raise SettingsError with every fault."""
    reader = _Reader(chosen)
    if not chosen.config:
        reader.faults.append("name a config.json, a directory with one, or a preset; --list prints the presets")
    engine = EngineKind(chosen.engine)
    options = Options(
        configs=tuple(dict.fromkeys(chosen.config)),
        batches=reader.numbers("batch", most=_MAX_BATCH),
        contexts=reader.numbers("context", most=_MAX_TOKENS),
        beams=reader.number("beams", default=1, most=1024),
        serving=Serving(
            kv_cache_dtype=chosen.kv_dtype.lower(), mamba_ssm_cache_dtype=chosen.mamba_dtype.lower(), mtp=chosen.mtp
        ),
        engine=engine,
        settings=_settings(reader, chosen),
        block_size=reader.number("block_size", most=1 << 16) or None,
        max_num_seqs=_max_num_seqs(reader, engine),
        request=_request(reader),
        memory=_memory(reader),
        bound=chosen.bound,
        json=chosen.json,
        plot=_plot(reader),
    )
    if reader.faults:
        raise SettingsError(list(dict.fromkeys(reader.faults)))
    return options


def _settings(reader: _Reader, chosen: argparse.Namespace) -> EngineSettings:
    defaults = EngineSettings()
    return EngineSettings(
        block_size=reader.number("block_size", default=defaults.block_size, most=1 << 16),
        max_num_batched_tokens=reader.number(
            "max_num_batched_tokens", default=defaults.max_num_batched_tokens, least=64
        ),
        enable_prefix_caching=not chosen.no_prefix_caching,
        disable_hybrid_kv_cache_manager=chosen.disable_hybrid_kv_cache_manager,
        num_speculative_tokens=reader.number("speculative_tokens", least=0, most=1024),
        tensor_parallel_size=reader.number("tp", default=1, most=_MAX_GPUS),
        pipeline_parallel_size=reader.number("pp", default=1, most=_MAX_GPUS),
    )


def _max_num_seqs(reader: _Reader, engine: EngineKind) -> int | None:
    """TGI has no such limit unless one is given."""
    if reader.text("max_num_seqs") is None:
        return 256 if engine is EngineKind.VLLM else None
    return reader.number("max_num_seqs", most=_MAX_BATCH)


def _request(reader: _Reader) -> Request | None:
    prompt, output = reader.text("prompt"), reader.text("output")
    if prompt is None and output is None:
        return None
    if prompt is None or output is None:
        reader.fault("prompt" if prompt is None else "output", "--prompt and --output are given together")
        return None
    return Request.of(prompt=reader.number("prompt", default=1), output=reader.number("output", default=1))


def _memory(reader: _Reader) -> MemoryOptions | None:
    if reader.text("gpu_memory") is None:
        for name in ("weights", "overhead", *(("prompt",) if reader.text("output") is not None else ())):
            if reader.text(name) is not None:
                reader.fault(name, "of use with --gpu-memory only")
        return None
    automatic = (reader.text("weights") or AUTO).lower() == AUTO
    return MemoryOptions(
        gpu_bytes=reader.size("gpu_memory"),
        utilization=reader.ratio("utilization"),
        weights_bytes=None if automatic else reader.size("weights"),
        overhead_bytes=reader.size("overhead"),
    )


def _plot(reader: _Reader) -> Path | None:
    text = reader.text("plot")
    if text is None:
        return None
    path = Path(text)
    if path.suffix.lower() not in PLOT_FORMATS:
        reader.fault("plot", f"expected a file ending in .png or .svg, got {text!r}")
    return path
