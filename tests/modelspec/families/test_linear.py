"""Linear attention: bytes of published configs, and what is refused."""

from typing import Any

import pytest

from kvguard.modelspec.config import Serving, UnsupportedConfig, kv_cache_spec
from tests.modelspec.families.measured import assert_as_measured, measured

# One layer of Qwen3-Next: (2 * 16 * 128 + 32 * 128) * 3 and 32 * 128 * 128, in 2 bytes
NEXT_STATE = (8192 * 3 + 524288) * 2
KIMI: dict[str, Any] = {
    "model_type": "kimi_linear",
    "num_hidden_layers": 4,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "linear_attn_config": {
        "full_attn_layers": [4],
        "kda_layers": [1, 2, 3],
        "head_dim": 128,
        "num_heads": 32,
        "short_conv_kernel_size": 4,
    },
}
# One KDA layer of 32 heads of 128: 3 * 4096 * 3 in 2 bytes and 32 * 128 * 128 in 4
KDA_STATE = 36864 * 2 + 524288 * 4
MINIMAX: dict[str, Any] = {
    "model_type": "minimax_text_01",
    "hidden_size": 6144,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_hidden_layers": 8,
    "attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1],
}
# One lightning layer of 64 heads of 128
LIGHTNING_STATE = 64 * 128 * 128 * 2
BAILING: dict[str, Any] = {
    "model_type": "bailing_hybrid",
    "num_hidden_layers": 8,
    "layer_group_size": 4,
    "num_attention_heads": 32,
    "hidden_size": 4096,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "head_dim": 128,
}


def kimi(**linear: object) -> dict[str, Any]:
    return {**KIMI, "linear_attn_config": {**KIMI["linear_attn_config"], **linear}}


def without(config: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in names}


def attending(config: dict[str, Any]) -> list[int]:
    """Layers that keep something per token."""
    layers = kv_cache_spec(config).layers
    return [index for index, layer in enumerate(layers) if any(cache.bytes_per_token() for cache in layer)]


@pytest.mark.parametrize("entry", measured("Qwen3-Next", "Qwen3.5", "Kimi-K3"), ids=lambda entry: entry["name"])
def test_measured(entry: dict[str, Any]) -> None:
    """Every measured model keeps what was measured."""
    assert_as_measured(entry, "linear attention")


@pytest.mark.parametrize(
    ("config", "bytes_per_token", "state"),
    [
        # by their classes: 12 of 48 with 2 heads of 256, 8 of 32 with 4, 10 of 40 with 2
        ({"model_type": "qwen3_next"}, 12 * 2048, 36 * NEXT_STATE),
        ({"model_type": "qwen3_5_text"}, 8 * 4096, 24 * NEXT_STATE),
        ({"model_type": "qwen3_5_moe_text"}, 10 * 2048, 30 * NEXT_STATE),
        # Qwen3.5 says the dtype of its state
        (
            {"model_type": "qwen3_5_moe_text", "mamba_ssm_dtype": "float32"},
            10 * 2048,
            30 * (NEXT_STATE + 524288 * 2),
        ),
        # 8 of 32 with 30 heads of 128; keys 3 * 3840 / (4 * 30) = 96 wide, values twice that:
        # (2 * 30 * 96 + 30 * 192) * 3 + 30 * 192 * 96
        ({"model_type": "olmo_hybrid"}, 8 * 15360, 24 * (34560 + 552960) * 2),
        (KIMI, 1152, 3 * KDA_STATE),
        (
            {
                **without(KIMI, "linear_attn_config"),
                "layer_types": ["linear_attention"] * 3 + ["full_attention"],
                "linear_head_dim": 128,
                "linear_num_heads": 32,
                "linear_conv_kernel_dim": 4,
            },
            1152,
            3 * KDA_STATE,
        ),
        # 1 of 8 with 8 heads of 128
        (MINIMAX, 4096, 7 * LIGHTNING_STATE),
        ({**without(MINIMAX, "attn_type_list"), "decoder_attention_types": [0] * 7 + [1]}, 4096, 7 * LIGHTNING_STATE),
        ({**MINIMAX, "model_type": "abab"}, 4096, 7 * LIGHTNING_STATE),
        # 2 of 8; 32 heads of 128
        (BAILING, 2 * 1152, 6 * 32 * 128 * 128 * 2),
        ({**BAILING, "short_conv_kernel_size": 4}, 2 * 1152, 6 * KDA_STATE),
        ({**BAILING, "architectures": ["BailingMoeV3ForCausalLM"]}, 2 * 1152, 6 * KDA_STATE),
        # Ring-linear 2.0 attends with 4 heads of 128
        (
            {
                **without(BAILING, "kv_lora_rank", "qk_rope_head_dim"),
                "model_type": "bailing_moe_linear",
                "num_key_value_heads": 4,
                "sliding_window": 4096,
                "use_sliding_window": False,
                "max_window_layers": 28,
            },
            2 * 2048,
            6 * 32 * 128 * 128 * 2,
        ),
    ],
)
def test_published(config: dict[str, Any], bytes_per_token: int, state: int) -> None:
    """Attention layers keep K and V or a latent, linear layers a state."""
    spec = kv_cache_spec(config)
    assert spec.bytes_per_token() == bytes_per_token
    assert spec.state_bytes() == state


