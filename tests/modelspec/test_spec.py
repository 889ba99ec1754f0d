"""Arithmetic of layers and models, without any config file."""

import pytest

from kvguard.modelspec.fields import UnsupportedConfig
from kvguard.modelspec.formats import FORMATS, FP8, SIXTEEN_BIT
from kvguard.modelspec.spec import (
    AttentionSpec,
    CompressedSpec,
    CrossAttentionSpec,
    IndexerSpec,
    KVCacheSpec,
    LatentSpec,
    LayerSpec,
    StateSpec,
    pipeline_stages,
)

FULL = AttentionSpec(num_kv_heads=2, head_size=16, format=SIXTEEN_BIT)
SLIDING = AttentionSpec(num_kv_heads=2, head_size=16, format=SIXTEEN_BIT, sliding_window=100)
CHUNKED = AttentionSpec(num_kv_heads=2, head_size=16, format=SIXTEEN_BIT, attention_chunk_size=100)
LATENT = LatentSpec(latent_size=512, rope_size=64, format=SIXTEEN_BIT)
LATENT_SLIDING = LatentSpec(latent_size=512, rope_size=64, format=SIXTEEN_BIT, sliding_window=100)
INDEXER = IndexerSpec(head_size=128)
COMPRESSED = CompressedSpec(latent_size=512, ratio=4, format=SIXTEEN_BIT)
STATE = StateSpec(conv_elements=10, recurrent_elements=100, conv_element_bytes=2, recurrent_element_bytes=4)
CROSS = CrossAttentionSpec(num_kv_heads=2, head_size=16, format=SIXTEEN_BIT)
FIXED = CrossAttentionSpec(num_kv_heads=2, head_size=16, format=SIXTEEN_BIT, encoder_tokens=1500)


def model(*layers: LayerSpec) -> KVCacheSpec:
    return KVCacheSpec(layers=tuple((layer,) for layer in layers))


