"""Interleaved windows: measured and other published models, and what is refused."""

from typing import Any

import pytest

from kvguard.modelspec.config import UnsupportedConfig, kv_cache_spec
from tests.modelspec.families.measured import assert_as_measured, measured
from tests.modelspec.families.plans import Rows, assert_as_planned, flat

MEASURED = measured(
    *("gemma-2-", "gemma-3-", "gemma-3n", "gemma-4", "gpt-oss", "Llama-4", "Olmo-3", "EXAONE-4", "MiMo-V2"),
)
SLIDE, FULL, CHUNK = "sliding_attention", "full_attention", "chunked_attention"

INTERLEAVED: Rows = {
    "Gemma-2-2B": (
        flat("gemma2", 2304, 26, 8, 4, head_dim=256, sliding_window=4096),
        [(13, 4, 256, 0), (13, 4, 256, 4096)],
    ),
    # 34 layers: 5, 11, 17, 23, 29 are full; the file has neither heads nor widths
    "Gemma-3-4B": (
        {
            "model_type": "gemma3",
            "text_config": {
                "model_type": "gemma3_text",
                "hidden_size": 2560,
                "num_hidden_layers": 34,
                "sliding_window": 1024,
            },
        },
        [(5, 4, 256, 0), (29, 4, 256, 1024)],
    ),
    "Gemma-3-12B": (
        {"model_type": "gemma3", "text_config": flat("gemma3_text", 3840, 48, 16, 8, sliding_window=1024)},
        [(8, 8, 256, 0), (40, 8, 256, 1024)],
    ),
    # 30 layers, the last 10 without KV: of 20 every fifth is full
    "Gemma-3n-E2B": (
        {"model_type": "gemma3n", "text_config": flat("gemma3n_text", 2048, 30, 8, 2, num_kv_shared_layers=10)},
        [(4, 2, 256, 0), (16, 2, 256, 512)],
    ),
    "Gemma-4-31B": (
        {
            "model_type": "gemma4",
            "text_config": flat(
                "gemma4_text",
                5376,
                60,
                32,
                16,
                head_dim=256,
                global_head_dim=512,
                num_global_key_value_heads=4,
                attention_k_eq_v=True,
                sliding_window=1024,
                layer_types=([SLIDE] * 5 + [FULL]) * 10,
            ),
        },
        [(10, 4, 512, 0), (50, 16, 256, 1024)],
    ),
    "Gemma 4 as transformers 5 saves it": (
        flat(
            "gemma4_text",
            2304,
            12,
            8,
            4,
            sliding_window=512,
            layer_types=([SLIDE] * 5 + [FULL]) * 2,
            per_layer_config={"05": {"head_dim": 512, "num_key_value_heads": 2}, "11": {"head_dim": 512}},
        ),
        [(1, 2, 512, 0), (1, 4, 512, 0), (10, 4, 256, 512)],
    ),
    # 8 layers: 5 is full by the pattern, 7 because it is the last
    "Gemma 4 without a list": (flat("gemma4_text", 2304, 8, 8, 4), [(2, 4, 512, 0), (6, 4, 256, 512)]),
    "gpt-oss-120B without a list": (flat("gpt_oss", 2880, 36, 64, 8), [(18, 8, 64, 0), (18, 8, 64, 128)]),
    # the window of Cohere 2 is the tokens before the one at hand, which is kept as well
    "Command-R7B": (
        flat(
            "cohere2",
            4096,
            32,
            32,
            8,
            sliding_window=4096,
            layer_switch=4,
            sliding_window_pattern=4,
            order_of_interleaved_layers="local_attn_first",
        ),
        [(8, 8, 128, 0), (24, 8, 128, 4097)],
    ),
    "Command-A": (flat("cohere2", 12288, 64, 96, 8), [(16, 8, 128, 0), (48, 8, 128, 4097)]),
    "Command-A-Vision": (
        {
            "model_type": "cohere2_vision",
            "text_config": {
                "hidden_size": 12288,
                "num_hidden_layers": 64,
                "num_attention_heads": 96,
                "num_key_value_heads": 8,
            },
        },
        [(16, 8, 128, 0), (48, 8, 128, 4097)],
    ),
    "OLMo-3-32B": (flat("olmo3", 5120, 64, 40, 8, sliding_window=4096), [(16, 8, 128, 0), (48, 8, 128, 4096)]),
    # 30 layers: 3, 7, .. 27 by the letters, and the last
    "EXAONE 4 by letters": (
        flat("exaone4", 2048, 30, 32, 8, sliding_window=4096, sliding_window_pattern="LLLG"),
        [(8, 8, 64, 0), (22, 8, 64, 4096)],
    ),
    "EXAONE-4.0-1.2B": (
        flat("exaone4", 2048, 30, 32, 8, sliding_window=None, sliding_window_pattern=None, layer_types=[FULL] * 30),
        [(30, 8, 64, 0)],
    ),
    "Llama-4-Maverick": (
        {"model_type": "llama4", "text_config": {"num_hidden_layers": 48, "no_rope_layers": []}},
        [(12, 8, 128, 0), (36, 8, 128, 8192)],
    ),
    "Step-3.5-Flash": (
        {
            "model_type": "step3p5",
            "hidden_size": 4096,
            "num_hidden_layers": 45,
            "num_attention_heads": 64,
            "num_attention_groups": 8,
            "head_dim": 128,
            "sliding_window": 512,
            "num_nextn_predict_layers": 3,
            "layer_types": ([FULL] + [SLIDE] * 3) * 12,
            "attention_other_setting": {
                "attention_type": SLIDE,
                "num_attention_heads": 96,
                "num_attention_groups": 8,
                "head_dim": 128,
            },
        },
        [(12, 8, 128, 0), (33, 8, 128, 512)],
    ),
    "Trinity-Mini": (
        flat("afmoe", 2048, 32, 32, 4, sliding_window=2048, global_attn_every_n_layers=4, head_dim=128),
        [(8, 4, 128, 0), (24, 4, 128, 2048)],
    ),
    "VaultGemma-1B": (
        flat("vaultgemma", 1152, 26, 4, 4, head_dim=256, sliding_window=512),
        [(13, 4, 256, 0), (13, 4, 256, 512)],
    ),
    # 0, 5, 11 are full; V is 128 wide, so a head costs as much as one of 160
    "MiMo-V2 by its class": (
        {"model_type": "mimo_v2_flash", "num_hidden_layers": 12},
        [(3, 4, 160, 0), (9, 4, 160, 128)],
    ),
    "K-EXAONE": (
        flat("exaone_moe", 6144, 48, 64, 8, head_dim=128, sliding_window=128, sliding_window_pattern="LLLG"),
        [(12, 8, 128, 0), (36, 8, 128, 128)],
    ),
    "CWM": ({"model_type": "cwm"}, [(16, 8, 128, 0), (48, 8, 128, 8192)]),
    "MuseGlimmer": ({"model_type": "muse_glimmer"}, [(13, 2, 128, 0), (39, 2, 128, 2048)]),
    # 2 dense layers in front are full, then 3 of 4 slide: 10 layers, 3, 7 of the rest full
    "Cohere 2 MoE": (
        flat("cohere2_moe", 8192, 10, 64, 8, first_k_dense_replace=2),
        [(4, 8, 128, 0), (6, 8, 128, 4097)],
    ),
    # a window switched off stays off
    "Cohere 2 without a window": (flat("cohere2", 12288, 4, 96, 8, sliding_window=None), [(4, 8, 128, 0)]),
    "a type nobody knows, with a list": (
        flat("new", 1024, 4, 8, 2, sliding_window=64, layer_types=[SLIDE, FULL] * 2),
        [(2, 2, 128, 0), (2, 2, 128, 64)],
    ),
    "a type nobody knows, with an interval": (
        flat("new", 1024, 8, 8, 2, sliding_window=64, sliding_window_pattern=8),
        [(1, 2, 128, 0), (7, 2, 128, 64)],
    ),
    "windows listed by layer, over and over": (
        flat("pangu", 1024, 6, 8, 2, interleaved_sliding_window=[64, 64, None]),
        [(2, 2, 128, 0), (4, 2, 128, 64)],
    ),
    # 7 layers, the third and the sixth full as listed; 0 and -1 are no window
    "windows listed as the window": (
        flat("plamo3", 1024, 6, 8, 2, sliding_window=[64, 64, 0, 64, 64, -1]),
        [(2, 2, 128, 0), (4, 2, 128, 64)],
    ),
    "one window for all that slide": (
        flat("pangu", 1024, 6, 8, 2, interleaved_sliding_window=64, sliding_window_pattern=2),
        [(3, 2, 128, 0), (3, 2, 128, 64)],
    ),
    "windows of the layers that slide": (
        flat("exaone_moe", 1024, 4, 8, 2, sliding_windows=[64, 32, 64, 64]),
        [(1, 2, 128, 0), (2, 2, 128, 64), (1, 2, 128, 32)],
    ),
    "chunks switched off": (
        flat("llama4_text", 1024, 4, 8, 2, head_dim=128, attention_chunk_size=None),
        [(4, 2, 128, 0)],
    ),
    "chunks by a list": (
        flat("new", 1024, 4, 8, 2, attention_chunk_size=64, layer_types=[CHUNK, FULL] * 2),
        [(2, 2, 128, 0), (2, 2, 128, 64)],
    ),
    "layers with positions by a list": (
        flat("llama4_text", 1024, 4, 8, 2, head_dim=128, no_rope_layers=[1, 0, 0, 0]),
        [(3, 2, 128, 0), (1, 2, 128, 8192)],
    ),
    "a window switched off": (
        flat("new", 1024, 4, 8, 2, sliding_window=0, layer_types=[SLIDE, FULL] * 2),
        [(4, 2, 128, 0)],
    ),
    "an empty pattern": (
        flat("exaone4", 1024, 4, 8, 2, sliding_window_pattern=""),
        [(1, 2, 128, 0), (3, 2, 128, 4096)],
    ),
    "no pattern": (flat("exaone4", 1024, 4, 8, 2, sliding_window_pattern=0), [(4, 2, 128, 0)]),
    "layers that share, all of them sliding": (
        flat("mistral", 1024, 4, 8, 2, sliding_window=64, num_kv_shared_layers=1),
        [(3, 2, 128, 64)],
    ),
    "heads of a sliding layer without a width of their own": (
        flat("new", 1024, 2, 8, 2, sliding_window=64, hybrid_layer_pattern=[0, 1], swa_num_key_value_heads=4),
        [(1, 2, 128, 0), (1, 4, 128, 64)],
    ),
    "Laguna": (flat("laguna", 2048, 4, 48, 8), [(4, 8, 128, 0)]),
    "Ministral": (flat("ministral", 4096, 4, 32, 8), [(4, 8, 128, 4096)]),
    "Granite with windows": (flat("granite_swa", 2560, 8, 20, 4), [(2, 4, 128, 0), (6, 4, 128, 128)]),
    "Gemma 4 with equal widths": (
        flat("gemma4_text", 2304, 6, 8, 4, global_head_dim=None),
        [(1, 4, 256, 0), (5, 4, 256, 512)],
    ),
}


