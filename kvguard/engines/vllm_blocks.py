"""How vLLM lays a model's layers out in its block pool. After vllm/v1/core/kv_cache_utils.py of 0.32.

Layers are bucketed by kind, window and size. The pool's blocks are `group size` layers wide: the smallest bucket, or
the largest if that is less than half as large again. A bucket of n layers makes `ceil(n / size)` groups with a block
table each; missing layers are padding. Every group's page costs the same: a smaller geometry gets larger blocks, and
constant state is padded to a page of attention, whose blocks grow until the state fits.
"""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Final

from kvguard.admission.blocks import BlockGroup, BlockRule, PoolLayout, blocks_for
from kvguard.modelspec.spec import (
    AttentionSpec,
    CompressedSpec,
    CrossAttentionSpec,
    KVCacheSpec,
    LatentSpec,
    LayerSpec,
    StateSpec,
    pipeline_stages,
)

BLOCK_SIZE: Final = 16
STEP_TOKENS: Final = 8192

# Attention blocks that must hold a state grow in steps of the block size asked for, and of these at least.
_ALIGNMENT: Final = 16
_LATENT_ALIGNMENT: Final = 128
_WIDE_BUCKET: Final = 1.5


class UnsupportedLayout(ValueError):
    """A model whose blocks vLLM cannot be predicted to lay out; the bytes are still right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """vLLM's own settings that decide over blocks, under the names of its flags.

    `num_speculative_tokens` are the look-ahead slots of EAGLE, MTP and draft models; n-gram speculation has none.
    """

    block_size: int = BLOCK_SIZE
    max_num_batched_tokens: int = STEP_TOKENS
    enable_prefix_caching: bool = True
    disable_hybrid_kv_cache_manager: bool = False
    num_speculative_tokens: int = 0
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    decode_context_parallel_size: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What makes layers alike: how long they keep tokens, and what a token or the state costs."""

    token_bytes: int
    latent: bool = False
    state_bytes: int = 0
    sliding_window: int | None = None
    attention_chunk_size: int | None = None

    @property
    def keeps(self) -> tuple[int | None, int | None]:
        return self.sliding_window, self.attention_chunk_size


def vllm_layout(spec: KVCacheSpec, settings: EngineSettings = EngineSettings()) -> PoolLayout:
    """Lay out a whole model; sizes of one GPU. Raise UnsupportedLayout for what vLLM 0.32 keeps in ways of its own."""
    rank = replace(
        spec,
        layers=tuple(tuple(c.on_rank(settings.tensor_parallel_size) for c in layer) for layer in spec.layers),
    )
    buckets = Counter(_kind(cache) for cache in rank.caches() if not isinstance(cache, CrossAttentionSpec))
    if settings.disable_hybrid_kv_cache_manager:
        buckets = _without_windows(buckets)
    if len({kind.keeps for kind in buckets}) <= 1 and not any(kind.state_bytes for kind in buckets):
        layout = _one_group(rank, buckets, settings)
    else:
        layout = _groups(buckets, settings)
    encoder_blocks = _encoder_blocks(rank, settings)
    return replace(layout, rule=replace(layout.rule, state_blocks=layout.rule.state_blocks + encoder_blocks))


def _kind(cache: LayerSpec) -> _Kind:
    if isinstance(cache, CompressedSpec):
        raise UnsupportedLayout("compressed KV lies in blocks of several sizes")
    cache = _as_served(cache)
    window = cache.sliding_window if isinstance(cache, AttentionSpec | LatentSpec) else None
    chunk = cache.attention_chunk_size if isinstance(cache, AttentionSpec) else None
    state = cache.state_bytes() if isinstance(cache, StateSpec) else 0
    return _Kind(
        token_bytes=cache.bytes_per_token(),
        latent=isinstance(cache, LatentSpec),
        state_bytes=state,
        sliding_window=window,
        attention_chunk_size=chunk,
    )


def _as_served(cache: LayerSpec) -> LayerSpec:
    return cache.expanded if isinstance(cache, LatentSpec) and cache.expanded is not None else cache


