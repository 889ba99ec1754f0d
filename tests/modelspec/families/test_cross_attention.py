"""Mllama: the measured model, the layers its class implies, and what is refused."""

from typing import Any

import pytest

from kvguard.modelspec.config import UnsupportedConfig, kv_cache_spec
from tests.modelspec.families.measured import measured


@pytest.mark.parametrize("entry", measured("90B-Vision"), ids=lambda entry: entry["name"])
def test_measured(entry: dict[str, Any]) -> None:
    """Layers that attend to the image hold nothing of the text, and their price per image token is as measured."""
    spec = kv_cache_spec(entry["config"])
    assert spec.family == "cross-attention layers"
    assert {length: spec.bytes_for(int(length)) for length in entry["expected_bytes"]} == entry["expected_bytes"]
    assert spec.bytes_per_encoder_token() == entry["cross_attention"]["bytes_per_encoder_token_bf16"]


def test_the_class_implies_the_layers() -> None:
    """Llama-3.2-11B-Vision: 32 of 40 layers hold text, 8 the image; 8 heads of 128 each."""
    spec = kv_cache_spec({"model_type": "mllama"})
    assert (spec.bytes_per_token(), spec.bytes_per_encoder_token()) == (32 * 4096, 8 * 4096)


def test_no_layer_may_attend_to_the_image() -> None:
    """An empty list leaves text layers only."""
    assert kv_cache_spec({"model_type": "mllama", "cross_attention_layers": []}).bytes_per_token() == 40 * 4096


def test_a_layer_beyond_the_model_is_an_error() -> None:
    """The list must fit the number of layers."""
    with pytest.raises(UnsupportedConfig, match=r"^cross_attention_layers: expected layers below 40, got 40$"):
        kv_cache_spec({"model_type": "mllama", "cross_attention_layers": [3, 40]})
