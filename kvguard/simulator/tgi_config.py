"""The settings of one simulated TGI server, under the names of its launcher where it has them."""

import re
from dataclasses import dataclass

from kvguard.simulator.blocks import blocks_for

Version = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TgiSimConfig:
    """Everything a server is built from; by default the last release, with flashinfer's blocks of one token.

    `max_batch_total_tokens` is the size of its cache; 0 for `max_input_tokens` is one less than `max_total_tokens`.
    TGI would wait for ever with a full context its cache does not hold; this server does not start with one. A prefill
    of more than `prefill_limit_tokens` is one its GPU has no memory for, whatever the flags allow (0: none is): the
    shard dies, and the next is up `restart_seconds` later. Until then requests wait.
    """

    model: str = "sim-tgi"
    version: str = "3.3.6-dev0"
    block_size: int = 1
    max_batch_total_tokens: int = 8192
    max_total_tokens: int = 4096
    max_input_tokens: int = 0
    max_batch_prefill_tokens: int = 4096
    max_concurrent_requests: int = 128
    max_best_of: int = 2
    max_stop_sequences: int = 4
    max_client_batch_size: int = 4
    speculate: int = 0
    prefill_limit_tokens: int = 0
    restart_seconds: float = 5.0
    step_base_seconds: float = 0.015
    step_seconds_per_sequence: float = 0.0003
    prefill_seconds_per_token: float = 0.00004
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_input_tokens == 0:
            object.__setattr__(self, "max_input_tokens", self.max_total_tokens - 1)
        self._check_numbers()
        if re.match(r"\d+\.\d+\.\d+", self.version) is None:
            raise ValueError(f"version must be three numbers, got {self.version!r}")
        self._check_budgets()

    def _check_numbers(self) -> None:
        for name in (
            "block_size",
            "max_concurrent_requests",
            "max_best_of",
            "max_stop_sequences",
            "max_client_batch_size",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        seconds = (self.step_base_seconds, self.step_seconds_per_sequence, self.prefill_seconds_per_token)
        if min(*seconds, self.restart_seconds) < 0 or min(self.speculate, self.prefill_limit_tokens) < 0:
            raise ValueError("durations, speculate and prefill_limit_tokens must not be negative")

    def _check_budgets(self) -> None:
        if not 2 <= self.max_total_tokens <= self.max_batch_total_tokens:
            raise ValueError(f"max_total_tokens must be 2 to max_batch_total_tokens, got {self.max_total_tokens}")
        if not 1 <= self.max_input_tokens < self.max_total_tokens:
            raise ValueError(f"max_input_tokens must be 1 to max_total_tokens - 1, got {self.max_input_tokens}")
        if not self.max_input_tokens <= self.max_batch_prefill_tokens <= self.max_batch_total_tokens:
            raise ValueError("max_batch_prefill_tokens must be max_input_tokens to max_batch_total_tokens")
        splits = range(1, min(self.block_size, self.max_total_tokens - 1) + 1)
        needed = max(self.blocks(prompt_tokens=n, new_tokens=self.max_total_tokens - n) for n in splits)
        if needed > self.usable_blocks:
            raise ValueError(
                f"one generation of max_total_tokens={self.max_total_tokens} may need {needed} blocks, "
                f"max_batch_total_tokens={self.max_batch_total_tokens} has {self.usable_blocks}"
            )

    @property
    def release(self) -> Version:
        """The version's numbers."""
        major, minor, patch = (int(part) for part in re.findall(r"\d+", self.version)[:3])
        return major, minor, patch

    @property
    def usable_blocks(self) -> int:
        """Blocks for requests; one is kept for health checks."""
        return self.max_batch_total_tokens // self.block_size - 1

    def blocks(self, *, prompt_tokens: int, new_tokens: int) -> int:
        """What a generation reserves; before 2.3 prompt, output and speculation are rounded up each."""
        size = self.block_size
        if self.release < (2, 3, 0):
            return blocks_for(prompt_tokens, size) + blocks_for(new_tokens, size) + blocks_for(self.speculate, size)
        return blocks_for(prompt_tokens + new_tokens - 1 + self.speculate, size)
