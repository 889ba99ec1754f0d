"""Bytes of a model's weights: from the files in its directory, from its published size, or from its config's fields.

The count of parameters follows from the fields for the families in `_FAMILIES` only. Anything else raises
UnknownWeights, because a guess would show as requests that fit and do not.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvguard.estimate.source import Source, read_object
from kvguard.modelspec.config import text_fields
from kvguard.modelspec.fields import Fields, UnsupportedConfig
from kvguard.modelspec.heads import HEADS, HIDDEN, head_size, num_kv_heads, num_layers

_MODEL_BITS: Final = 16
_MXFP4_BITS: Final = 4.25  # 4 bits and one 8-bit scale per 32 elements
_INDEX: Final = "model.safetensors.index.json"


class UnknownWeights(ValueError):
    """The size of the weights cannot be derived; the message asks for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Bytes of the whole model, and where the figure came from."""

    size: int
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCount:
    """Parameters as quantised checkpoints tell them apart: embeddings stay in 16 bit, in some all but experts."""

    embedding: int
    experts: int
    rest: int

    @property
    def total(self) -> int:
        return self.embedding + self.experts + self.rest


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """What a family adds to the plain decoder: biases, extra norms, tied embeddings, and names of its experts."""

    qkv_bias: bool = False
    output_bias: bool = False
    head_norms: bool = False
    wide_norms: bool = False
    sinks: bool = False
    layer_norms: int = 2
    tied: bool = False
    latent: bool = False
    experts: str = ""
    expert_size: str = "moe_intermediate_size"
    expert_bias: bool = False


_DEEPSEEK: Final = _Family(latent=True, experts="n_routed_experts")
_FAMILIES: Final = {
    "llama": _Family(),
    "mistral": _Family(),
    "ministral3": _Family(),
    "phi3": _Family(),
    "qwen2": _Family(qkv_bias=True),
    "qwen3": _Family(head_norms=True),
    "olmo2": _Family(wide_norms=True),
    "olmo3": _Family(wide_norms=True),
    "gemma": _Family(tied=True),
    "gemma2": _Family(tied=True, layer_norms=4),
    "gemma3_text": _Family(tied=True, layer_norms=4, head_norms=True),
    "mixtral": _Family(experts="num_local_experts", expert_size="intermediate_size"),
    "qwen3_moe": _Family(head_norms=True, experts="num_experts"),
    "glm4_moe": _Family(experts="n_routed_experts"),
    "gpt_oss": _Family(
        qkv_bias=True,
        output_bias=True,
        sinks=True,
        experts="num_local_experts",
        expert_size="intermediate_size",
        expert_bias=True,
    ),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "kimi_k2": _DEEPSEEK,
}
_OTHER_MODALITIES: Final = ("vision_config", "audio_config")


def automatic_weights(source: Source) -> Weights:
    """Files first, then the published number of parameters, then the fields. Raise UnknownWeights."""
    size = _on_disk(source.directory) if source.directory is not None else 0
    if size:
        return Weights(size=size, basis="files of the directory")
    try:
        count = count_parameters(source.config)
    except UnknownWeights:
        if source.parameters is None:
            raise
        count = ParameterCount(embedding=0, experts=0, rest=source.parameters)
    bits = _stored_bits(source.config, count)
    if source.parameters is not None:
        bits = bits * source.parameters // count.total
    total = source.parameters or count.total
    return Weights(size=bits // 8, basis=f"{_billions(total)} parameters x {bits / total / 8:.3g} bytes")


def count_parameters(config: Mapping[str, object]) -> ParameterCount:
    """Parameters of a text model, as its class in transformers creates them. Raise UnknownWeights."""
    root = Fields(config)
    try:
        text = text_fields(root)
        family = _family(root, text)
        return _count(text, family)
    except UnsupportedConfig as error:
        raise UnknownWeights(f"cannot be computed, {error}; give --weights a size") from error


def _family(root: Fields, text: Fields) -> _Family:
    other = next((name for name in _OTHER_MODALITIES if root.has(name)), None)
    if other is not None:
        raise UnknownWeights(f"cannot be computed for a model with a {other}; give --weights a size")
    model_type = text.text("model_type") or ""
    family = _FAMILIES.get(model_type)
    if family is None:
        raise UnknownWeights(f"cannot be computed for model type {model_type!r}; give --weights a size")
    return family


def _count(text: Fields, family: _Family) -> ParameterCount:
    hidden, layers = text.required_whole(HIDDEN), num_layers(text)
    attention = _latent_attention(text, hidden) if family.latent else _attention(text, family, hidden)
    tied = text.flag("tie_word_embeddings", default=family.tied)
    embedding = text.required("vocab_size") * hidden * (1 if tied else 2)
    shared = layers * (attention + family.layer_norms * hidden) + hidden
    if not family.experts:
        return ParameterCount(embedding=embedding, experts=0, rest=shared + layers * _mlp(text, hidden))
    dense = text.whole("first_k_dense_replace", minimum=0) or 0
    sparse = layers - dense
    if sparse < 0 or (text.whole("decoder_sparse_step") or 1) != 1 or text.entries("mlp_only_layers"):
        raise UnknownWeights("cannot be computed for this mix of dense and expert layers; give --weights a size")
    experts, beside = _experts(text, family, hidden)
    rest = shared + sparse * beside + (dense * _mlp(text, hidden) if dense else 0)
    return ParameterCount(embedding=embedding, experts=sparse * experts, rest=rest)


def _mlp(text: Fields, hidden: int) -> int:
    width = text.required("intermediate_size")
    bias = 2 * width + hidden if text.flag("mlp_bias", default=False) else 0
    return 3 * hidden * width + bias


def _attention(text: Fields, family: _Family, hidden: int) -> int:
    heads, kv_heads, width = text.required_whole(HEADS), num_kv_heads(text), head_size(text)
    query, key = heads * width, kv_heads * width
    bias = text.flag("attention_bias", default=family.qkv_bias)
    output_bias = family.output_bias or (bias and not family.qkv_bias and text.text("model_type") == "llama")
    norms = query + key if family.wide_norms else 0
    if family.head_norms or text.flag("use_qk_norm", default=False):
        norms = 2 * width
    return (
        hidden * (query + 2 * key)
        + query * hidden
        + (query + 2 * key if bias else 0)
        + (hidden if output_bias else 0)
        + norms
        + (heads if family.sinks else 0)
    )


def _latent_attention(text: Fields, hidden: int) -> int:
    """MLA: queries through their own low rank where there is one, keys and values through the latent."""
    heads, latent, rope = text.required_whole(HEADS), text.required("kv_lora_rank"), text.required("qk_rope_head_dim")
    plain, value = text.required("qk_nope_head_dim"), text.required("v_head_dim")
    query, rank = heads * (plain + rope), text.whole("q_lora_rank")
    queries = hidden * query if rank is None else hidden * rank + rank + rank * query
    return queries + hidden * (latent + rope) + latent + latent * heads * (plain + value) + heads * value * hidden


def _experts(text: Fields, family: _Family, hidden: int) -> tuple[int, int]:
    """Parameters of one layer's routed experts, and of the router and shared experts beside them."""
    number, width = text.required(family.experts), text.required(family.expert_size)
    one = 3 * hidden * width + (2 * width + hidden if family.expert_bias else 0)
    router = number * hidden + (number if family.expert_bias else 0)
    shared = (text.whole("n_shared_experts", minimum=0) or 0) * 3 * hidden * width
    # DeepSeek-V3 and its kin correct the router with one learned bias per expert.
    correction = number if text.text("model_type") in {"deepseek_v3", "kimi_k2", "glm4_moe"} else 0
    return number * one, router + shared + correction


