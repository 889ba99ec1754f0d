"""Files to bytes: every measured model, and what the reader does before any family sees the file."""

from typing import Any

import pytest

from kvguard.modelspec.config import Serving, UnsupportedConfig, kv_cache_spec, text_fields
from kvguard.modelspec.fields import Fields
from tests.oracle import models

MODELS = models()

LLAMA_3_8B: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
}


@pytest.mark.parametrize("name", MODELS)
def test_measured_models_keep_what_was_measured(name: str) -> None:
    """Bytes at every length, growth below and beyond every window, constant state: all as measured, none assumed."""
    entry = MODELS[name]
    spec = kv_cache_spec(entry["config"])
    assert {length: spec.bytes_for(int(length)) for length in entry["expected_bytes"]} == entry["expected_bytes"]
    assert spec.settled_bytes_per_token() == entry["kv_bytes_per_token_bf16"]
    assert spec.bytes_per_token() == entry["kv_bytes_per_token_bf16_below_window"]
    fixed = entry.get("cross_attention", {})
    encoder = (fixed.get("fixed_encoder_tokens") or 0) * fixed.get("bytes_per_encoder_token_bf16", 0)
    assert spec.state_bytes() == entry.get("constant_state_bytes", 0) + encoder
    assert spec.assumptions == ()


def test_there_is_a_measured_model_for_every_row_of_the_table() -> None:
    """None was lost on the way."""
    assert len(MODELS) == 81


def test_fields_switched_off_do_not_matter() -> None:
    """Null, false, zero, -1 and empty values of foreign fields, and leftovers of a template, change nothing."""
    leftovers = {
        "num_kv_shared_layers": 0,
        "attn_layer_indices": None,
        "add_cross_attention": False,
        "is_encoder_decoder": False,
        "chunk_size_feed_forward": 0,
        "sliding_window_size": -1,
        "block_configs": [],
        "per_layer_config": {},
        "cla_share_factor": 2,
        "num_mtp_modules": 3,
        "text_config": {},
    }
    assert kv_cache_spec({**LLAMA_3_8B, **leftovers}) == kv_cache_spec(LLAMA_3_8B)


@pytest.mark.parametrize("name", ["text_config", "llm_config", "language_config"])
def test_the_language_model_may_be_nested(name: str) -> None:
    """Multimodal files keep it under one of three names, or one level deeper; top-level fields are then ignored."""
    spec = kv_cache_spec(LLAMA_3_8B)
    assert kv_cache_spec({name: LLAMA_3_8B, "num_hidden_layers": 1}) == spec
    assert kv_cache_spec({"thinker_config": {name: LLAMA_3_8B}}) == spec


@pytest.mark.parametrize(
    ("root", "model_type", "layers"),
    [
        ({"model_type": "llava", "text_config": {"vocab_size": 1}}, "llama", 32),
        ({"model_type": "llava", "text_config": {"model_type": "qwen3_moe"}}, "qwen3_moe", 24),
        ({"model_type": "gemma3", "text_config": {"hidden_size": 2560}}, "gemma3_text", 26),
        ({"thinker_config": {"model_type": "qwen2_5_omni_thinker", "text_config": {"x": 1}}}, "qwen2_5_omni_text", 28),
        ({"model_type": "qwen2_5_omni", "thinker_config": {"text_config": {"x": 1}}}, "qwen2_5_omni_text", 28),
        ({"model_type": "new_vl", "text_config": {"x": 1}}, "new_vl", None),
        ({"text_config": {"x": 1}}, None, None),
        ({"thinker_config": {"model_type": "llama"}}, "llama", 32),
    ],
)
def test_a_language_model_without_a_type_has_the_one_its_file_implies(
    root: dict[str, Any], model_type: str | None, layers: int | None
) -> None:
    """And with it that class's defaults."""
    text = text_fields(Fields(root))
    assert (text.text("model_type"), text.whole("num_hidden_layers")) == (model_type, layers)


def test_the_cache_dtype_scales_every_layer() -> None:
    """An 8-bit cache costs half."""
    assert kv_cache_spec(LLAMA_3_8B, Serving(kv_cache_dtype="fp8")).bytes_per_token() == 65536


def test_layers_that_draft_cost_as_much_as_the_last_layer() -> None:
    """Only when the engine drafts with them."""
    config = {**LLAMA_3_8B, "num_nextn_predict_layers": 2}
    assert kv_cache_spec(config) == kv_cache_spec(LLAMA_3_8B)
    assert kv_cache_spec(config, Serving(mtp=True)).bytes_per_token() == 34 * 4096
    with pytest.raises(UnsupportedConfig, match=r"^num_nextn_predict_layers: missing, so the model has no layers"):
        kv_cache_spec(LLAMA_3_8B, Serving(mtp=True))


def test_a_bound_is_given_only_where_it_is_asked_for() -> None:
    """The error becomes an assumption."""
    config = {**LLAMA_3_8B, "model_type": "new", "sparse_attention": "topk"}
    with pytest.raises(UnsupportedConfig, match=r"^sparse_attention: "):
        kv_cache_spec(config)
    spec = kv_cache_spec(config, bound=True)
    assert spec.bytes_per_token() == kv_cache_spec(LLAMA_3_8B).bytes_per_token()
    (assumption,) = spec.assumptions
    assert assumption.startswith("full attention in every layer, because sparse_attention: ")


def test_an_empty_config_names_what_is_missing() -> None:
    """Nothing is assumed about a file that says nothing."""
    with pytest.raises(UnsupportedConfig, match=r"^num_attention_heads: missing$"):
        kv_cache_spec({})


def test_more_draft_layers_than_any_model_has_are_refused() -> None:
    """A hostile file cannot ask for a billion caches."""
    with pytest.raises(UnsupportedConfig, match=r"^num_nextn_predict_layers: expected at most 64"):
        kv_cache_spec({**LLAMA_3_8B, "num_nextn_predict_layers": 10**9}, Serving(mtp=True))
