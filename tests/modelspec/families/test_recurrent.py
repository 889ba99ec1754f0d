"""Short convolutions, linear recurrences and RWKV: bytes of published configs, and what is refused."""

from typing import Any

import pytest

from kvguard.modelspec.config import Serving, UnsupportedConfig, kv_cache_spec
from tests.modelspec.families.measured import assert_as_measured, measured

LFM2: dict[str, Any] = {
    "model_type": "lfm2",
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "num_hidden_layers": 4,
    "conv_L_cache": 3,
    "full_attn_idxs": [2],
}
GEMMA: dict[str, Any] = {
    "model_type": "recurrent_gemma",
    "hidden_size": 2560,
    "num_attention_heads": 10,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "num_hidden_layers": 26,
    "lru_width": 2560,
    "attention_window_size": 2048,
    "conv1d_width": 4,
    "block_types": ["recurrent", "recurrent", "attention"],
}


@pytest.mark.parametrize("entry", measured("LFM2.5-VL"), ids=lambda entry: entry["name"])
def test_measured(entry: dict[str, Any]) -> None:
    """Every measured model keeps what was measured."""
    assert_as_measured(entry, "recurrent layers")


@pytest.mark.parametrize(
    ("config", "bytes_per_token", "state"),
    [
        # 1 layer of 2 * 8 * 64 * 2; 3 * 1024 * 2 * 2
        (LFM2, 2048, 3 * 4096),
        ({**LFM2, "conv_dim": 2048}, 2048, 3 * 8192),
        ({**LFM2, "layer_types": ["conv", "full_attention", "conv", "full_attention"]}, 4096, 2 * 4096),
        # without either list every layer attends, as its class says: 4 and 32 layers of 8 heads
        ({**LFM2, "full_attn_idxs": None}, 4 * 2048, 0),
        ({"model_type": "lfm2"}, 32 * 2 * 8 * 80 * 2, 0),
        ({"model_type": "lfm2_moe", "num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]}, 2048, 8192),
        # recurrentgemma-2b: 8 layers of one head of 256; 18 * (2560 * 3 * 2 + 2560 * 4)
        (GEMMA, 8 * 1024, 18 * 25600),
        ({**GEMMA, "lru_width": None}, 8 * 1024, 18 * 25600),
        ({**GEMMA, "_block_types": ["recurrent"], "num_hidden_layers": 2}, 0, 2 * 25600),
        ({"model_type": "recurrent_gemma"}, 8 * 10240, 18 * 25600),
        # rwkv-4-169m: 12 * (2 * 768 * 2 + 3 * 768 * 4)
        ({"model_type": "rwkv", "hidden_size": 768, "num_hidden_layers": 12}, 0, 12 * 12288),
    ],
)
def test_published(config: dict[str, Any], bytes_per_token: int, state: int) -> None:
    """Attention layers keep K and V, the others a state."""
    spec = kv_cache_spec(config)
    assert spec.bytes_per_token() == bytes_per_token
    assert spec.state_bytes() == state


def test_griffin_attention_slides() -> None:
    """The attention layers of RecurrentGemma keep one window's worth."""
    spec = kv_cache_spec(GEMMA)
    assert spec.bytes_for(2048) == spec.bytes_for(9000) == 2048 * 8 * 1024


def test_a_convolution_has_no_recurrent_part() -> None:
    """The engine's setting for recurrent states does not change LFM2."""
    assert kv_cache_spec(LFM2, Serving(mamba_ssm_cache_dtype="float32")).state_bytes() == 3 * 4096


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({**LFM2, "full_attn_idxs": [4]}, "full_attn_idxs"),
        ({**LFM2, "layer_types": ["conv"]}, "layer_types"),
        ({**LFM2, "layer_types": ["conv"] * 3 + ["gla"]}, "layer_types"),
        ({**LFM2, "sliding_window": 128}, "sliding_window"),
        ({**GEMMA, "block_types": []}, "block_types"),
        ({**GEMMA, "block_types": ["recurrent", "conv"]}, "block_types"),
        ({**GEMMA, "attention_window_size": 0}, "attention_window_size"),
        ({**GEMMA, "num_attention_heads": 5120}, "hidden_size"),
        ({"model_type": "rwkv", "hidden_size": -1}, "hidden_size"),
    ],
)
def test_refused(config: dict[str, Any], field: str) -> None:
    """What is not understood is an error that names the field."""
    with pytest.raises(UnsupportedConfig) as error:
        kv_cache_spec(config)
    assert error.value.field == field
