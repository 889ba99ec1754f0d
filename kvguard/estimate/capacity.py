"""Bytes and blocks by batch and context, and how many requests a GPU's memory holds. Arithmetic only.

Tokens are those with KV: prompt + generated - 1. Bytes are one GPU's, the fullest pipeline stage's; `total_*` are all
GPUs'. A request fits only if its prefill does, beside the others as they are once settled.
"""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from kvguard.admission.blocks import BlockRule, Surge
from kvguard.modelspec.spec import KVCacheSpec

_SEARCH_LIMIT = 1 << 50


class Limit(enum.Enum):
    """What keeps one more request out."""

    KV_CACHE = "kv_cache"
    MAX_NUM_SEQS = "max_num_seqs"
    ONE_DOES_NOT_FIT = "one_request_does_not_fit"
    TOO_LONG = "max_position_embeddings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The engine's blocks: what a sequence holds, and what one costs on one GPU."""

    rule: BlockRule
    block_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A model on its GPUs: what one GPU of each stage keeps, and its block pool where the engine's is predictable."""

    stages: tuple[KVCacheSpec, ...]
    tensor_parallel_size: int
    pool: Pool | None

    @property
    def gpus(self) -> int:
        return len(self.stages) * self.tensor_parallel_size

    @property
    def windowed(self) -> bool:
        """Whether any layer gives old tokens up."""
        return any(cache.window is not None for stage in self.stages for cache in stage.caches())

    def fullest(self, tokens: int) -> KVCacheSpec:
        """The stage that holds most of a sequence of so many tokens."""
        return max(self.stages, key=lambda stage: stage.bytes_for(tokens) + stage.state_bytes())

    def without_windows(self) -> tuple[KVCacheSpec, ...]:
        return tuple(stage.without_windows() for stage in self.stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What `batch` requests of `context` tokens hold. `full_kv_bytes` is the KV if no layer had a window."""

    batch: int
    context: int
    sequences: int
    kv_bytes: int
    state_bytes: int
    full_kv_bytes: int
    total_kv_bytes: int
    total_state_bytes: int
    total_full_kv_bytes: int
    blocks: int | None
    peak_blocks: int | None

    @property
    def bytes(self) -> int:
        return self.kv_bytes + self.state_bytes

    @property
    def full_bytes(self) -> int:
        return self.full_kv_bytes + self.state_bytes

    @property
    def total_bytes(self) -> int:
        return self.total_kv_bytes + self.total_state_bytes

    @property
    def total_full_bytes(self) -> int:
        return self.total_full_kv_bytes + self.total_state_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt and the tokens with KV by its end."""

    prompt: int
    tokens: int
    output: int | None = None

    @classmethod
    def of(cls, *, prompt: int, output: int) -> "Request":
        """The last generated token is never fed back."""
        return cls(prompt=prompt, output=output, tokens=prompt + output - 1)

    @property
    def length(self) -> int:
        """Positions the model must be able to count."""
        return self.tokens if self.output is None else self.prompt + self.output


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How many such requests run at once, and what binds."""

    request: Request
    requests: int
    limit: Limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """One GPU's memory and the engine's share of it; `weights_bytes` are the whole model's."""

    gpu_bytes: int
    utilization: Fraction
    weights_bytes: int
    overhead_bytes: int

    def weights_on(self, gpus: int) -> int:
        """Weights of one GPU, split evenly."""
        return -(-self.weights_bytes // gpus)

    def kv_budget(self, gpus: int) -> int:
        """Bytes of one GPU that are left for KV; negative when the rest does not fit."""
        return int(self.gpu_bytes * self.utilization) - self.weights_on(gpus) - self.overhead_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Caps beside memory; None is none."""

    max_num_seqs: int | None
    max_position_embeddings: int | None
    beams: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What the memory of one GPU holds. `usable_blocks` is less the one block that engines keep to themselves."""

    kv_budget_bytes: int
    weights_per_gpu_bytes: int
    blocks: int | None
    longest_sequence_tokens: int | None
    fits: tuple[Fit, ...]

    @property
    def usable_blocks(self) -> int | None:
        return None if self.blocks is None else max(0, self.blocks - 1)


def estimate(placed: Placed, *, batch: int, context: int, beams: int) -> Entry:
    """Every sequence for itself: no prefix is shared, neither between requests nor between beams."""
    sequences = batch * beams
    stage, full = placed.fullest(context), placed.without_windows()
    blocks, peak = _blocks(placed.pool, context)
    shards = sequences * placed.tensor_parallel_size
    return Entry(
        batch=batch,
        context=context,
        sequences=sequences,
        kv_bytes=sequences * stage.bytes_for(context),
        state_bytes=sequences * stage.state_bytes(),
        full_kv_bytes=sequences * max(spec.bytes_for(context) for spec in full),
        total_kv_bytes=shards * sum(spec.bytes_for(context) for spec in placed.stages),
        total_state_bytes=shards * sum(spec.state_bytes() for spec in placed.stages),
        total_full_kv_bytes=shards * sum(spec.bytes_for(context) for spec in full),
        blocks=None if blocks is None else sequences * blocks,
        peak_blocks=None if peak is None else sequences * peak,
    )


def _blocks(pool: Pool | None, context: int) -> tuple[int | None, int | None]:
    """Blocks of one sequence once settled, and at most while it gets there."""
    if pool is None:
        return None, None
    settled = pool.rule.settled_blocks(context)
    return settled, max(settled, pool.rule.prefill_blocks(context))


def capacity(placed: Placed, memory: Memory, limits: Limits, requests: Sequence[Request]) -> Capacity:
    """Fill the memory with each kind of request in turn."""
    budget = memory.kv_budget(placed.gpus)
    blocks = longest = None
    if placed.pool is not None:
        blocks = max(0, budget) // placed.pool.block_bytes
        longest = placed.pool.rule.longest_sequence(max(0, blocks - 1))
    return Capacity(
        kv_budget_bytes=budget,
        weights_per_gpu_bytes=memory.weights_on(placed.gpus),
        blocks=blocks,
        longest_sequence_tokens=longest,
        fits=tuple(_fit(placed, budget, limits, request) for request in requests),
    )


def _fit(placed: Placed, budget: int, limits: Limits, request: Request) -> Fit:
    if limits.max_position_embeddings is not None and request.length > limits.max_position_embeddings:
        return Fit(request=request, requests=0, limit=Limit.TOO_LONG)
    sequences = _sequences_that_fit(placed, budget, request)
    held, allowed = sequences // limits.beams, limits.max_num_seqs
    if not held:
        return Fit(request=request, requests=0, limit=Limit.ONE_DOES_NOT_FIT)
    if allowed is not None and allowed // limits.beams < held:
        return Fit(request=request, requests=allowed // limits.beams, limit=Limit.MAX_NUM_SEQS)
    return Fit(request=request, requests=held, limit=Limit.KV_CACHE)


def _sequences_that_fit(placed: Placed, budget: int, request: Request) -> int:
    if placed.pool is None:
        stage = placed.fullest(request.tokens)
        return max(0, budget) // max(1, stage.bytes_for(request.tokens) + stage.state_bytes())
    rule = placed.pool.rule
    usable = max(0, budget // placed.pool.block_bytes - 1)
    held = rule.reached_blocks(request.tokens)
    surge = Surge(max(0, rule.prefill_blocks(request.prompt) - held), 1)
    return _last(lambda number: number * held + surge.times(number).shared(rule) <= usable)


def _last(holds: Callable[[int], bool]) -> int:
    """The largest number for which a condition holds that holds no more from some number on; 0 if never."""
    low, high = 0, 1
    while high < _SEARCH_LIMIT and holds(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