@pytest.mark.parametrize("entry", MEASURED, ids=lambda entry: entry["name"])
def test_measured(entry: dict[str, Any]) -> None:
    """Every measured model keeps what was measured."""
    assert_as_measured(entry, "interleaved windows")


@pytest.mark.parametrize("name", INTERLEAVED)
def test_published(name: str) -> None:
    """A published model keeps what its layers say."""
    assert_as_planned(*INTERLEAVED[name], "interleaved windows")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": [SLIDE]}, "^layer_types: expected a list of 4 entries, got 1$"),
        ({"layer_types": [SLIDE, FULL, SLIDE, 7]}, "^layer_types: expected a list of strings"),
        (
            {"layer_types": ["odd"] * 4, "num_kv_shared_layers": 1},
            "^layer_types: 'odd' is not understood in this model",
        ),
        ({"layer_types": [FULL] * 4, "kv_lora_rank": 512}, "^kv_lora_rank: means latent attention"),
        ({"hybrid_layer_pattern": [0, 1]}, "^hybrid_layer_pattern: expected a list of 4 entries 0 or 1"),
        ({"hybrid_layer_pattern": [0, 1, 2, 0]}, "^hybrid_layer_pattern: expected a list of 4 entries 0 or 1"),
        ({"sliding_window_pattern": "LLX"}, "^sliding_window_pattern: expected a number or a string of L and G"),
        ({"sliding_window_pattern": [64, 0]}, "^sliding_window_pattern: expected a whole number"),
        ({"num_kv_shared_layers": 4, "sliding_window": None}, "^num_kv_shared_layers: expected less than 4 layers"),
        ({"model_type": "llama4_text", "no_rope_layers": [1]}, "^no_rope_layers: expected a list of 4 entries, got 1"),
        ({"layer_types": [SLIDE] * 4, "sliding_window": -2}, "^sliding_window: expected a whole number"),
        ({"interleaved_sliding_window": [64, "no"]}, "^interleaved_sliding_window: expected a whole number .* 'no'"),
        (
            {"per_layer_config": {"1": {"sliding_window": 3}}},
            r"^per_layer_config\.1\.sliding_window: is not understood for a single layer",
        ),
        ({"per_layer_config": {"1": {"head_dim": 0}}}, r"^per_layer_config\.1\.head_dim: expected a whole number"),
    ],
)
def test_what_would_be_a_guess_is_refused(changes: dict[str, Any], message: str) -> None:
    """Lists of the wrong length and unknown words are errors that name the field."""
    with pytest.raises(UnsupportedConfig, match=message):
        kv_cache_spec({**flat("new", 1024, 4, 8, 2, sliding_window=64), **changes})


def test_v_may_have_a_width_of_its_own_in_every_kind_of_layer() -> None:
    """MiMo-V2: K of 192 and V of 128 in full layers, of 96 and 64 in sliding ones."""
    config = flat("new", 1024, 2, 8, 2, head_dim=192, v_head_dim=128, sliding_window=64, hybrid_layer_pattern=[0, 1])
    sliding = {"swa_head_dim": 96, "swa_v_head_dim": 64, "swa_num_key_value_heads": 4}
    assert kv_cache_spec({**config, **sliding}).bytes_per_token() == 2 * (192 + 128) * 2 + 4 * (96 + 64) * 2
    assert kv_cache_spec({**config, "swa_head_dim": 96}).bytes_per_token() == 2 * (192 + 128) * 2 + 2 * (96 + 96) * 2
