"""The settings of one simulated engine, under vLLM's names where vLLM has them."""

from dataclasses import dataclass, fields
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

from kvguard.simulator.blocks import blocks_for
from kvguard.simulator.tgi_config import TgiSimConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SimConfig:
    """Everything an engine is built from.

    `num_gpu_blocks` contains the null block. `max_num_queued_reqs` bounds unfinished sequences, running ones included;
    beyond it the HTTP face answers vLLM's own 503. As vLLM does, it refuses a pool too small for one full context.
    Unlike vLLM it shares no prefixes unless told to.
    """

    model: str = "sim-tiny"
    block_size: int = 16
    num_gpu_blocks: int = 512
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    max_model_len: int = 4096
    max_num_queued_reqs: int = 4096
    enable_prefix_caching: bool = False
    step_base_seconds: float = 0.015
    step_seconds_per_sequence: float = 0.0003
    prefill_seconds_per_token: float = 0.00004
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("block_size", "max_num_seqs", "max_num_batched_tokens", "max_num_queued_reqs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.max_model_len < 2:
            raise ValueError(f"max_model_len must be at least 2, got {self.max_model_len}")
        if min(self.step_base_seconds, self.step_seconds_per_sequence, self.prefill_seconds_per_token) < 0:
            raise ValueError("step durations must not be negative")
        needed = blocks_for(self.max_model_len - 1, self.block_size)
        if needed > self.num_gpu_blocks - 1:
            raise ValueError(
                f"one sequence of max_model_len={self.max_model_len} needs {needed} blocks, "
                f"num_gpu_blocks={self.num_gpu_blocks} has {self.num_gpu_blocks - 1}"
            )


_TRUTH = {"true": True, "1": True, "false": False, "0": False}

AnyConfig = TypeVar("AnyConfig", SimConfig, TgiSimConfig)


def parse_sim_url(url: str, config: type[AnyConfig]) -> AnyConfig:
    """`sim://NAME?num_gpu_blocks=128&seed=1` -> that engine. Raises ValueError naming the field at fault."""
    kinds: dict[str, Any] = {field.name: type(field.default) for field in fields(config)}
    chosen: dict[str, Any] = {}
    for name, value in parse_qsl(urlsplit(url).query, keep_blank_values=True, strict_parsing=False):
        if name not in kinds:
            raise ValueError(f"no such setting: {name}; there are {', '.join(kinds)}")
        try:
            chosen[name] = _TRUTH[value.lower()] if kinds[name] is bool else kinds[name](value)
        except (ValueError, KeyError):
            raise ValueError(f"{name} must be a {kinds[name].__name__}") from None
    return config(**chosen)


def vllm_sim(url: str) -> SimConfig:
    """The engine behind a `sim://` address."""
    return parse_sim_url(url, SimConfig)


def tgi_sim(url: str) -> TgiSimConfig:
    """The server behind a `sim+tgi://` address."""
    return parse_sim_url(url, TgiSimConfig)