@pytest.mark.parametrize(
    ("cache", "per_token"),
    [
        (FULL, 2 * 2 * 16 * 2),
        (AttentionSpec(num_kv_heads=2, head_size=192, head_size_v=128, format=SIXTEEN_BIT), 2 * (192 + 128) * 2),
        (AttentionSpec(num_kv_heads=2, head_size=16, format=FP8), 2 * 2 * 16),
        (LATENT, (512 + 64) * 2),
        (LatentSpec(latent_size=512, rope_size=64, format=FORMATS["fp8_ds_mla"]), 656),
        (INDEXER, 132),
        (IndexerSpec(head_size=128, ratio=4), 33),
        (COMPRESSED, 512 * 2 // 4),
        (STATE, 0),
        (CROSS, 0),
    ],
)
def test_a_token_costs_what_its_kind_says(cache: LayerSpec, per_token: int) -> None:
    """Bytes per token of a layer are those of section 2 of the reference."""
    assert cache.bytes_per_token() == per_token


@pytest.mark.parametrize(("tokens", "held_tokens"), [(0, 0), (1, 1), (99, 99), (100, 100), (101, 100), (10_000, 100)])
def test_a_window_holds_no_more_than_its_width(tokens: int, held_tokens: int) -> None:
    """A sliding or chunked layer holds min(T, W) tokens; a full layer holds them all."""
    assert SLIDING.bytes_for(tokens) == CHUNKED.bytes_for(tokens) == held_tokens * 128
    assert LATENT_SLIDING.bytes_for(tokens) == held_tokens * 1152
    assert FULL.bytes_for(tokens) == tokens * 128


@pytest.mark.parametrize(("tokens", "states"), [(0, 0), (3, 0), (4, 1), (7, 1), (8, 2)])
def test_compression_keeps_one_vector_for_every_ratio_tokens(tokens: int, states: int) -> None:
    """A started group of tokens has no vector yet."""
    assert COMPRESSED.bytes_for(tokens) == states * 1024
    assert IndexerSpec(head_size=128, ratio=4).bytes_for(tokens) == states * 132


def test_constant_state_does_not_depend_on_length() -> None:
    """Convolution and recurrent part add up; a fixed encoder counts too, one of unknown length per encoder token."""
    spec = KVCacheSpec(layers=((FULL, CROSS), (STATE,), (FIXED,), (INDEXER,), (COMPRESSED,), (LATENT,)))
    assert spec.state_bytes() == 10 * 2 + 100 * 4 + 1500 * 128
    assert spec.bytes_per_encoder_token() == 128
    assert STATE.bytes_for(1000) == CROSS.bytes_for(1000) == 0


def test_a_model_is_the_sum_of_its_layers() -> None:
    """Layers add up, each by its own rule; growth is that below every window, settled growth that beyond them."""
    spec = model(FULL, SLIDING, SLIDING)
    assert spec.bytes_per_token() == 3 * 128
    assert spec.settled_bytes_per_token() == 128
    assert spec.bytes_for(50) == 3 * 50 * 128
    assert spec.bytes_for(150) == (150 + 2 * 100) * 128


def test_a_model_without_kv_costs_nothing() -> None:
    """No layers and layers that hold nothing cost no bytes."""
    assert KVCacheSpec(layers=()).bytes_for(1000) == KVCacheSpec(layers=((), ())).bytes_for(1000) == 0


def test_an_engine_without_windows_keeps_every_token() -> None:
    """Windows and chunks go; what has none stays as it is."""
    spec = model(SLIDING, CHUNKED, LATENT_SLIDING, FULL, LATENT, STATE).without_windows()
    assert spec == model(FULL, FULL, LATENT, FULL, LATENT, STATE)


@pytest.mark.parametrize(("ranks", "heads"), [(1, 8), (2, 4), (4, 2), (8, 1), (16, 1)])
def test_heads_are_split_and_then_copied(ranks: int, heads: int) -> None:
    """A rank keeps whole heads, at least one."""
    layer = AttentionSpec(num_kv_heads=8, head_size=16, format=SIXTEEN_BIT)
    cross = CrossAttentionSpec(num_kv_heads=8, head_size=16, format=SIXTEEN_BIT)
    (spec,) = KVCacheSpec(layers=((layer, cross),)).on_ranks(tensor_parallel_size=ranks)
    assert [cache.num_kv_heads for cache in spec.caches() if hasattr(cache, "num_kv_heads")] == [heads, heads]


def test_what_has_no_heads_is_whole_on_every_rank() -> None:
    """Every rank keeps the latent, its index and its compressed form; state is split by channels."""
    (spec,) = model(LATENT, INDEXER, COMPRESSED, STATE).on_ranks(tensor_parallel_size=8)
    assert spec.layers[:3] == ((LATENT,), (INDEXER,), (COMPRESSED,))
    assert spec.state_bytes() == 2 * 2 + 13 * 4


@pytest.mark.parametrize(
    ("layers", "stages", "sizes"),
    [(80, 4, [20, 20, 20, 20]), (61, 4, [15, 15, 16, 15]), (5, 1, [5]), (3, 2, [2, 1])],
)
def test_pipeline_stages_hold_consecutive_layers(layers: int, stages: int, sizes: list[int]) -> None:
    """Measured on vLLM: what is left over goes to the middle."""
    parts = pipeline_stages(layers, stages)
    assert [n for part in parts for n in part] == list(range(layers))
    assert [len(part) for part in parts] == sizes


def test_a_stage_keeps_its_own_layers() -> None:
    """Each stage is a model of its own."""
    first, second = model(FULL, SLIDING, LATENT).on_ranks(tensor_parallel_size=1, pipeline_parallel_size=2)
    assert (first, second) == (model(FULL, SLIDING), model(LATENT))


def test_more_stages_than_layers_are_an_error() -> None:
    """A stage without layers does not exist."""
    with pytest.raises(ValueError, match="pipeline stages: expected 1 to 2, got 3"):
        pipeline_stages(2, 3)


@pytest.mark.parametrize("name", ["num_kv_heads", "head_size", "head_size_v", "sliding_window"])
def test_a_layer_of_nothing_is_an_error(name: str) -> None:
    """Zero or less of any dimension is refused by name and value."""
    dimensions = {"num_kv_heads": 2, "head_size": 16, name: 0}
    with pytest.raises(ValueError, match=f"{name}: must be at least 1, got 0"):
        AttentionSpec(format=SIXTEEN_BIT, **dimensions)


def test_sizes_out_of_range_are_errors() -> None:
    """A negative length, a layer of two kinds and a format that does not fit are mistakes of the caller."""
    with pytest.raises(ValueError, match="tokens: must not be negative, got -1"):
        model(FULL).bytes_for(-1)
    with pytest.raises(ValueError, match="a layer that slides is not chunked"):
        AttentionSpec(num_kv_heads=1, head_size=1, format=SIXTEEN_BIT, sliding_window=1, attention_chunk_size=1)
    with pytest.raises(UnsupportedConfig, match=r"^kv_cache_dtype: fp8_ds_mla holds latent attention"):
        AttentionSpec(num_kv_heads=1, head_size=1, format=FORMATS["fp8_ds_mla"])
