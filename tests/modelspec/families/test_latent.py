"""Latent attention: bytes of published configs, and what is refused."""

from typing import Any

import pytest

from kvguard.modelspec.config import Serving, UnsupportedConfig, kv_cache_spec
from tests.modelspec.families.measured import assert_as_measured, measured

MEASURED = measured(
    *("DeepSeek-V2-Lite", "DeepSeek-V3", "Kimi-K2", "MiniCPM3", "GLM-4.7-Flash", "LongCat", "DeepSeek-V3.2", "GLM-5"),
)

V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
}
DSA = {**V3, "index_topk": 2048, "index_head_dim": 128}
OCR: dict[str, Any] = {
    "hidden_size": 1280,
    "num_attention_heads": 10,
    "num_key_value_heads": 10,
    "num_hidden_layers": 12,
    "kv_lora_rank": None,
    "qk_nope_head_dim": 0,
    "qk_rope_head_dim": 0,
    "v_head_dim": 0,
    "use_mla": False,
}


def without(config: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in names}


@pytest.mark.parametrize("entry", MEASURED, ids=lambda entry: entry["name"])
def test_measured(entry: dict[str, Any]) -> None:
    """Every measured model keeps what was measured."""
    assert_as_measured(entry, "latent attention")


@pytest.mark.parametrize(
    ("config", "layers", "bytes_per_token"),
    [
        # 61 * (512 + 64) * 2
        ({"model_type": "deepseek_v3", "num_hidden_layers": 61}, 61, 70272),
        ({"model_type": "axk1"}, 61, 70272),
        # an unknown type with the two widths of latent attention
        ({**V3, "model_type": "kanana_2"}, 61, 70272),
        # 61 * (576 * 2 + 132)
        ({"model_type": "deepseek_v32"}, 61, 78324),
        ({**DSA}, 61, 78324),
        # openPangu's older names
        (
            {
                "model_type": "pangu_ultra_moe",
                "num_hidden_layers": 61,
                "attention_kv_lora_dim": 512,
                "attention_qk_rope_dim": 64,
            },
            61,
            70272,
        ),
        # 36 * (256 + 64) * 2
        ({"model_type": "mistral4"}, 36, 23040),
        # 48 * ((128 + 32) * 2 + 132)
        ({"model_type": "axk2"}, 48, 21696),
        # 34 * 1152 and keys in 10 layers (0, 1, 5 ... 33): 39168 + 10 * 132
        ({"model_type": "hy_v4"}, 34, 40488),
        # 28 * 2 * 1152, whichever count is given
        ({"model_type": "longcat_flash"}, 56, 64512),
        ({"model_type": "longcat_flash", "num_hidden_layers": 56}, 56, 64512),
        ({"model_type": "longcat_flash", "num_hidden_layers": 56, "num_layers": 28}, 56, 64512),
        # no latent: 12 * 2 * 10 * 128 * 2, as DeepSeek-OCR and the small DeepSeek-VL2 files say it
        ({"model_type": "deepseek_vl_v2", "language_config": {**OCR, "model_type": "deepseek_v2"}}, 12, 61440),
        ({"model_type": "deepseek_vl_v2", "language_config": OCR}, 12, 61440),
        ({"model_type": "deepseek_v2", **without(OCR, "use_mla", "v_head_dim", "kv_lora_rank")}, 12, 61440),
        (
            {"model_type": "deepseek_v2", **without(OCR, "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")},
            12,
            61440,
        ),
        # the large DeepSeek-VL2: 30 * 1152
        (
            {
                "model_type": "deepseek_vl_v2",
                "language_config": {"model_type": "deepseek_v2", "kv_lora_rank": 512, "num_hidden_layers": 30},
            },
            30,
            34560,
        ),
        # a leftover window
        ({**V3, "sliding_window": 4096, "use_sliding_window": False, "max_window_layers": 61}, 61, 70272),
        ({**DSA, "layer_types": ["deepseek_sparse_attention"] * 61}, 61, 78324),
    ],
)
def test_published(config: dict[str, Any], layers: int, bytes_per_token: int) -> None:
    """Bytes per token follow from the widths alone."""
    spec = kv_cache_spec(config)
    assert len(spec.layers) == layers
    assert spec.bytes_per_token() == bytes_per_token


