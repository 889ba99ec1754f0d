"""O-14: hybrid attention: min(T, W) for the whole model is too small."""

from typing import Any

import pytest

from kvguard.admission.capacity import CapacityPolicy, capacity_of
from kvguard.admission.usage import EngineUsage, UsageSample
from kvguard.engines.vllm_blocks import EngineSettings, vllm_layout
from kvguard.modelspec.config import kv_cache_spec

# 2 * 1 head * 32 wide * 2 bytes = 128 bytes a layer and token
TOY: dict[str, Any] = {
    "model_type": "toy",
    "num_hidden_layers": 4,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "hidden_size": 32,
    "sliding_window": 8,
    "torch_dtype": "bfloat16",
}
FULL, SLIDING = "full_attention", "sliding_attention"


def toy(*kinds: str) -> dict[str, Any]:
    return {**TOY, "layer_types": list(kinds)}


def test_the_window_counts_layer_by_layer() -> None:
    """Two full layers hold 64 tokens and two of window 8 hold 8: 18,432 bytes, not 4,096."""
    assert kv_cache_spec(toy(FULL, FULL, SLIDING, SLIDING)).bytes_for(64) == 18_432


def test_uniform_pages_hold_everything_everywhere() -> None:
    """An engine that keeps full pages for windowed layers holds 32,768 bytes, and its blocks say the same."""
    spec = kv_cache_spec(toy(FULL, FULL, SLIDING, SLIDING))
    assert spec.without_windows().bytes_for(64) == 32_768
    layout = vllm_layout(spec, EngineSettings(disable_hybrid_kv_cache_manager=True))
    assert layout.block_bytes is not None
    assert layout.rule.settled_blocks(64) * layout.block_bytes == 32_768


def test_a_model_whose_layers_all_slide_stops_growing() -> None:
    """Only there min(T, W) holds for the model: 4,096 bytes."""
    assert kv_cache_spec(toy(SLIDING, SLIDING, SLIDING, SLIDING)).bytes_for(64) == 4_096


@pytest.mark.parametrize(("published", "tokens"), [(1_000, 1_000), (None, 1_600)])
def test_the_engines_own_capacity_in_tokens_wins(published: int | None, tokens: int) -> None:
    """What a pool holds is what the engine publishes; blocks times block size stands in only where it says nothing."""
    usage = EngineUsage(engine="0", capacity_blocks=100, block_size=16, capacity_tokens=published, used_ratio=0.0)
    capacity = capacity_of(UsageSample(engines=(usage,)), CapacityPolicy())
    assert capacity is not None
    assert capacity.tokens == tokens
