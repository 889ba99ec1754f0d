"""Heads per layer: the measured Nemotron, other published models, and what is refused."""

from typing import Any

import pytest

from kvguard.modelspec.config import UnsupportedConfig, kv_cache_spec
from tests.modelspec.families.measured import assert_as_measured, measured
from tests.modelspec.families.plans import Rows, assert_as_planned, flat

PER_LAYER: Rows = {
    "DeciLM-7B": (
        flat("deci", 4096, 4, 32, 4, num_key_value_heads_per_layer=[4, 4, 2, 1], num_key_value_heads=None),
        [(2, 4, 128, 0), (1, 2, 128, 0), (1, 1, 128, 0)],
    ),
    "OpenELM": (
        {
            "model_type": "openelm",
            "num_transformer_layers": 4,
            "head_dim": 64,
            "num_query_heads": [12, 12, 16, 20],
            "num_kv_heads": [3, 3, 4, 5],
            "model_dim": 1280,
        },
        [(2, 3, 64, 0), (1, 4, 64, 0), (1, 5, 64, 0)],
    ),
    # 8192 / 64 = 128 wide; 64 / 8 and 64 / 16 KV heads
    "Nemotron-NAS": (
        {
            "model_type": "nemotron-nas",
            "hidden_size": 8192,
            "num_attention_heads": 64,
            "num_hidden_layers": 5,
            "num_key_value_heads": None,
            "block_configs": [
                {"attention": {"n_heads_in_group": 8, "no_op": False}},
                {"attention": {"n_heads_in_group": 16}},
                {"attention": {"no_op": True}},
                {"attention": {"replace_with_linear": True}},
                {"attention": {"num_key_value_heads": 2, "window_length": 4096}},
            ],
        },
        [(1, 8, 128, 0), (1, 4, 128, 0), (1, 2, 128, 4096)],
    ),
}

BLOCKS = flat("nemotron-nas", 1024, 2, 8, 8, num_key_value_heads=None)


@pytest.mark.parametrize("entry", measured("Nemotron-Super"), ids=lambda entry: entry["name"])
def test_measured(entry: dict[str, Any]) -> None:
    """Every measured model keeps what was measured."""
    assert_as_measured(entry, "heads per layer")


@pytest.mark.parametrize("name", PER_LAYER)
def test_published(name: str) -> None:
    """A published model keeps what its layers say."""
    assert_as_planned(*PER_LAYER[name], "heads per layer")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_configs": [{"attention": 7}]}, r"^block_configs\.0\.attention: expected an object"),
        ({"block_configs": [{"attention": {}}]}, r"^block_configs\.0\.attention\.n_heads_in_group: missing"),
        (
            {"block_configs": [{"attention": {"n_heads_in_group": 3}}]},
            r"^block_configs\.0\.attention\.n_heads_in_group: expected a divisor of 8",
        ),
        (
            {"block_configs": [{"attention": {"n_heads_in_group": 2, "mamba": {"state_dim": 1}}}]},
            r"^block_configs\.0\.attention\.mamba: is not understood",
        ),
        ({"block_configs": [{"block_type": "moe"}]}, "^block_configs: means layers of several kinds"),
        ({"num_key_value_heads": [1, 2, 3]}, "^num_key_value_heads: expected a list of 2 entries, got 3"),
        ({"num_key_value_heads": [1, 0]}, "^num_key_value_heads: expected a list of whole numbers of at least 1"),
    ],
)
def test_what_would_be_a_guess_is_refused(changes: dict[str, Any], message: str) -> None:
    """Blocks and lists that do not say how many heads a layer has are errors that name the field."""
    with pytest.raises(UnsupportedConfig, match=message):
        kv_cache_spec({**BLOCKS, **changes})
