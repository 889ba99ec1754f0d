"""What a model keeps, in one line."""

from collections import Counter

from kvguard.estimate.sizes import format_size
from kvguard.modelspec.spec import (
    AttentionSpec,
    CompressedSpec,
    CrossAttentionSpec,
    IndexerSpec,
    KVCacheSpec,
    LatentSpec,
    LayerSpec,
    StateSpec,
)


def describe(spec: KVCacheSpec) -> str:
    """Family, layers and what they keep."""
    caches = Counter(spec.caches())
    parts = [f"{number} x {_shape(cache)}{_window(cache)}" for cache, number in caches.items()]
    empty = sum(not layer for layer in spec.layers)
    parts += [f"{empty} that keep nothing"] if empty else []
    return f"{spec.family}, {len(spec.layers)} layers: {', '.join(parts)}"


def _window(cache: LayerSpec) -> str:
    if cache.window is None:
        return ""
    chunked = isinstance(cache, AttentionSpec) and cache.attention_chunk_size is not None
    return f" in {'chunks' if chunked else 'a window'} of {cache.window:,}"


def _shape(cache: LayerSpec) -> str:
    match cache:
        case AttentionSpec(head_size_v=None):
            return f"{cache.num_kv_heads} KV heads of {cache.head_size}"
        case AttentionSpec():
            return f"{cache.num_kv_heads} KV heads of {cache.head_size} (K) and {cache.head_size_v} (V)"
        case LatentSpec():
            return f"a latent of {cache.latent_size} + {cache.rope_size}"
        case IndexerSpec():
            return f"an indexer key of {cache.head_size}" + _per(cache.ratio)
        case CompressedSpec():
            return f"a vector of {cache.latent_size}" + _per(cache.ratio)
        case StateSpec():
            return f"a constant state of {format_size(cache.state_bytes())}"
        case CrossAttentionSpec():
            length = f"{cache.encoder_tokens:,}" if cache.encoder_tokens is not None else "the request's"
            return f"cross-attention, {cache.num_kv_heads} KV heads of {cache.head_size}, {length} encoder tokens"


def _per(ratio: int) -> str:
    return f" per {ratio} tokens" if ratio > 1 else ""