def test_lightning_state_has_the_models_dtype() -> None:
    """The engine's setting for recurrent states does not reach it."""
    assert kv_cache_spec(MINIMAX, Serving(mamba_ssm_cache_dtype="float32")).state_bytes() == 7 * LIGHTNING_STATE


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        ({"model_type": "qwen3_next", "num_hidden_layers": 9, "full_attention_interval": 3}, [2, 5, 8]),
        (
            {
                "model_type": "qwen3_next",
                "num_hidden_layers": 3,
                "layer_types": ["full_attention", "linear_attention", "full_attention"],
            },
            [0, 2],
        ),
        ({"model_type": "minimax", "num_hidden_layers": 5}, [0, 2, 4]),
        (
            {"model_type": "minimax", "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]},
            [1],
        ),
        # the layers past the last whole group attend
        ({**BAILING, "num_hidden_layers": 10}, [3, 7, 8, 9]),
        (kimi(full_attn_layers=[1, 4], kda_layers=[3, 2]), [0, 3]),
    ],
)
def test_attending_layers(config: dict[str, Any], layers: list[int]) -> None:
    """Each family's own rule says which layers attend."""
    assert attending(config) == layers


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"model_type": "qwen3_next", "layer_types": ["full_attention"]}, "layer_types"),
        ({"model_type": "qwen3_next", "sliding_window": 4096}, "sliding_window"),
        ({"model_type": "qwen3_5_text", "mamba_ssm_dtype": "int8"}, "mamba_ssm_dtype"),
        (without(KIMI, "linear_attn_config"), "linear_attn_config"),
        (kimi(kda_layers=None), "linear_attn_config.kda_layers"),
        (kimi(full_attn_layers=None), "linear_attn_config.full_attn_layers"),
        (kimi(kda_layers=[1, 2]), "linear_attn_config.kda_layers"),
        (kimi(kda_layers=[1, 2, 3, 4]), "linear_attn_config.kda_layers"),
        (kimi(full_attn_layers=[0, 4]), "linear_attn_config.full_attn_layers"),
        (kimi(full_attn_layers=[5]), "linear_attn_config.full_attn_layers"),
        (kimi(head_dim=None), "linear_attn_config.head_dim"),
        (without(MINIMAX, "attn_type_list"), "attn_type_list"),
        ({**MINIMAX, "attn_type_list": [0, 1]}, "attn_type_list"),
        ({**MINIMAX, "attn_type_list": [0] * 7 + [2]}, "attn_type_list"),
        ({**BAILING, "layer_group_size": 0}, "layer_group_size"),
        # a gated delta net beside other caches
        (
            {
                "model_type": "qwen4_exp_text",
                "num_hidden_layers": 4,
                "linear_num_value_heads": 32,
                "linear_key_head_dim": 128,
            },
            "linear_num_value_heads",
        ),
    ],
)
def test_refused(config: dict[str, Any], field: str) -> None:
    """What is not understood is an error that names the field."""
    with pytest.raises(UnsupportedConfig) as error:
        kv_cache_spec(config)
    assert error.value.field == field
