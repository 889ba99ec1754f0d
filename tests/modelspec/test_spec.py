"""Arithmetic of layers and models, without any config file."""

import pytest

from kvguard.modelspec.spec import KVCacheSpec, LayerSpec

FULL = LayerSpec(num_kv_heads=2, head_size=16, dtype_bytes=2)
SLIDING = LayerSpec(num_kv_heads=2, head_size=16, dtype_bytes=2, sliding_window=100)


def test_a_token_costs_k_and_v_of_every_head() -> None:
    """Bytes per token of a layer are 2 * Hkv * D * s."""
    assert FULL.bytes_per_token() == 2 * 2 * 16 * 2


@pytest.mark.parametrize(("tokens", "held_tokens"), [(0, 0), (1, 1), (99, 99), (100, 100), (101, 100), (10_000, 100)])
def test_a_window_holds_no_more_than_its_width(tokens: int, held_tokens: int) -> None:
    """A sliding layer holds min(T, W) tokens; a full layer holds them all."""
    assert SLIDING.bytes_for(tokens) == held_tokens * 128
    assert FULL.bytes_for(tokens) == tokens * 128


def test_a_model_is_the_sum_of_its_layers() -> None:
    """Layers of different kinds add up, each by its own rule; the bytes per token are those below every window."""
    spec = KVCacheSpec(layers=(FULL, SLIDING, SLIDING))
    assert spec.bytes_per_token() == 3 * 128
    assert spec.bytes_for(50) == 3 * 50 * 128
    assert spec.bytes_for(150) == (150 + 2 * 100) * 128


def test_a_block_spans_every_layer() -> None:
    """The toy geometry of the field cases: 2 layers, blocks of 16 tokens, 4096 bytes per block."""
    assert KVCacheSpec(layers=(FULL, FULL)).block_bytes(16) == 4096


def test_a_model_without_kv_costs_nothing() -> None:
    """No layers, no bytes."""
    assert KVCacheSpec(layers=()).bytes_for(1000) == 0


@pytest.mark.parametrize("name", ["num_kv_heads", "head_size", "dtype_bytes", "sliding_window"])
def test_a_layer_of_nothing_is_an_error(name: str) -> None:
    """Zero or less of any dimension is refused by name and value."""
    dimensions = {"num_kv_heads": 2, "head_size": 16, "dtype_bytes": 2, "sliding_window": 4, name: 0}
    with pytest.raises(ValueError, match=f"{name}: must be at least 1, got 0"):
        LayerSpec(**dimensions)


def test_sizes_out_of_range_are_errors() -> None:
    """A negative length and an empty block are mistakes of the caller, not zero bytes."""
    spec = KVCacheSpec(layers=(FULL,))
    with pytest.raises(ValueError, match="tokens: must not be negative, got -1"):
        spec.bytes_for(-1)
    with pytest.raises(ValueError, match="block_size: must be at least 1, got 0"):
        spec.block_bytes(0)
