"""The net itself; whole configs of foreign families are in test_config.py."""

import pytest

from kvguard.modelspec.fields import Fields, UnsupportedConfig
from kvguard.modelspec.foreign import refuse_foreign


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
        "use_sliding_window",
        "max_window_layers",
        "mlp_layer_types",
        "no_rope_layers",
        "n_group",
        "layer_types",
        "head_dim",
    ],
)
def test_ordinary_fields_pass(name: str) -> None:
    """Names that only look similar, or that other files read, are not refused."""
    refuse_foreign(Fields({name: 7, "model_type": "llama"}))


def test_the_reason_is_in_the_message() -> None:
    """An operator learns which field it was and what it stands for."""
    with pytest.raises(UnsupportedConfig, match=r"^kv_lora_rank: means latent attention .* not supported yet$"):
        refuse_foreign(Fields({"kv_lora_rank": 512}))
    with pytest.raises(UnsupportedConfig, match=r"^model_type: 'gemma2' has attention to a part of the context"):
        refuse_foreign(Fields({"model_type": "gemma2"}))