def _stored_bits(config: Mapping[str, object], count: ParameterCount) -> int:
    """Bits of the whole checkpoint. Quantised ones keep embeddings in 16 bit; MXFP4 ones all but the experts."""
    root = Fields(config)
    try:
        quantization = root.nested("quantization_config") or text_fields(root).nested("quantization_config")
        if quantization is None:
            return count.total * _MODEL_BITS
        bits = _quantized_bits(quantization)
    except UnsupportedConfig as error:
        raise UnknownWeights(f"cannot be computed, {error}; give --weights a size") from error
    small = count.experts if bits == _MXFP4_BITS and count.experts else count.total - count.embedding
    return int(small * bits) + (count.total - small) * _MODEL_BITS


def _quantized_bits(quantization: Fields) -> float:
    """Bits of one quantised weight, with its share of the group's scale and zero point."""
    method = (quantization.text("quant_method") or "").lower()
    if method == "mxfp4":
        return _MXFP4_BITS
    if method in {"fp8", "fbgemm_fp8"}:
        return 8
    if method == "bitsandbytes":
        return 4.5 if quantization.flag("load_in_4bit", default=False) else 8
    bits = quantization.whole("bits") or quantization.whole("w_bit")
    if method in {"gptq", "awq"} and bits:
        group = quantization.whole("group_size", minimum=-1) or -1
        return bits if group < 1 else bits + (_MODEL_BITS + bits) / group
    raise quantization.error("quant_method", f"{method!r} does not say how many bits a weight has")


def _on_disk(directory: Path) -> int:
    """Bytes of the checkpoint's tensors; 0 when there are none. `consolidated*` is a second copy of the same ones."""
    sizes = {path.name: path.stat().st_size for path in directory.glob("*.safetensors")}
    model = {name: size for name, size in sizes.items() if not name.startswith("consolidated")}
    on_disk = sum((model or sizes).values())
    if on_disk or not (directory / _INDEX).is_file():
        return on_disk
    try:
        metadata = read_object(directory / _INDEX).get("metadata")
        total = metadata.get("total_size") if isinstance(metadata, dict) else None
    except (OSError, ValueError) as error:
        raise UnknownWeights(f"{_INDEX} cannot be read: {error}") from error
    return int(total) if isinstance(total, int | float) and total > 0 else 0


def _billions(parameters: int) -> str:
    unit, name = (1e9, "billion") if parameters >= 10**9 else (1e6, "million")
    value = parameters / unit
    return f"{value:,.0f} {name}" if value >= 100 else f"{value:.3g} {name}"
