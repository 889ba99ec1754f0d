"""Mamba and its hybrids: bytes of published configs, and what is refused."""

from typing import Any

import pytest

from kvguard.modelspec.config import Serving, UnsupportedConfig, kv_cache_spec
from tests.modelspec.families.measured import assert_as_measured, measured

MEASURED = measured("Jamba", "Bamba", "Nemotron-H", "Nemotron-3-Nano", "Falcon-H1", "Zamba2", "Codestral")

NEMOTRON: dict[str, Any] = {
    "model_type": "nemotron_h",
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "n_groups": 8,
    "ssm_state_size": 128,
    "conv_kernel": 4,
    "layers_block_type": ["mamba", "mlp", "attention", "moe"],
}
# (128 * 64 + 2 * 8 * 128) * 3 elements of 2 bytes and 128 * 64 * 128 of 4
NEMOTRON_STATE = 10240 * 3 * 2 + 1048576 * 4
GRANITE: dict[str, Any] = {
    "model_type": "granitemoehybrid",
    "hidden_size": 1536,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "num_hidden_layers": 4,
    "layer_types": ["mamba", "mamba", "attention", "mamba"],
    "mamba_n_heads": 48,
    "mamba_n_groups": 1,
    "mamba_d_state": 128,
    "mamba_d_head": 64,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
PLAMO: dict[str, Any] = {
    "model_type": "plamo2",
    "hidden_size": 2048,
    "hidden_size_per_head": 128,
    "num_attention_heads": 16,
    "num_key_value_heads": 1,
    "num_hidden_layers": 16,
    "mamba_num_heads": 32,
    "mamba_d_state": 64,
    "mamba_d_conv": 4,
    "mamba_step": 2,
}
JAMBA: dict[str, Any] = {"model_type": "jamba", "hidden_size": 4096, "num_hidden_layers": 32}


def without(config: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in names}


def attending(config: dict[str, Any]) -> list[int]:
    """Layers that keep something per token."""
    layers = kv_cache_spec(config).layers
    return [index for index, layer in enumerate(layers) if any(cache.bytes_per_token() for cache in layer)]


@pytest.mark.parametrize("entry", MEASURED, ids=lambda entry: entry["name"])
def test_measured(entry: dict[str, Any]) -> None:
    """Every measured model keeps what was measured."""
    assert_as_measured(entry, "Mamba")


@pytest.mark.parametrize(
    ("config", "bytes_per_token", "state"),
    [
        # mamba-130m: 24 layers of 1536 * (3 + 16) * 2
        ({"model_type": "mamba", "hidden_size": 768, "num_hidden_layers": 24}, 0, 24 * 58368),
        # falcon-mamba-7b: the inner width is said; 64 * 8192 * (3 + 16) * 2
        (
            {
                "model_type": "falcon_mamba",
                "hidden_size": 4096,
                "intermediate_size": 8192,
                "expand": 16,
                "num_hidden_layers": 64,
            },
            0,
            64 * 311296,
        ),
        # Codestral by its class: 64 * ((8192 + 2 * 8 * 128) * 3 + 128 * 64 * 128) * 2
        ({"model_type": "mamba2"}, 0, 64 * 2158592),
        # 4 of 32 attend, 8 heads of 128; 28 * 8192 * (3 + 16) * 2
        ({**JAMBA, "intermediate_size": 14336}, 4 * 4096, 28 * 311296),
        # 1 layer of 2 * 4 * 128 * 2; 3 * ((3072 + 256) * 3 + 48 * 64 * 128) * 2
        (GRANITE, 2048, 3 * 806400),
        ({**GRANITE, "mamba_d_head": "auto"}, 2048, 3 * 806400),
        ({**GRANITE, "layer_types": ["attention"] * 4}, 4 * 2048, 0),
        (without(GRANITE, "layer_types"), 0, 4 * 806400),
        # the inner width falls back to twice the hidden size: 4 * ((4096 + 512) * 3 + 64 * 64 * 256) * 2
        (
            {
                "model_type": "falcon_h1",
                "hidden_size": 2048,
                "num_hidden_layers": 4,
                "num_attention_heads": 8,
                "num_key_value_heads": 2,
                "head_dim": 128,
                "mamba_d_ssm": None,
                "mamba_n_heads": 64,
            },
            4 * 1024,
            4 * 2124800,
        ),
        # Zamba 1: 13 of 76 layers, 16 heads of 2 * 3712 / 16; 76 * 7424 * (3 + 16) * 2
        ({"model_type": "zamba", "attention_head_dim": 464}, 13 * 2 * 16 * 464 * 2, 76 * 282112),
        # Zamba2-1.2B: 6 hybrid layers of 32 heads of 128; 38 * ((4096 + 2 * 64) * 3 + 64 * 64 * 64) * 2
        (
            {
                "model_type": "zamba2",
                "hidden_size": 2048,
                "num_hidden_layers": 38,
                "hybrid_layer_ids": [5, 11, 17, 23, 29, 35],
                "n_mamba_heads": 64,
                "num_attention_heads": 32,
                "kv_channels": 64,
            },
            6 * 16384,
            38 * 549632,
        ),
        # PLaMo 2 1B: odd layers attend with one head of 128; 8 * 4096 * (3 + 64) * 2
        (PLAMO, 8 * 512, 8 * 548864),
        ({**PLAMO, "num_hidden_layers": 1}, 512, 0),
        ({**PLAMO, "mamba_enabled": False}, 16 * 512, 0),
    ],
)
def test_published(config: dict[str, Any], bytes_per_token: int, state: int) -> None:
    """Attention layers keep K and V, Mamba layers a state."""
    spec = kv_cache_spec(config)
    assert spec.bytes_per_token() == bytes_per_token
    assert spec.state_bytes() == state


@pytest.mark.parametrize(
    "config",
    [
        NEMOTRON,
        {**NEMOTRON, "num_hidden_layers": 4},
        {**without(NEMOTRON, "layers_block_type"), "hybrid_override_pattern": "M-*E"},
        {
            **without(NEMOTRON, "layers_block_type"),
            "layer_types": ["linear_attention", "mlp", "full_attention", "moe"],
        },
        {**without(NEMOTRON, "head_dim"), "attention_head_dim": 128},
        {**without(NEMOTRON, "conv_kernel", "n_groups"), "mamba_d_conv": 4, "mamba_n_groups": 8},
        {"model_type": "NemotronH_Nano_VL_V2", "llm_config": NEMOTRON},
        {"model_type": "nemotron_h", "layers_block_type": NEMOTRON["layers_block_type"]},
    ],
)
def test_nemotron_forms(config: dict[str, Any]) -> None:
    """All forms of a Nemotron-H file say the same layers, and the state is float32."""
    spec = kv_cache_spec(config)
    assert [len(layer) for layer in spec.layers] == [1, 0, 1, 0]
    assert spec.bytes_per_token() == 4096
    assert spec.state_bytes() == NEMOTRON_STATE


def test_recurrent_dtype() -> None:
    """The file's dtype counts for Nemotron-H, and the engine's setting goes before it."""
    sixteen = {**NEMOTRON, "mamba_ssm_cache_dtype": "bfloat16"}
    assert kv_cache_spec(sixteen).state_bytes() == 10240 * 3 * 2 + 1048576 * 2
    assert kv_cache_spec(sixteen, Serving(mamba_ssm_cache_dtype="float32")).state_bytes() == NEMOTRON_STATE


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        (JAMBA, [4, 12, 20, 28]),
        ({**JAMBA, "attn_layer_offset": 0, "attn_layer_period": 16}, [0, 16]),
        ({"model_type": "bamba", "num_hidden_layers": 12, "attn_layer_indices": [3, 9]}, [3, 9]),
        ({"model_type": "bamba", "num_hidden_layers": 12}, []),
        ({"model_type": "zamba", "num_hidden_layers": 14}, [2, 7, 13]),
        ({"model_type": "zamba", "num_hidden_layers": 3, "layers_block_type": ["hybrid", "mamba", "hybrid"]}, [0, 2]),
        ({"model_type": "zamba2"}, [6, 12, 18, 24, 30, 36, 42, 47, 51]),
        ({**PLAMO, "mamba_step": 8}, [4, 12]),
    ],
)
def test_attending_layers(config: dict[str, Any], layers: list[int]) -> None:
    """Each family's own rule says which layers attend."""
    assert attending(config) == layers


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({**JAMBA, "attn_layer_offset": 8}, "attn_layer_offset"),
        ({**JAMBA, "sliding_window": 4096}, "sliding_window"),
        ({"model_type": "bamba", "attn_layer_indices": [32]}, "attn_layer_indices"),
        ({"model_type": "zamba2", "num_hidden_layers": 38}, "hybrid_layer_ids"),
        ({**GRANITE, "layer_types": ["mamba"]}, "layer_types"),
        ({**GRANITE, "layer_types": ["mamba"] * 3 + ["sliding_attention"]}, "layer_types"),
        ({**GRANITE, "mamba_d_head": None, "mamba_n_heads": 49}, "mamba_n_heads"),
        (without(NEMOTRON, "layers_block_type"), "layers_block_type"),
        ({**NEMOTRON, "num_hidden_layers": 5}, "num_hidden_layers"),
        ({**NEMOTRON, "layers_block_type": []}, "layers_block_type"),
        ({**NEMOTRON, "mamba_ssm_cache_dtype": "int8"}, "mamba_ssm_cache_dtype"),
        ({**without(NEMOTRON, "layers_block_type"), "hybrid_override_pattern": "M?"}, "hybrid_override_pattern"),
        ({**NEMOTRON, "block_configs": [{}]}, "block_configs"),
        ({"model_type": "zamba", "num_attention_heads": 7425, "num_key_value_heads": 1}, "hidden_size"),
        (without(PLAMO, "mamba_step"), "mamba_step"),
        (without(PLAMO, "mamba_num_heads"), "mamba_num_heads"),
        ({"model_type": "mamba2", "num_heads": None}, "num_heads"),
    ],
)
def test_refused(config: dict[str, Any], field: str) -> None:
    """What is not understood is an error that names the field."""
    with pytest.raises(UnsupportedConfig) as error:
        kv_cache_spec(config)
    assert error.value.field == field
