"""One CONFIG, estimated: its layers placed on the GPUs asked for, and the figures of every batch and context."""

from dataclasses import dataclass, replace
from typing import Final

from kvguard.admission.blocks import PoolLayout
from kvguard.engines.kind import EngineKind
from kvguard.engines.tgi_blocks import TgiSettings, UnsupportedTgiModel, tgi_layout
from kvguard.engines.vllm_blocks import UnsupportedLayout, vllm_layout
from kvguard.estimate.capacity import Capacity, Entry, Limits, Memory, Placed, Pool, Request, capacity, estimate
from kvguard.estimate.options import MemoryOptions, Options
from kvguard.estimate.sizes import format_size
from kvguard.estimate.source import Source, find_source
from kvguard.estimate.weights import UnknownWeights, Weights, automatic_weights
from kvguard.modelspec.config import UnsupportedConfig, kv_cache_spec, text_fields
from kvguard.modelspec.fields import Fields
from kvguard.modelspec.heads import HEADS
from kvguard.modelspec.spec import AttentionSpec, CrossAttentionSpec, KVCacheSpec, LatentSpec, StateSpec

POSITIONS: Final = ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len", "max_target_positions")
_UNCOUNTED: Final = "activations and CUDA graphs are not counted; --overhead sets them aside"


@dataclass(frozen=True, slots=True, kw_only=True)
class Memories:
    """The memory that was asked about and what it holds."""

    memory: Memory
    weights: Weights
    capacity: Capacity


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Everything the command says about one CONFIG. `spec` is the whole model, `placed` its share of one GPU."""

    name: str
    origin: str
    spec: KVCacheSpec
    placed: Placed
    max_position_embeddings: int | None
    entries: tuple[Entry, ...]
    memories: Memories | None
    notes: tuple[str, ...]


def build_model(argument: str, options: Options) -> Model:
    """Raise ValueError with the reason, starting with the CONFIG's name."""
    source = find_source(argument)
    try:
        return _build(source, options)
    except ValueError as error:
        raise ValueError(f"{argument}: {error}") from error


def _build(source: Source, options: Options) -> Model:
    spec = _spec(source, options)
    text = text_fields(Fields(source.config))
    _check_ranks(spec, text, options)
    kept, notes = _as_kept(spec, options)
    pool, more = _pool(kept, options)
    stages = kept.on_ranks(
        tensor_parallel_size=options.settings.tensor_parallel_size,
        pipeline_parallel_size=options.settings.pipeline_parallel_size,
    )
    placed = Placed(stages=stages, tensor_parallel_size=options.settings.tensor_parallel_size, pool=pool)
    positions = next((number for name in POSITIONS if (number := text.whole(name)) is not None), None)
    memories = None
    if options.memory is not None:
        memories = _memories(source, placed, positions, options.memory, options)
        more += () if options.memory.overhead_bytes else (_UNCOUNTED,)
    return Model(
        name=source.name,
        origin=source.origin,
        spec=spec,
        placed=placed,
        max_position_embeddings=positions,
        entries=tuple(
            estimate(placed, batch=batch, context=context, beams=options.beams)
            for batch in options.batches
            for context in options.contexts
        ),
        memories=memories,
        notes=(*notes, *_beyond(positions, options), *more),
    )


def _spec(source: Source, options: Options) -> KVCacheSpec:
    try:
        return kv_cache_spec(source.config, options.serving, bound=options.bound)
    except UnsupportedConfig as error:
        if options.bound or not _is_bounded(source, options):
            raise
        raise ValueError(f"{error}; --bound gives a stated upper bound") from error


def _is_bounded(source: Source, options: Options) -> bool:
    try:
        kv_cache_spec(source.config, options.serving, bound=True)
    except UnsupportedConfig:
        return False
    return True


def _check_ranks(spec: KVCacheSpec, text: Fields, options: Options) -> None:
    """What vLLM refuses: heads that do not split evenly, KV heads neither split nor copied evenly, empty stages."""
    ranks, stages = options.settings.tensor_parallel_size, options.settings.pipeline_parallel_size
    heads = text.first_whole(HEADS)
    if heads is not None and heads % ranks:
        raise ValueError(f"--tp {ranks} does not divide the {heads} attention heads")
    for kv_heads in sorted({cache.num_kv_heads for cache in spec.caches() if isinstance(cache, AttentionSpec)}):
        if kv_heads % ranks and ranks % kv_heads:
            raise ValueError(f"--tp {ranks} neither divides the {kv_heads} KV heads nor is a multiple of them")
        if options.engine is EngineKind.TGI and 1 < kv_heads < ranks:
            raise ValueError(f"TGI cannot split {kv_heads} KV heads over {ranks} GPUs")
    if stages > 1 and options.engine is EngineKind.TGI:
        raise ValueError(f"--pp {stages}: TGI has no pipeline parallelism")
    if stages > len(spec.layers):
        raise ValueError(f"--pp {stages} is more than the {len(spec.layers)} layers")


