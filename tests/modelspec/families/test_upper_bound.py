"""The stated upper bound: what it assumes, and what it still refuses."""

from typing import Any

import pytest

from kvguard.modelspec.config import UnsupportedConfig, kv_cache_spec
from tests.modelspec.families.plans import flat
from tests.oracle import models

UNKNOWN = flat("new", 1024, 4, 8, 2, sliding_window=64)


@pytest.mark.parametrize(
    ("changes", "per_layer"),
    [
        ({}, 4 * 2 * 128),
        ({"head_dim": 64}, 4 * 2 * 128),
        ({"head_dim": 256}, 4 * 2 * 256),
        ({"global_head_dim": 512, "num_global_key_value_heads": 4}, 4 * 4 * 512),
        ({"num_key_value_heads": None}, 4 * 8 * 128),
        ({"layer_kv_heads": [1, 16]}, 4 * 16 * 128),
        ({"qk_nope_head_dim": 128, "qk_rope_head_dim": 64}, 4 * 2 * 192),
        ({"hidden_size": 1001}, 4 * 2 * 126),
        ({"hidden_size": None, "head_dim": 64}, 4 * 2 * 64),
    ],
)
def test_a_bound_takes_the_most_and_the_widest_heads(changes: dict[str, Any], per_layer: int) -> None:
    """Full attention in every layer, and the result says what was assumed."""
    spec = kv_cache_spec({**UNKNOWN, **changes}, bound=True)
    assert spec.bytes_for(1000) == 1000 * 4 * per_layer
    assert spec.family == "upper bound"
    assert spec.assumptions[0].startswith("full attention in every layer, because ")


def test_a_model_that_is_understood_needs_no_bound() -> None:
    """Asking for a bound changes nothing then."""
    config = flat("llama", 1024, 4, 8, 2)
    assert kv_cache_spec(config, bound=True) == kv_cache_spec(config)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"mamba_d_state": 16}, "mamba_d_state"),
        ({"total_ut_steps": 4}, "total_ut_steps"),
        ({"model_type": "xlm-roberta"}, "model_type"),
        ({"hidden_size": None}, "hidden_size"),
        ({"num_attention_heads": None}, "num_attention_heads"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
    ],
)
def test_what_not_even_a_bound_covers_is_refused(changes: dict[str, Any], field: str) -> None:
    """Constant state, layers that cache more than once and missing sizes stay errors."""
    with pytest.raises(UnsupportedConfig) as caught:
        kv_cache_spec({**UNKNOWN, "rwkv": None, **changes}, bound=True)
    assert caught.value.field == field


ATTENTION_ONLY = [
    entry for entry in models().values() if "constant_state_bytes" not in entry and "cross_attention" not in entry
]


@pytest.mark.parametrize("entry", ATTENTION_ONLY, ids=lambda entry: entry["name"])
def test_a_bound_is_never_less_than_what_was_measured(entry: dict[str, Any]) -> None:
    """Of every measured model without constant state, as if its attention were unknown."""
    config = entry["config"]
    config = next((config[name] for name in ("text_config",) if name in config), config)
    unknown = {**config, "sparse_unknown": True}
    try:
        spec = kv_cache_spec(unknown, bound=True)
    except UnsupportedConfig:
        return
    assert all(spec.bytes_for(int(length)) >= expected for length, expected in entry["expected_bytes"].items())
