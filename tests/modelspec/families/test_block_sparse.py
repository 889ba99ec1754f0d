"""Block-sparse attention: all tokens in every layer, and keys to choose by in some."""

from typing import Any

import pytest

from kvguard.modelspec.config import Serving, UnsupportedConfig, kv_cache_spec
from tests.modelspec.families.plans import flat

SPARSE = {"sparse_index_dim": 128, "sparse_num_index_heads": 4, "sparse_attention_freq": [0] * 3 + [1] * 57}
M3: dict[str, Any] = {
    "model_type": "minimax_m3_vl",
    "text_config": flat("minimax_m3_text", 6144, 60, 64, 4, head_dim=128, sparse_attention_config=SPARSE),
}
SAVED: dict[str, Any] = {
    "model_type": "minimax_m3_vl",
    "text_config": {
        "model_type": "minimax_m3_vl_text",
        "index_head_dim": 128,
        "layer_types": ["full_attention"] * 3 + ["minimax_m3_sparse"] * 57,
    },
}


@pytest.mark.parametrize("config", [M3, SAVED], ids=["its own file", "saved by transformers"])
def test_keys_to_choose_by_lie_beside_k_and_v(config: dict[str, Any]) -> None:
    """MiniMax-M3: 60 layers of 2 * 4 * 128 * 2 = 2048 bytes, and 57 keys of 128 * 2 = 256."""
    spec = kv_cache_spec(config)
    assert spec.family == "block-sparse attention"
    assert spec.settled_bytes_per_token() == 60 * 2048 + 57 * 256


def test_a_cache_dtype_leaves_those_keys_alone() -> None:
    """8 bits halve K and V only."""
    assert kv_cache_spec(M3, Serving(kv_cache_dtype="fp8")).bytes_per_token() == 60 * 1024 + 57 * 256


def test_without_a_schedule_no_layer_chooses() -> None:
    """The width is the class default where the file has none."""
    text = {**M3["text_config"], "sparse_attention_config": {"sparse_topk_blocks": 16}}
    assert kv_cache_spec({**M3, "text_config": text}).bytes_per_token() == 60 * 2048
    text = {**M3["text_config"], "sparse_attention_config": {"sparse_attention_freq": [1] * 60}}
    assert kv_cache_spec({**M3, "text_config": text}).bytes_per_token() == 60 * (2048 + 256)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sparse_attention_config": None}, r"^text_config\.sparse_attention_config: missing$"),
        (
            {"sparse_attention_config": {"sparse_attention_freq": [1]}},
            r"^text_config\.sparse_attention_config\.sparse_attention_freq: expected 60 entries, got 1$",
        ),
        ({"layer_types": ["full_attention"]}, r"^text_config\.layer_types: expected 60 entries"),
        ({"layer_types": ["odd"] * 60}, r"^text_config\.layer_types: expected 60 entries"),
        ({"sliding_window": 64}, r"^text_config\.sliding_window: is not understood in this model$"),
    ],
)
def test_what_would_be_a_guess_is_refused(changes: dict[str, Any], message: str) -> None:
    """Lists of the wrong length and unknown words are errors that name the field."""
    with pytest.raises(UnsupportedConfig, match=message):
        kv_cache_spec({**M3, "text_config": {**M3["text_config"], **changes}})
