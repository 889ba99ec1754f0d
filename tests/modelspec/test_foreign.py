"""The net itself; whole configs of foreign families are in the tests of each family."""

from typing import Any

import pytest

from kvguard.modelspec.families import plain
from kvguard.modelspec.family import Family, ModelConfig
from kvguard.modelspec.fields import Fields, UnsupportedConfig
from kvguard.modelspec.foreign import refuse_foreign, refuse_model_type, refuse_unbounded
from kvguard.modelspec.formats import SIXTEEN_BIT


def model(**values: Any) -> ModelConfig:
    return ModelConfig(text=Fields(values), root=Fields({}), format=SIXTEEN_BIT)


@pytest.mark.parametrize(
    "name",
    [
        "rope_theta",
        "max_position_embeddings",
        "num_nextn_predict_layers",
        "n_shared_experts",
        "shared_expert_intermediate_size",
        "tie_word_embeddings",
        "quantization_config",
        "compression_config",
        "decoder_start_token_id",
        "decoder_sparse_step",
        "use_sliding_window",
        "max_window_layers",
        "mlp_layer_types",
        "no_rope_layers",
        "n_group",
        "layer_types",
        "head_dim",
        "audio_chunk_length",
        "chunk_input",
        "cla_share_factor",
        "attention_layer_norm",
    ],
)
def test_ordinary_fields_pass(name: str) -> None:
    """Names that only look similar, or that other files read, are not refused."""
    refuse_foreign(model(**{name: 7, "model_type": "llama"}), plain.FAMILY)


@pytest.mark.parametrize("value", [None, False, 0, -1, "", [], {}])
def test_fields_switched_off_pass(value: object) -> None:
    """A foreign field without effect changes nothing."""
    refuse_foreign(model(kv_lora_rank=value), plain.FAMILY)


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("kv_lora_rank", "latent attention"),
        ("index_topk", "an indexer"),
        ("mamba_d_state", "recurrent or linear"),
        ("linear_num_key_heads", "recurrent or linear"),
        ("hybrid_override_pattern", "layers of several kinds"),
        ("num_kv_shared_layers", "layers that share KV"),
        ("cross_attention_layers", "an encoder"),
        ("global_head_dim", "two geometries"),
        ("attention_chunk_size", "attention to a part of the context"),
        ("blocksparse_block_size", "attention to a part of the context"),
        ("total_ut_steps", "layers that run, and cache, more than once"),
    ],
)
def test_the_reason_is_in_the_message(name: str, meaning: str) -> None:
    """An operator learns which field it was and what it stands for, unless the family reads it."""
    with pytest.raises(UnsupportedConfig, match=f"^{name}: means {meaning}.* not understood in this model"):
        refuse_foreign(model(**{name: 8}), plain.FAMILY)
    reader = Family(name="reader", claims=lambda _: True, layers=lambda _: (), reads=frozenset({name}))
    refuse_foreign(model(**{name: 8}), reader)


def test_an_object_for_attention_is_searched_too() -> None:
    """MPT keeps such fields there."""
    with pytest.raises(UnsupportedConfig, match=r"^attn_config\.sliding_window_size: means attention to a part"):
        refuse_foreign(model(attn_config={"sliding_window_size": 4096}), plain.FAMILY)
    refuse_foreign(model(attn_config={"sliding_window_size": -1}), plain.FAMILY)


def test_a_type_that_needs_no_field_is_refused_by_name() -> None:
    """Its layout differs whatever the file says."""
    with pytest.raises(UnsupportedConfig, match=r"^model_type: 'olmo9' has attention to a part of the context"):
        refuse_model_type(model(model_type="olmo9"))
    refuse_model_type(model(model_type="llama"))


def test_only_what_has_no_bound_is_refused_for_a_bound() -> None:
    """A window is bounded by full attention; a state, an encoder and a type without cache are not."""
    refuse_unbounded(model(sliding_window=64, mamba_d_state=0, model_type="gemma9"))
    with pytest.raises(UnsupportedConfig, match=r"^mamba_d_state: means recurrent .* no bound is known"):
        refuse_unbounded(model(mamba_d_state=16))
    with pytest.raises(UnsupportedConfig, match=r"^model_type: 'mbart' has an encoder, for which no bound is known"):
        refuse_unbounded(model(model_type="mbart"))
