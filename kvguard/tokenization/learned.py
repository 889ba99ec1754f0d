"""Tokens from bytes, by what the engine's own usage said of earlier prompts. Knows how wrong it may be.

One ratio for each model and kind of prompt, over its last answers: all their tokens over all their bytes. The error is
the share by which nearly every one of them had more tokens than that ratio gives. Until enough answers are known the
ratio and the error are those of usual text, on the high side. Pure: no clock, no I/O.
"""

import enum
import math
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Final

MAX_BYTES_PER_TOKEN: Final = 64.0  # no vocabulary is this good; a reply that says so counts another prompt


class PromptKind(enum.Enum):
    """What makes prompts alike: plain text, a conversation, one with tools."""

    TEXT = "text"
    CHAT = "chat"
    TOOLS = "tools"


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedPolicy:
    """How prompts are judged.

    `bytes_per_token` is that of usual text while nothing is known, `prior_error` the share it may be too low by;
    `min_answers` are needed before a ratio is believed, `window` the last ones that make it; `coverage` is the share of
    them the error covers. `max_ratios` bounds how many models and kinds are remembered. `overhead_tokens` are a chat
    template's own, while nothing is known.
    """

    bytes_per_token: float = 4.0
    prior_error: float = 0.34
    overhead_tokens: int = 16
    min_answers: int = 8
    window: int = 64
    coverage: float = 0.95
    max_ratios: int = 256


@dataclass(frozen=True, slots=True)
class LearnedCount:
    """Tokens of a prompt as learned, and how many more it may have."""

    tokens: int
    slack: int


class LearnedRatios:
    """What is known of each model and kind of prompt; the least recently heard of is forgotten first."""

    def __init__(self, policy: LearnedPolicy) -> None:
        self._policy = policy
        self._ratios: OrderedDict[tuple[str, PromptKind], _Ratio] = OrderedDict()

    def count(self, model: str, kind: PromptKind, size_bytes: int) -> LearnedCount:
        """Tokens of a prompt of so many bytes."""
        known = self._ratios.get((model, kind))
        if known is None or known.answers < self._policy.min_answers:
            return self._prior(kind, size_bytes)
        tokens = math.ceil(size_bytes * known.tokens_per_byte)
        return LearnedCount(tokens, math.ceil(tokens * known.error))

    def observe(self, model: str, kind: PromptKind, *, size_bytes: int, tokens: int) -> None:
        """Learn from an answer's usage; a figure that cannot be this prompt's teaches nothing."""
        if size_bytes < 1 or tokens < 1 or size_bytes > tokens * MAX_BYTES_PER_TOKEN:
            return
        key = (model, kind)
        known = self._ratios.get(key)
        if known is None:
            known = self._ratios[key] = _Ratio(self._policy)
        self._ratios.move_to_end(key)
        known.observe(size_bytes, tokens)
        while len(self._ratios) > self._policy.max_ratios:
            self._ratios.popitem(last=False)

    def _prior(self, kind: PromptKind, size_bytes: int) -> LearnedCount:
        overhead = 1 if kind is PromptKind.TEXT else self._policy.overhead_tokens
        tokens = int(size_bytes / self._policy.bytes_per_token) + overhead
        return LearnedCount(tokens, math.ceil(tokens * self._policy.prior_error))


class _Ratio:
    """The last answers to one kind of prompt, and what they come to."""

    def __init__(self, policy: LearnedPolicy) -> None:
        self._seen: deque[tuple[int, int]] = deque(maxlen=policy.window)
        self._coverage = policy.coverage
        self.tokens_per_byte = 0.0
        self.error = 0.0

    @property
    def answers(self) -> int:
        return len(self._seen)

    def observe(self, size_bytes: int, tokens: int) -> None:
        self._seen.append((size_bytes, tokens))
        self.tokens_per_byte = sum(tokens for _, tokens in self._seen) / sum(size for size, _ in self._seen)
        excess = sorted(tokens / (size * self.tokens_per_byte) - 1 for size, tokens in self._seen)
        covered = excess[math.ceil(self._coverage * len(excess)) - 1]
        self.error = max(0.0, covered)