def _without_windows(buckets: Counter[_Kind]) -> Counter[_Kind]:
    """Sliding and chunked layers beside full ones keep all tokens; layers that all slide keep their window."""
    if all(kind.state_bytes or kind.keeps != (None, None) for kind in buckets):
        return buckets
    merged: Counter[_Kind] = Counter()
    for kind, layers in buckets.items():
        merged[replace(kind, sliding_window=None, attention_chunk_size=None)] += layers
    return merged


def _one_group(spec: KVCacheSpec, buckets: Counter[_Kind], settings: EngineSettings) -> PoolLayout:
    """All layers keep the same tokens: one block table, whatever the sizes of its layers."""
    kind = next(iter(buckets), None)
    size = settings.block_size * settings.decode_context_parallel_size
    groups = () if kind is None else (_group(kind, size, 1),)
    stages = pipeline_stages(len(spec.layers), settings.pipeline_parallel_size)
    token_bytes = max(sum(_as_served(c).bytes_per_token() for i in stage for c in spec.layers[i]) for stage in stages)
    return PoolLayout(rule=_rule(groups, 0, settings), block_bytes=settings.block_size * token_bytes)


def _groups(buckets: Counter[_Kind], settings: EngineSettings) -> PoolLayout:
    attention = [kind for kind in buckets if not kind.state_bytes]
    states = [kind for kind in buckets if kind.state_bytes]
    block_size = _block_size(attention, states, settings)
    pages = [block_size * kind.token_bytes for kind in attention] + [kind.state_bytes for kind in states]
    page = max(pages, default=0)
    width = _group_size(list(buckets.values()))
    groups = tuple(
        _group(
            kind,
            _grown(block_size, block_size * kind.token_bytes, page) * settings.decode_context_parallel_size,
            blocks_for(buckets[kind], width),
        )
        for kind in attention
    )
    state_groups = sum(blocks_for(buckets[kind], width) for kind in states)
    return PoolLayout(
        rule=_rule(groups, state_groups, settings),
        block_bytes=blocks_for(width, settings.pipeline_parallel_size) * page,
    )


def _block_size(attention: list[_Kind], states: list[_Kind], settings: EngineSettings) -> int:
    """Attention blocks grow until one layer's page holds the largest state."""
    state, token = max((k.state_bytes for k in states), default=0), max((k.token_bytes for k in attention), default=0)
    if not state or not token:
        return settings.block_size
    least = _LATENT_ALIGNMENT if any(kind.latent for kind in attention) else _ALIGNMENT
    step = max(settings.block_size, least)
    return step * blocks_for(state, step * token)


def _grown(block_size: int, own_page: int, page: int) -> int:
    """Tokens of a block once its page costs as much as the largest; a page that does not divide it is padded."""
    return block_size * (page // own_page) if page % own_page == 0 else block_size


def _group_size(bucket_sizes: list[int]) -> int:
    smallest, largest = min(bucket_sizes), max(bucket_sizes)
    return largest if largest < smallest * _WIDE_BUCKET else smallest


def _group(kind: _Kind, block_size: int, count: int) -> BlockGroup:
    return BlockGroup(
        block_size=block_size,
        count=count,
        sliding_window=kind.sliding_window,
        attention_chunk_size=kind.attention_chunk_size,
    )


def _rule(groups: tuple[BlockGroup, ...], state_groups: int, settings: EngineSettings) -> BlockRule:
    return BlockRule(
        groups=groups,
        state_blocks=state_groups,
        spanning_state_blocks=state_groups if settings.enable_prefix_caching else 0,
        step_tokens=settings.max_num_batched_tokens,
        lookahead_tokens=settings.num_speculative_tokens,
    )


def _encoder_blocks(spec: KVCacheSpec, settings: EngineSettings) -> int:
    """Blocks of an encoder output of fixed length. One whose length the request decides cannot be counted ahead."""
    lengths = {cache.encoder_tokens for cache in spec.caches() if isinstance(cache, CrossAttentionSpec)}
    if None in lengths:
        raise UnsupportedLayout("the length of the encoder's input is the request's")
    return sum(blocks_for(tokens, settings.block_size) for tokens in lengths if tokens is not None)
