"""Weights: counted as the classes in transformers count them, or not at all."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvguard import presets
from kvguard.estimate.source import Source, find_source
from kvguard.estimate.weights import UnknownWeights, automatic_weights, count_parameters

# Presets whose parameters follow from their fields; the numbers in their files are the published ones.
COUNTED = [
    "llama-2-7b",
    "llama-3-8b",
    "llama-3.1-70b",
    "llama-3.2-1b",
    "mistral-7b-v0.1",
    "mistral-7b-v0.3",
    "mixtral-8x7b",
    "qwen2.5-7b",
    "qwen3-8b",
    "qwen3-30b-a3b",
    "phi-4",
    "gemma-2-9b",
    "gpt-oss-20b",
    "gpt-oss-120b",
    "deepseek-v2-lite",
    "deepseek-v3",
    "kimi-k2",
]


def decoder(model_type: str, **fields: object) -> dict[str, Any]:
    return {"model_type": model_type, **fields}


@pytest.mark.parametrize("name", COUNTED)
def test_parameters_follow_from_the_fields(name: str) -> None:
    """The count equals the published one to the last parameter."""
    preset = presets.load(name)
    assert count_parameters(preset.config).total == preset.parameters


GEMMA_3_1B = decoder(
    "gemma3_text",
    hidden_size=1152,
    num_hidden_layers=26,
    num_attention_heads=4,
    num_key_value_heads=1,
    head_dim=256,
    intermediate_size=6912,
    vocab_size=262144,
)
OLMO_3_7B = decoder(
    "olmo3",
    hidden_size=4096,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=32,
    intermediate_size=11008,
    vocab_size=100278,
)
GLM_4_5 = decoder(
    "glm4_moe",
    hidden_size=5120,
    num_hidden_layers=92,
    num_attention_heads=96,
    num_key_value_heads=8,
    head_dim=128,
    intermediate_size=12288,
    moe_intermediate_size=1536,
    n_routed_experts=160,
    n_shared_experts=1,
    first_k_dense_replace=3,
    attention_bias=True,
    use_qk_norm=True,
    vocab_size=151552,
)


@pytest.mark.parametrize(
    ("config", "parameters"), [(GEMMA_3_1B, 999885952), (OLMO_3_7B, 7298011136), (GLM_4_5, 352797829024)]
)
def test_norms_and_biases_count(config: dict[str, Any], parameters: int) -> None:
    """Families differ by norms and biases; each was counted with its class in transformers 5.19."""
    assert count_parameters(config).total == parameters


def source(config: dict[str, Any], **more: Any) -> Source:
    return Source(name="model", origin="model", config=config, **more)


def mistral(**more: object) -> dict[str, Any]:
    return {**presets.load("mistral-7b-v0.1").config, **more}


@pytest.mark.parametrize(
    ("quantization", "size"),
    [
        (None, 14483464192),
        ({"quant_method": "fp8"}, 6979588096 + 2 * 262144000),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4150402128),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 6979588096 + 2 * 262144000),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4450306304),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 6979588096 + 2 * 262144000),
    ],
)
def test_quantised_weights_are_smaller(quantization: dict[str, Any] | None, size: int) -> None:
    """Embeddings stay in 16 bit; a group's scale and zero point count."""
    assert automatic_weights(source(mistral(quantization_config=quantization))).size == size


def test_mxfp4_holds_experts_only() -> None:
    """gpt-oss-20b is published as 13.76 GB of tensors: experts in 4.25 bits, the rest in 16."""
    assert automatic_weights(find_source("gpt-oss-20b")).size == pytest.approx(13.76e9, rel=0.001)


def test_a_published_size_is_used_where_the_fields_do_not_tell() -> None:
    """falcon-7b: 6,921,720,704 parameters in 16 bit."""
    assert automatic_weights(find_source("falcon-7b")).size == 2 * 6921720704


def test_tensors_on_disk_are_what_counts(tmp_path: Path) -> None:
    """The directory's tensors, without the second copy that some repositories carry."""
    (tmp_path / "config.json").write_text(json.dumps(mistral()))
    assert automatic_weights(find_source(str(tmp_path))).size == 14483464192
    (tmp_path / "model.safetensors.index.json").write_text('{"metadata": {"total_size": 77}}')
    assert automatic_weights(find_source(str(tmp_path))).size == 77
    (tmp_path / "consolidated.safetensors").write_bytes(bytes(100))
    (tmp_path / "model-1.safetensors").write_bytes(bytes(60))
    (tmp_path / "model-2.safetensors").write_bytes(bytes(40))
    assert automatic_weights(find_source(str(tmp_path))).size == 100


@pytest.mark.parametrize("content", ["nope", "[]", '{"metadata": 3}', "{}"])
def test_a_broken_index_is_no_size(content: str, tmp_path: Path) -> None:
    """An index that says nothing leaves the config; one that cannot be read is an error."""
    (tmp_path / "config.json").write_text(json.dumps(mistral()))
    (tmp_path / "model.safetensors.index.json").write_text(content)
    if content in {"nope", "[]"}:
        with pytest.raises(UnknownWeights, match=r"index\.json"):
            automatic_weights(find_source(str(tmp_path)))
    else:
        assert automatic_weights(find_source(str(tmp_path))).size == 14483464192


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (decoder("nobody_knows"), "model type 'nobody_knows'"),
        (decoder("llama", vision_config={"hidden_size": 1}), "vision_config"),
        (mistral(vocab_size=None), "vocab_size: missing"),
        (mistral(intermediate_size="wide"), "intermediate_size"),
        (mistral(quantization_config={"quant_method": "secret"}), "quant_method"),
        (mistral(quantization_config={"quant_method": "awq"}), "quant_method"),
        (mistral(quantization_config={"quant_method": "awq", "bits": "four"}), "bits"),
        ({**GLM_4_5, "first_k_dense_replace": 93}, "mix of dense and expert layers"),
        ({**presets.load("qwen3-30b-a3b").config, "decoder_sparse_step": 2}, "mix of dense and expert layers"),
    ],
)
def test_what_cannot_be_counted_asks_for_a_size(config: dict[str, Any], message: str) -> None:
    """The reason is named; nothing is guessed."""
    with pytest.raises(UnknownWeights, match=message):
        automatic_weights(source(config))