def _as_kept(spec: KVCacheSpec, options: Options) -> tuple[KVCacheSpec, tuple[str, ...]]:
    """The layers as the engine keeps them: with windows, or every token in every layer."""
    expanded = [c.expanded for c in spec.caches() if isinstance(c, LatentSpec) and c.expanded is not None]
    if expanded and options.engine is EngineKind.VLLM:
        token_bytes = sum(cache.bytes_per_token() for cache in expanded)
        return spec, (f"vLLM serves this model with ordinary attention: its blocks cost {token_bytes:,} B a token",)
    if all(cache.window is None for cache in spec.caches()):
        return spec, ()
    if options.engine is EngineKind.TGI:
        return spec.without_windows(), ("TGI keeps every token in every layer: windows save nothing",)
    stateless = [cache for cache in spec.caches() if not isinstance(cache, CrossAttentionSpec | StateSpec)]
    mixed = any(cache.window is None for cache in stateless)
    if mixed and options.settings.disable_hybrid_kv_cache_manager:
        return spec.without_windows(), ("without the hybrid KV cache manager windowed layers keep every token",)
    return spec, ()


def _pool(spec: KVCacheSpec, options: Options) -> tuple[Pool | None, tuple[str, ...]]:
    try:
        layout = (
            vllm_layout(spec, options.settings) if options.engine is EngineKind.VLLM else _tgi_layout(spec, options)
        )
    except (UnsupportedLayout, UnsupportedTgiModel) as error:
        return None, (f"blocks are not known: {error}; requests that fit are counted by bytes",)
    return (Pool(rule=layout.rule, block_bytes=layout.block_bytes), ()) if layout.block_bytes else (None, ())


def _tgi_layout(spec: KVCacheSpec, options: Options) -> PoolLayout:
    """TGI reserves the speculated tokens with the rest."""
    speculate = options.settings.num_speculative_tokens
    settings = TgiSettings(num_shard=options.settings.tensor_parallel_size, speculate=speculate)
    if options.block_size is not None:
        settings = replace(settings, block_size=options.block_size)
    layout = tgi_layout(spec, settings)
    return replace(layout, rule=replace(layout.rule, lookahead_tokens=speculate))


def _memories(
    source: Source, placed: Placed, positions: int | None, asked: MemoryOptions, options: Options
) -> Memories:
    weights = _weights(source, asked)
    memory = Memory(
        gpu_bytes=asked.gpu_bytes,
        utilization=asked.utilization,
        weights_bytes=weights.size,
        overhead_bytes=asked.overhead_bytes,
    )
    budget = memory.kv_budget(placed.gpus)
    if budget <= 0:
        needed = f"{format_size(memory.weights_on(placed.gpus))} of weights"
        needed += f" and {format_size(asked.overhead_bytes)} of overhead" if asked.overhead_bytes else ""
        share = f"{float(asked.utilization):g} x {format_size(asked.gpu_bytes)}"
        raise ValueError(f"{needed} leave nothing of {share} for KV on each of {placed.gpus} GPU(s)")
    limits = Limits(max_num_seqs=options.max_num_seqs, max_position_embeddings=positions, beams=options.beams)
    requests = [Request(prompt=context, tokens=context) for context in options.contexts]
    requests += [options.request] if options.request is not None else []
    return Memories(memory=memory, weights=weights, capacity=capacity(placed, memory, limits, requests))


def _weights(source: Source, asked: MemoryOptions) -> Weights:
    if asked.weights_bytes is not None:
        return Weights(size=asked.weights_bytes, basis="as given")
    try:
        return automatic_weights(source)
    except UnknownWeights as error:
        raise ValueError(f"--weights auto: {error}") from error


def _beyond(positions: int | None, options: Options) -> tuple[str, ...]:
    longest = max(options.contexts)
    if positions is None or longest <= positions:
        return ()
    return (f"the model ends at {positions:,} positions; figures beyond are arithmetic",)
