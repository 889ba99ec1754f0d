"""Encoder and decoder: measured and other published models, and what is refused."""

from typing import Any

import pytest

from kvguard.modelspec.config import UnsupportedConfig, kv_cache_spec
from tests.modelspec.families.measured import measured

MEASURED = measured("t5-small", "bart-large", "whisper-tiny")


@pytest.mark.parametrize("entry", MEASURED, ids=lambda entry: entry["name"])
def test_measured(entry: dict[str, Any]) -> None:
    """The decoder grows as measured; the encoder's part is constant where its length is, else a price per token."""
    spec, cross = kv_cache_spec(entry["config"]), entry["cross_attention"]
    assert spec.family == "encoder and decoder"
    assert {length: spec.bytes_for(int(length)) for length in entry["expected_bytes"]} == entry["expected_bytes"]
    price, fixed = cross["bytes_per_encoder_token_bf16"], cross["fixed_encoder_tokens"]
    assert (spec.bytes_per_encoder_token(), spec.state_bytes()) == ((0, price * fixed) if fixed else (price, 0))


@pytest.mark.parametrize(
    ("config", "layers", "heads", "width"),
    [
        ({"model_type": "t5", "num_layers": 24, "num_heads": 128, "d_model": 1024, "d_kv": 128}, 24, 128, 128),
        ({"model_type": "mt5", "num_layers": 24, "num_decoder_layers": 12, "num_heads": 32}, 12, 32, 64),
        ({"model_type": "umt5"}, 8, 6, 64),
        ({"model_type": "mbart"}, 12, 16, 64),
        ({"model_type": "pegasus", "decoder_layers": 16}, 16, 16, 64),
        ({"model_type": "marian", "d_model": 512, "decoder_layers": 6, "decoder_attention_heads": 8}, 6, 8, 64),
        ({"model_type": "m2m_100", "decoder_layers": 24, "d_model": 2048}, 24, 16, 128),
        ({"model_type": "led", "attention_window": [1024] * 12}, 12, 16, 64),
        ({"model_type": "bart", "decoder_layers": 6, "num_hidden_layers": 12}, 6, 16, 64),
        (
            {
                "model_type": "new",
                "is_encoder_decoder": True,
                "decoder_layers": 2,
                "decoder_attention_heads": 4,
                "hidden_size": 256,
            },
            2,
            4,
            64,
        ),
    ],
)
def test_published(config: dict[str, Any], layers: int, heads: int, width: int) -> None:
    """Layers and heads of the decoder count, and every layer keeps the encoder's output as well."""
    spec = kv_cache_spec(config)
    assert spec.bytes_per_token() == spec.bytes_per_encoder_token() == layers * 4 * heads * width
    assert all(len(layer) == 2 for layer in spec.layers)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"is_encoder_decoder": True}, "^is_encoder_decoder: means an encoder, and the sizes of its decoder"),
        ({"model_type": "bart", "d_model": 1000}, "^d_model: expected a multiple of 16 attention heads, got 1000"),
        ({"model_type": "bart", "decoder_layers": 5000}, "^decoder_layers: expected at most 4096, got 5000"),
        ({"model_type": "t5", "num_heads": None}, "^num_heads: missing"),
        ({"model_type": "bart", "is_encoder_decoder": False, "num_hidden_layers": 2}, "^model_type: 'bart' has"),
    ],
)
def test_what_would_be_a_guess_is_refused(config: dict[str, Any], message: str) -> None:
    """A decoder of unknown sizes is an error that names the field."""
    with pytest.raises(UnsupportedConfig, match=message):
        kv_cache_spec(config)
