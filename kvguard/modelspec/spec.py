"""What a token costs in each layer, in bytes of one whole replica. Names follow vllm/v1/kv_cache_interface.py.

Logical sizes only: how an engine rounds them to blocks, and what it holds during a prefill, is the engine's rule.
"""

from dataclasses import dataclass


def _require_positive(owner: object, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        if value is not None and value < 1:
            raise ValueError(f"{name}: must be at least 1, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """One layer: K and V of `num_kv_heads` heads, `head_size` elements each. No `sliding_window`: full attention."""

    num_kv_heads: int
    head_size: int
    dtype_bytes: int
    sliding_window: int | None = None

    def __post_init__(self) -> None:
        _require_positive(self, "num_kv_heads", "head_size", "dtype_bytes", "sliding_window")

    def bytes_per_token(self) -> int:
        """K and V of one held token: 2 * Hkv * D * s."""
        return 2 * self.num_kv_heads * self.head_size * self.dtype_bytes

    def bytes_for(self, tokens: int) -> int:
        """Bytes of a sequence of `tokens` once settled: a window of W holds min(T, W) tokens."""
        held_tokens = tokens if self.sliding_window is None else min(tokens, self.sliding_window)
        return held_tokens * self.bytes_per_token()


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheSpec:
    """Every layer that holds KV, in model order."""

    layers: tuple[LayerSpec, ...]

    def bytes_per_token(self) -> int:
        """Growth per token while a sequence is shorter than every window."""
        return sum(layer.bytes_per_token() for layer in self.layers)

    def bytes_for(self, tokens: int) -> int:
        """Bytes of one settled sequence that holds `tokens` tokens (prompt + generated - 1)."""
        if tokens < 0:
            raise ValueError(f"tokens: must not be negative, got {tokens}")
        return sum(layer.bytes_for(tokens) for layer in self.layers)

    def block_bytes(self, block_size: int) -> int:
        """Bytes of one block of `block_size` tokens across all layers."""
        if block_size < 1:
            raise ValueError(f"block_size: must be at least 1, got {block_size}")
        return block_size * self.bytes_per_token()
