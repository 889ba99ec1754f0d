"""What is built of one backend's settings: its state, its geometry, and how its engine is read."""

import dataclasses
from collections.abc import Callable, Mapping

from kvguard.admission.blocks import PoolLayout
from kvguard.admission.capacity import CapacityPolicy
from kvguard.admission.lengths import OutputLengths
from kvguard.backend_sections import BackendSettings
from kvguard.engines.kind import EngineKind
from kvguard.engines.reading import Reading, ServerFacts
from kvguard.engines.tgi import TgiServer, assumed, tgi_reading
from kvguard.engines.tgi_blocks import BLOCK_SIZES, TgiSettings, parse_version, tgi_layout
from kvguard.engines.vllm_blocks import BLOCK_SIZE, EngineSettings, vllm_layout
from kvguard.engines.vllm_models import vllm_reading
from kvguard.errors import SettingsError
from kvguard.estimate.cache import TgiHardware, tgi_cache_tokens
from kvguard.estimate.sizes import parse_size
from kvguard.estimate.source import find_source
from kvguard.modelspec.config import Serving, kv_cache_spec
from kvguard.pool.backend import Backend, new_backend
from kvguard.settings import Settings

LayoutOf = Callable[[int], PoolLayout]


def build_backend(
    settings: Settings,
    chosen: BackendSettings,
    layout_of: LayoutOf | None = None,
    lengths: OutputLengths | None = None,
) -> Backend:
    """A backend as the settings have it; nothing is known of its load. `layout_of` stands in for its geometry, and
    `lengths` is what others have learned for it.
    """
    layout_of = layout_of or layout_of_entry(chosen)
    capacity = CapacityPolicy(blocks=chosen.capacity_blocks, block_size=chosen.block_size, layout_of=layout_of)
    policy = settings.occupancy_policy(capacity)
    known = OutputLengths(settings.forecast.policy()) if lengths is None else lengths
    signals, health = settings.signal_policy(), settings.health.policy()
    backend = new_backend(chosen.label, chosen.base_url, policy, known, signals, health)
    backend.prompts = chosen.prompts
    backend.context_tokens, backend.max_num_seqs = chosen.context_tokens, chosen.engine.max_num_seqs
    backend.release = assumed_facts(chosen).release
    return backend


def layout_of_entry(chosen: BackendSettings) -> LayoutOf | None:
    """How the engine lays the model out, given the block size of its pool; None without the model's geometry."""
    if chosen.geometry is None:
        return None
    try:
        return layout_from(find_source(chosen.geometry).config, chosen)
    except ValueError as error:
        raise SettingsError([f"backends: {chosen.label}: geometry: {error}"]) from error


def layout_from(config: Mapping[str, object], chosen: BackendSettings) -> LayoutOf:
    """How the engine with these flags lays out the model of a `config.json`. Raises ValueError."""
    flags = chosen.engine
    serving = Serving(kv_cache_dtype=flags.kv_cache_dtype, mamba_ssm_cache_dtype=flags.mamba_ssm_cache_dtype)
    spec = kv_cache_spec(config, serving)
    names = {field.name for field in dataclasses.fields(EngineSettings)}
    engine = EngineSettings(**flags.model_dump(include=names))

    def layout_of(block_size: int) -> PoolLayout:
        if chosen.kind is EngineKind.TGI:
            return tgi_layout(spec, TgiSettings(block_size=block_size, num_shard=chosen.tgi.num_shard))
        return vllm_layout(spec, dataclasses.replace(engine, block_size=block_size))

    layout_of(BLOCK_SIZE)
    return layout_of


def reading_of(chosen: BackendSettings) -> Reading:
    """How the engine is asked about itself. Raises SettingsError for an estimate that cannot be made."""
    if chosen.kind is EngineKind.VLLM:
        return vllm_reading(kv_usage_metric=chosen.kv_usage_metric)
    return tgi_reading(tgi_server(chosen))


def assumed_facts(chosen: BackendSettings) -> ServerFacts:
    """What is taken of a server that nobody has asked. Raises SettingsError for an estimate that cannot be made."""
    return ServerFacts() if chosen.kind is EngineKind.VLLM else assumed(tgi_server(chosen))


def tgi_server(chosen: BackendSettings) -> TgiServer:
    """What the settings say of a TGI server. Raises SettingsError for an estimate that cannot be made."""
    flags = chosen.tgi
    size = chosen.block_size or (None if flags.attention is None else BLOCK_SIZES[flags.attention])
    return TgiServer(
        version=None if flags.version is None else parse_version(flags.version),
        block_size=size,
        speculate=flags.speculate,
        prefix_caching=flags.prefix_caching,
        sliding_window=flags.sliding_window,
        capacity_tokens=flags.max_batch_total_tokens,
        estimated_tokens=_estimated_tokens(chosen, size or 1),
    )


def _estimated_tokens(chosen: BackendSettings, block_size: int) -> int | None:
    """What model and memory make of the cache; None unless both are given."""
    flags, dtype = chosen.tgi, chosen.engine.kv_cache_dtype
    if flags.gpu_memory is None or chosen.geometry is None:
        return None
    hardware = TgiHardware(
        gpu_bytes=parse_size(flags.gpu_memory),
        overhead_bytes=parse_size(flags.overhead),
        weights_bytes=None if flags.weights == "auto" else parse_size(flags.weights),
        num_shard=flags.num_shard,
        block_size=block_size,
        kv_cache_dtype=dtype,
    )
    try:
        return tgi_cache_tokens(chosen.geometry, hardware)
    except ValueError as error:
        raise SettingsError([f"backends: {chosen.label}: tgi.gpu_memory: {error}"]) from error
