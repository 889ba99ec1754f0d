"""Linear attention mixed with full or latent attention: gated delta nets, KDA, lightning attention.

A linear layer keeps a matrix per head, and most keep the last inputs of a short convolution. State shapes after
mamba_utils.py in vLLM 0.32, layer rules and defaults after the classes in transformers 5.19.
"""

from collections.abc import Mapping
from typing import Final

from kvguard.modelspec.dtype import state_bytes_named
from kvguard.modelspec.families.latent import LATENT_FIELDS, latent
from kvguard.modelspec.family import MODEL_ELEMENT_BYTES, Family, ModelConfig
from kvguard.modelspec.fields import Fields
from kvguard.modelspec.heads import HEADS, HIDDEN, head_size, num_layers
from kvguard.modelspec.hybrid import (
    Caches,
    Mixer,
    at,
    compose,
    full_attention,
    last_of_each,
    listed,
    numbered,
    refuse_window,
    with_defaults,
)
from kvguard.modelspec.spec import Layers, StateSpec

READS: Final = LATENT_FIELDS | {
    *("linear_conv_kernel_dim", "linear_key_head_dim", "linear_value_head_dim", "linear_num_key_heads"),
    *("linear_num_value_heads", "full_attention_interval", "mamba_ssm_dtype", "linear_allow_neg_eigval"),
    *("linear_attn_config", "linear_head_dim", "linear_num_heads", "short_conv_kernel_size"),
    *("linear_attn_alpha_factor", "linear_attn_beta_factor", "full_attn_alpha_factor", "full_attn_beta_factor"),
    *("attn_type_list", "decoder_attention_types"),
    *("linear_silu", "linear_rope", "linear_mode", "use_linear_silu", "layers_block_type"),
}

_GATED_DELTA: Final[Mapping[str, object]] = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "full_attention_interval": 4,
    "num_attention_heads": 16,
    "head_dim": 256,
}
_QWEN_SMALL: Final = {**_GATED_DELTA, "num_key_value_heads": 4, "num_hidden_layers": 32}
_QWEN_MOE: Final = {**_GATED_DELTA, "num_key_value_heads": 2, "num_hidden_layers": 40}
_KIMI: Final[Mapping[str, object]] = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
# transformers 5.19; bailing_hybrid after the class in vLLM 0.32
_DEFAULTS: Final[Mapping[str, Mapping[str, object]]] = {
    "qwen3_next": {**_QWEN_MOE, "num_hidden_layers": 48},
    **dict.fromkeys(("qwen3_5", "qwen3_5_text"), _QWEN_SMALL),
    **dict.fromkeys(("qwen3_5_moe", "qwen3_5_moe_text"), _QWEN_MOE),
    "olmo_hybrid": {
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
        "num_attention_heads": 30,
        "hidden_size": 3840,
        "num_hidden_layers": 32,
    },
    **dict.fromkeys(("kimi_linear", "kimi_k3"), _KIMI),
    "minimax": {
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": 32,
    },
    "bailing_hybrid": {**_KIMI, "layer_group_size": 5},
}
_KIMI_TYPES: Final = frozenset({"kimi_linear", "kimi_k3"})
_MINIMAX: Final = frozenset({"minimax", "minimax_text_01", "minimax_m1", "minimax_vl_01"})
_BAILING: Final = frozenset({"bailing_hybrid", "bailing_moe_linear"})
_TYPES: Final = frozenset({*_DEFAULTS, *_MINIMAX, *_BAILING})
# Gated delta nets beside caches that nothing here describes.
_OTHERS: Final = frozenset({"qwen4_exp", "qwen4_exp_text"})
_TYPE_LISTS: Final = ("attn_type_list", "decoder_attention_types")


def _claims(model: ModelConfig) -> bool:
    """The known types, and any other that describes a gated delta net or names lightning layers by number."""
    text, model_type = model.text, model.model_type
    gated = text.has("linear_num_value_heads") and text.has("linear_key_head_dim")
    lightning = any(0 in (text.entries(name) or ()) for name in _TYPE_LISTS)
    return model_type in _TYPES or ((gated or lightning) and model_type not in _OTHERS)


def _layers(model: ModelConfig) -> Layers:
    text = with_defaults(model.text, _DEFAULTS.get(model.model_type, {}))
    refuse_window(text)
    if model.model_type in _KIMI_TYPES:
        return _kimi(model, text)
    if model.model_type in _BAILING:
        return _bailing(model, text)
    if text.has("linear_key_head_dim") or model.model_type == "olmo_hybrid":
        return _gated(model, text)
    return _lightning_layers(model, text)


def _gated(model: ModelConfig, text: Fields) -> Layers:
    count = num_layers(text)
    mixers = listed(text, num_layers=count)
    if mixers is None:
        mixers = last_of_each(text.required("full_attention_interval"), num_layers=count)
    return compose(
        mixers,
        attention=lambda: full_attention(model, text),
        state=lambda: _gated_delta_net(model, text),
    )