@pytest.mark.parametrize(
    ("schedule", "own"),
    [
        ({}, [0, 1, 2, 3, 4, 5, 6, 7]),
        ({"index_topk_freq": 4}, [0, 1, 5]),
        ({"index_topk_freq": 4, "index_skip_topk_offset": 3}, [0, 1, 2, 6]),
        ({"index_topk_freq": 4, "index_skip_topk_offset": 0}, [3, 7]),
        ({"index_topk_pattern": "FSSSFSSS"}, [0, 4]),
        ({"index_topk_pattern": ["full"] + ["shared"] * 7}, [0]),
        ({"indexer_types": ["shared"] * 7 + ["full"], "index_topk_freq": 4}, [7]),
    ],
)
def test_shared_indexers(schedule: dict[str, Any], own: list[int]) -> None:
    """Only layers with an indexer of their own keep its keys; a list goes before the schedule."""
    spec = kv_cache_spec({**DSA, "num_hidden_layers": 8, **schedule})
    assert [index for index, layer in enumerate(spec.layers) if len(layer) == 2] == own


@pytest.mark.parametrize(
    ("dtype", "bytes_per_token"),
    # 512 + 4 * 4 + 2 * 64 and 132; 576 and 132
    [("fp8_ds_mla", 656 + 132), ("fp8", 576 + 132), ("auto", 1152 + 132)],
)
def test_cache_dtype(dtype: str, bytes_per_token: int) -> None:
    """The cache's format reaches the latent and not the indexer."""
    config = {**DSA, "num_hidden_layers": 1}
    assert kv_cache_spec(config, Serving(kv_cache_dtype=dtype)).bytes_per_token() == bytes_per_token


def test_every_rank_keeps_the_whole_latent() -> None:
    """Tensor parallelism does not split it."""
    (rank,) = kv_cache_spec(V3).on_ranks(tensor_parallel_size=8)
    assert rank.bytes_per_token() == 70272


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (without({**V3, "model_type": "sarvam_mla"}, "qk_rope_head_dim"), "qk_rope_head_dim"),
        ({**V3, "kv_lora_rank": None, "use_mla": True}, "kv_lora_rank"),
        ({**V3, "kv_lora_rank": None}, "qk_rope_head_dim"),
        ({**V3, "use_mla": False}, "qk_rope_head_dim"),
        ({**V3, "sliding_window": 128}, "sliding_window"),
        ({**V3, "layer_types": ["full_attention"]}, "layer_types"),
        ({**V3, "layer_types": ["sliding_attention"] * 61}, "layer_types"),
        ({**V3, "index_topk": 2048}, "index_head_dim"),
        ({**DSA, "indexer_types": ["full"]}, "indexer_types"),
        ({**DSA, "indexer_types": ["none"] * 61}, "indexer_types"),
        ({**DSA, "index_topk_pattern": "FX" * 61}, "index_topk_pattern"),
        ({**DSA, "index_topk_pattern": "F" * 60 + "X"}, "index_topk_pattern"),
        ({"model_type": "longcat_flash", "num_layers": 28, "num_hidden_layers": 28}, "num_hidden_layers"),
        ({"model_type": "longcat_flash", "num_layers": 5000}, "num_hidden_layers"),
        # latent attention beside other caches
        ({**V3, "model_type": "glm5_next"}, "kv_lora_rank"),
    ],
)
def test_refused(config: dict[str, Any], field: str) -> None:
    """What is not understood is an error that names the field."""
    with pytest.raises(UnsupportedConfig) as error:
        kv_cache_spec(config)
    assert error.value.field == field
