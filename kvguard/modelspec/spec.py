"""What one sequence keeps in each layer, in bytes. Names follow vllm/v1/kv_cache_interface.py.

Logical sizes only: how an engine rounds them to blocks, and what it holds during a prefill, is the engine's rule.
Tokens are those with KV: prompt + generated - 1, because the last generated token is never fed back.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvguard.modelspec.formats import KVFormat


def _require(owner: object, *names: str, minimum: int = 1) -> None:
    for name in names:
        value = getattr(owner, name)
        if value is not None and value < minimum:
            raise ValueError(f"{name}: must be at least {minimum}, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """K and V of `num_kv_heads` heads. Full attention unless it slides or is chunked; at most one of the two.

    `head_size_v` is given where V has a width of its own.
    """

    num_kv_heads: int
    head_size: int
    format: KVFormat
    head_size_v: int | None = None
    sliding_window: int | None = None
    attention_chunk_size: int | None = None

    def __post_init__(self) -> None:
        _require(self, "num_kv_heads", "head_size", "head_size_v", "sliding_window", "attention_chunk_size")
        if self.sliding_window is not None and self.attention_chunk_size is not None:
            raise ValueError("attention_chunk_size: a layer that slides is not chunked")
        self.bytes_per_token()  # refuses a format that does not fit here and now

    @property
    def window(self) -> int | None:
        """Most tokens kept once settled; None keeps all."""
        return self.sliding_window if self.attention_chunk_size is None else self.attention_chunk_size

    def bytes_per_token(self) -> int:
        """K and V of one held token; 2 * Hkv * D * s in the plain case."""
        return self.num_kv_heads * self.format.head_bytes(self.head_size, self.head_size_v or self.head_size)

    def bytes_for(self, tokens: int) -> int:
        """A window of W keeps min(T, W) tokens."""
        return _held(tokens, self.window) * self.bytes_per_token()

    def state_bytes(self) -> int:
        return 0

    def on_rank(self, tensor_parallel_size: int) -> "AttentionSpec":
        """What one of so many GPUs keeps: whole heads, at least one, so few heads are replicated."""
        return replace(self, num_kv_heads=max(1, self.num_kv_heads // tensor_parallel_size))


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentSpec:
    """One vector per token, shared by all heads and holding K and V together (MLA): no factor 2, no split over GPUs.

    `expanded` is what vLLM keeps instead where it serves the model with ordinary attention.
    """

    latent_size: int
    rope_size: int
    format: KVFormat
    sliding_window: int | None = None
    expanded: AttentionSpec | None = None

    def __post_init__(self) -> None:
        _require(self, "latent_size", "sliding_window")
        _require(self, "rope_size", minimum=0)
        self.bytes_per_token()

    @property
    def window(self) -> int | None:
        return self.sliding_window

    def bytes_per_token(self) -> int:
        """(kv_lora_rank + qk_rope_head_dim) * s in the plain case."""
        return self.format.latent_bytes(self.latent_size, self.rope_size)

    def bytes_for(self, tokens: int) -> int:
        return _held(tokens, self.sliding_window) * self.bytes_per_token()

    def state_bytes(self) -> int:
        return 0

    def on_rank(self, tensor_parallel_size: int) -> "LatentSpec":
        """The whole latent on every GPU; heads of the expanded form are split."""
        return self if self.expanded is None else replace(self, expanded=self.expanded.on_rank(tensor_parallel_size))


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerSpec:
    """Keys of a sparse-attention indexer (DSA): 8 bits an element and one fp32 scale per 128, whatever the KV dtype.

    After DeepseekV32IndexerCache in vLLM 0.32. `ratio` tokens share one key where the index is compressed.
    """

    head_size: int
    ratio: int = 1

    def __post_init__(self) -> None:
        _require(self, "head_size", "ratio")

    @property
    def key_bytes(self) -> int:
        return self.head_size + 4 * -(-self.head_size // 128)

    @property
    def window(self) -> None:
        return None

    def bytes_per_token(self) -> int:
        """Mean growth, rounded up."""
        return -(-self.key_bytes // self.ratio)

    def bytes_for(self, tokens: int) -> int:
        return tokens // self.ratio * self.key_bytes

    def state_bytes(self) -> int:
        return 0

    def on_rank(self, tensor_parallel_size: int) -> "IndexerSpec":
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedSpec:
    """One vector for every `ratio` tokens (DeepSeek-V4)."""

    latent_size: int
    ratio: int
    format: KVFormat

    def __post_init__(self) -> None:
        _require(self, "latent_size", "ratio")
        self.bytes_per_token()

    @property
    def window(self) -> None:
        return None

    def bytes_per_token(self) -> int:
        """Mean growth, rounded up."""
        return -(-self.format.latent_bytes(self.latent_size, 0) // self.ratio)

    def bytes_for(self, tokens: int) -> int:
        return tokens // self.ratio * self.format.latent_bytes(self.latent_size, 0)

    def state_bytes(self) -> int:
        return 0

    def on_rank(self, tensor_parallel_size: int) -> "CompressedSpec":
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpec:
    """Constant state of a recurrent, linear-attention or short-convolution layer; a cache dtype does not shrink it."""

    conv_elements: int
    recurrent_elements: int
    conv_element_bytes: int
    recurrent_element_bytes: int

    def __post_init__(self) -> None:
        _require(self, "conv_elements", "recurrent_elements", minimum=0)
        _require(self, "conv_element_bytes", "recurrent_element_bytes")

    @property
    def window(self) -> None:
        return None

    def bytes_per_token(self) -> int:
        return 0

    def bytes_for(self, tokens: int) -> int:
        return 0

    def state_bytes(self) -> int:
        """Bytes of one sequence, however long."""
        conv = self.conv_elements * self.conv_element_bytes
        return conv + self.recurrent_elements * self.recurrent_element_bytes

    def on_rank(self, tensor_parallel_size: int) -> "StateSpec":
        """Channels and heads are split over the GPUs."""
        return replace(
            self,
            conv_elements=-(-self.conv_elements // tensor_parallel_size),
            recurrent_elements=-(-self.recurrent_elements // tensor_parallel_size),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossAttentionSpec:
    """K and V of an encoder's output: once per request, not growing. `encoder_tokens` where the length is fixed."""

    num_kv_heads: int
    head_size: int
    format: KVFormat
    encoder_tokens: int | None = None

    def __post_init__(self) -> None:
        _require(self, "num_kv_heads", "head_size", "encoder_tokens")

    @property
    def window(self) -> None:
        return None

    def bytes_per_token(self) -> int:
        return 0

    def bytes_for(self, tokens: int) -> int:
        return 0

    def bytes_per_encoder_token(self) -> int:
        return self.num_kv_heads * self.format.head_bytes(self.head_size, self.head_size)

    def state_bytes(self) -> int:
        """Constant only where the encoder's length is."""
        return (self.encoder_tokens or 0) * self.bytes_per_encoder_token()

    def on_rank(self, tensor_parallel_size: int) -> "CrossAttentionSpec":
        return replace(self, num_kv_heads=max(1, self.num_kv_heads // tensor_parallel_size))


LayerSpec = AttentionSpec | LatentSpec | IndexerSpec | CompressedSpec | StateSpec | CrossAttentionSpec
Layers = tuple[tuple[LayerSpec, ...], ...]


def _held(tokens: int, window: int | None) -> int:
    return tokens if window is None else min(tokens, window)


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheSpec:
    """Every decoder layer in model order, each with what it keeps: nothing, one cache or several.

    `family` names the file that understood the config. `assumptions` says what was assumed: of a model type that is not
    known, or where a bound was asked for instead of an error. Empty means that the numbers are exact.
    """

    layers: Layers
    family: str = ""
    assumptions: tuple[str, ...] = ()

    def caches(self) -> Iterator[LayerSpec]:
        """Every cache of every layer."""
        for layer in self.layers:
            yield from layer

    def bytes_per_token(self) -> int:
        """Growth per token while a sequence is shorter than every window: the token tax."""
        return sum(cache.bytes_per_token() for cache in self.caches())

    def settled_bytes_per_token(self) -> int:
        """Growth per token once a sequence is longer than every window."""
        return sum(cache.bytes_per_token() for cache in self.caches() if cache.window is None)

    def bytes_for(self, tokens: int) -> int:
        """KV of one settled sequence that holds `tokens` tokens (prompt + generated - 1), without constant state."""
        if tokens < 0:
            raise ValueError(f"tokens: must not be negative, got {tokens}")
        return sum(cache.bytes_for(tokens) for cache in self.caches())

    def state_bytes(self) -> int:
        """What one sequence keeps whatever its length."""
        return sum(cache.state_bytes() for cache in self.caches())

    def bytes_per_encoder_token(self) -> int:
        """KV of one token of an encoder whose input length is the request's; 0 without such an encoder."""
        return sum(
            cache.bytes_per_encoder_token()
            for cache in self.caches()
            if isinstance(cache, CrossAttentionSpec) and cache.encoder_tokens is None
        )

    def without_windows(self) -> "KVCacheSpec":
        """The same model on an engine that keeps every token in every layer."""
        return replace(self, layers=tuple(tuple(_unwindowed(cache) for cache in layer) for layer in self.layers))

    def on_ranks(self, *, tensor_parallel_size: int, pipeline_parallel_size: int = 1) -> "tuple[KVCacheSpec, ...]":
        """What one GPU of each pipeline stage keeps."""
        stages = pipeline_stages(len(self.layers), pipeline_parallel_size)
        return tuple(
            replace(
                self,
                layers=tuple(
                    tuple(cache.on_rank(tensor_parallel_size) for cache in self.layers[index]) for index in stage
                ),
            )
            for stage in stages
        )


def _unwindowed(cache: LayerSpec) -> LayerSpec:
    if isinstance(cache, AttentionSpec):
        return replace(cache, sliding_window=None, attention_chunk_size=None)
    return replace(cache, sliding_window=None) if isinstance(cache, LatentSpec) else cache


def pipeline_stages(num_layers: int, stages: int) -> tuple[range, ...]:
    """Layers of each stage, after get_pp_indices in vLLM: what is left over goes to the middle, from the end but one.

    61 layers over 4 stages are 15, 15, 16, 15. Raise ValueError when there are more stages than layers.
    """
    if not 1 <= stages <= num_layers:
        raise ValueError(f"pipeline stages: expected 1 to {num_layers}, got {stages}")
    sizes = [num_layers // stages] * stages
    for extra in range(num_layers % stages):
        sizes[-(extra + 2) if stages > 1 else 0] += 1
    ends = [sum(sizes[: index + 1]) for index in range(stages)]
    return tuple(range(end - size, end) for end, size in zip(ends, sizes, strict=True))