def _gated_delta_net(model: ModelConfig, text: Fields) -> Caches:
    """Queries and keys of the key heads and values of the value heads in the convolution, a matrix per value head."""
    keys = text.whole("linear_num_key_heads") or text.required_whole(HEADS)
    values = text.whole("linear_num_value_heads") or text.required_whole(HEADS)
    key_size = text.whole("linear_key_head_dim") or 3 * text.required_whole(HIDDEN) // (4 * keys)
    value_size = text.whole("linear_value_head_dim") or 2 * key_size
    conv = (2 * keys * key_size + values * value_size) * (text.required("linear_conv_kernel_dim") - 1)
    return (
        model.state(
            conv_elements=conv,
            recurrent_elements=values * value_size * key_size,
            recurrent_element_bytes=state_bytes_named(text, "mamba_ssm_dtype", default=MODEL_ELEMENT_BYTES),
        ),
    )


def _kimi(model: ModelConfig, text: Fields) -> Layers:
    count = num_layers(text)
    linear = text.nested("linear_attn_config")
    mixers = listed(text, num_layers=count) if linear is None else _kimi_mixers(linear, count)
    if mixers is None:
        raise text.error("linear_attn_config", "missing")
    return compose(
        mixers,
        attention=lambda: latent(model, text),
        state=lambda: _kimi_state(model, text) if linear is None else _kimi_state_in(model, linear),
    )


def _kimi_mixers(linear: Fields, count: int) -> tuple[Mixer, ...]:
    """Layers by number, from 1. Each must be in one of the two lists."""
    full = numbered(linear, "full_attn_layers", num_layers=count, first=1)
    kda = numbered(linear, "kda_layers", num_layers=count, first=1)
    if full is None or kda is None:
        raise linear.error("kda_layers" if full is not None else "full_attn_layers", "missing")
    if full & kda or len(full | kda) != count:
        raise linear.error("kda_layers", f"expected with full_attn_layers each of {count} layers once")
    return at(full, num_layers=count)


def _kimi_state_in(model: ModelConfig, linear: Fields) -> Caches:
    return _kda(
        model,
        heads=linear.required("num_heads"),
        size=linear.required("head_dim"),
        kernel=linear.required("short_conv_kernel_size"),
    )


def _kimi_state(model: ModelConfig, text: Fields) -> Caches:
    """Files saved by the library hold the same sizes outside any object."""
    return _kda(
        model,
        heads=text.required("linear_num_heads"),
        size=text.required("linear_head_dim"),
        kernel=text.required("linear_conv_kernel_dim"),
    )


def _kda(model: ModelConfig, *, heads: int, size: int, kernel: int) -> Caches:
    """Queries, keys and values in the convolution, a float32 matrix per head."""
    return (
        model.state(
            conv_elements=3 * heads * size * (kernel - 1),
            recurrent_elements=heads * size**2,
            recurrent_element_bytes=4,
        ),
    )


def _bailing(model: ModelConfig, text: Fields) -> Layers:
    """Ling and Ring: the last layer of each group attends, and every layer past the last whole group.

    Attention is latent where the file has a rank; the other layers are KDA in the third version, else lightning.
    """
    count, group = num_layers(text), text.required("layer_group_size")
    whole = count // group * group
    attending = {index for index in range(count) if (index + 1) % group == 0 or index >= whole}
    return compose(
        at(attending, num_layers=count),
        attention=lambda: latent(model, text) if text.has("kv_lora_rank") else full_attention(model, text),
        state=lambda: _bailing_state(model, text),
    )


def _bailing_state(model: ModelConfig, text: Fields) -> Caches:
    third = any("BailingMoeV3" in str(name) for name in model.root.entries("architectures") or ())
    kernel = text.whole("short_conv_kernel_size") or (4 if third else None)
    if kernel is None:
        return _lightning(text)
    return _kda(model, heads=text.required_whole(HEADS), size=head_size(text), kernel=kernel)


def _lightning_layers(model: ModelConfig, text: Fields) -> Layers:
    return compose(
        _lightning_mixers(model, text),
        attention=lambda: full_attention(model, text),
        state=lambda: _lightning(text),
    )


def _lightning_mixers(model: ModelConfig, text: Fields) -> tuple[Mixer, ...]:
    """MiniMax: numbers (0 linear, 1 full) or names; without either, full and linear take turns in `minimax`."""
    count = num_layers(text)
    name = next((name for name in _TYPE_LISTS if text.has(name)), None)
    if name is not None:
        kinds = text.wholes(name) or ()
        if len(kinds) != count or not set(kinds) <= {0, 1}:
            raise text.bad_value(name, f"{count} entries, each 0 or 1")
        return tuple(Mixer.ATTENTION if kind else Mixer.STATE for kind in kinds)
    mixers = listed(text, num_layers=count)
    if mixers is None and model.model_type != "minimax":
        raise text.error(_TYPE_LISTS[0], "missing")
    return mixers or at(range(0, count, 2), num_layers=count)


def _lightning(text: Fields) -> Caches:
    """A matrix per attention head, in the model's dtype: vLLM's setting for other states does not reach it."""
    return (
        StateSpec(
            conv_elements=0,
            recurrent_elements=text.required_whole(HEADS) * head_size(text) ** 2,
            conv_element_bytes=MODEL_ELEMENT_BYTES,
            recurrent_element_bytes=MODEL_ELEMENT_BYTES,
        ),
    )


FAMILY = Family(name="linear attention", claims=_claims, layers=_layers, reads=READS, types=_TYPES | _KIMI_TYPES)
