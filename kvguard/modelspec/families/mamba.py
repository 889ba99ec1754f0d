"""Mamba-1 and Mamba-2, alone and mixed with attention: a constant state per Mamba layer, K and V per attention layer.

State shapes after mamba_utils.py in vLLM 0.32, layer rules and defaults after the classes in transformers 5.19.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kvguard.modelspec.dtype import state_bytes_named
from kvguard.modelspec.family import Family, ModelConfig
from kvguard.modelspec.fields import Fields
from kvguard.modelspec.heads import HEADS, HIDDEN, LAYERS, num_kv_heads, num_layers
from kvguard.modelspec.hybrid import (
    LAYER_LISTS,
    Caches,
    Mixer,
    at,
    compose,
    full_attention,
    listed,
    numbered,
    refuse_window,
    spelled,
    with_defaults,
)
from kvguard.modelspec.spec import AttentionSpec, Layers

_EXPAND: Final = ("mamba_expand", "expand")
_KERNEL: Final = ("mamba_d_conv", "conv_kernel")
_STATE: Final = ("mamba_d_state", "ssm_state_size", "state_size")
_GROUPS: Final = ("mamba_n_groups", "mamba_ngroups", "n_groups")
_HEADS: Final = ("mamba_n_heads", "n_mamba_heads", "mamba_num_heads")
_HEAD_SIZE: Final = ("mamba_d_head", "mamba_head_dim", "mamba_headdim")

READS: Final = frozenset(
    {
        *(*_EXPAND, *_KERNEL, *_STATE, *_GROUPS, *_HEADS, *_HEAD_SIZE),
        *("sliding_window", "use_sliding_window", "max_window_layers", "attention_window_size"),
        *("attn_layer_period", "attn_layer_offset", "attn_layer_indices", "layers_block_type", "hybrid_layer_ids"),
        *("hybrid_override_pattern", "mtp_hybrid_override_pattern", "mtp_layers_block_type"),
        *("mamba_d_ssm", "mamba_step", "mamba_enabled", "mamba_dt_rank", "mamba_dt_min", "mamba_dt_max"),
        *("mamba_dt_limit", "mamba_dt_init_floor", "mamba_hidden_act", "hidden_mamba_act", "mamba_chunk_size"),
        *("chunk_size", "mamba_conv_bias", "mamba_proj_bias", "mamba_inner_layernorms", "mamba_rms_norm"),
        *("mamba_norm_before_gate", "mamba_use_mlp", "mamba_ssm_cache_dtype", "use_mamba_kernels", "use_mambapy"),
        *("use_falcon_mambapy", "use_conv_bias", "conv_bias", "ssm_multipliers", "ssm_in_multiplier"),
        *("ssm_out_multiplier", "full_attention_idx"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """How one model type names its layers, its state and its attention, and what its class fills in."""

    mixers: Callable[[Fields], tuple[Mixer, ...]]
    state: Callable[[ModelConfig, Fields], Caches]
    attention: Callable[[ModelConfig, Fields], Caches] = full_attention
    defaults: Mapping[str, object] = field(default_factory=dict)


def _mamba1(model: ModelConfig, text: Fields) -> Caches:
    """`intermediate_size` is the inner width where there is no attention, that of the MLP in hybrids."""
    inner = None if text.has("num_attention_heads") else text.whole("intermediate_size")
    inner = inner or _expanded(text)
    conv = inner * (text.required_whole(_KERNEL) - 1)
    return (model.state(conv_elements=conv, recurrent_elements=inner * text.required_whole(_STATE)),)


def _mamba2(model: ModelConfig, text: Fields) -> Caches:
    return _state(model, text, inner=text.whole("mamba_d_ssm") or _expanded(text))


def _pure_mamba2(model: ModelConfig, text: Fields) -> Caches:
    """Heads are the mixer's here, since there is no attention."""
    renamed = {"mamba_n_heads": text.required("num_heads"), "mamba_d_head": text.required("head_dim")}
    return _mamba2(model, with_defaults(text, renamed))


def _nemotron_state(model: ModelConfig, text: Fields) -> Caches:
    """The inner width is that of the heads, whatever `expand` says; the state is float32 unless the file says more."""
    size = state_bytes_named(text, "mamba_ssm_cache_dtype", default=4)
    inner = text.required_whole(_HEADS) * text.required_whole(_HEAD_SIZE)
    return _state(model, text, inner=inner, element_bytes=size)


def _plamo_state(model: ModelConfig, text: Fields) -> Caches:
    """B and C pass by the convolution, so groups add nothing to it; heads are as wide as those of attention."""
    heads, size = text.required("mamba_num_heads"), text.required("hidden_size_per_head")
    conv = heads * size * (text.required_whole(_KERNEL) - 1)
    return (model.state(conv_elements=conv, recurrent_elements=heads * size * text.required_whole(_STATE)),)


def _state(model: ModelConfig, text: Fields, *, inner: int, element_bytes: int = 2) -> Caches:
    heads, width = text.required_whole(_HEADS), text.required_whole(_STATE)
    conv = (inner + 2 * text.required_whole(_GROUPS) * width) * (text.required_whole(_KERNEL) - 1)
    recurrent = heads * _head_size(text, inner, heads) * width
    return (model.state(conv_elements=conv, recurrent_elements=recurrent, recurrent_element_bytes=element_bytes),)


def _head_size(text: Fields, inner: int, heads: int) -> int:
    """A number, or "auto" for what the inner width leaves each head."""
    names = [name for name in _HEAD_SIZE if text.get(name) != "auto"]
    size = text.first_whole(names)
    if size is None and inner % heads:
        raise text.error(_HEADS[0], f"expected a divisor of the inner width {inner}, got {heads}")
    return inner // heads if size is None else size


def _expanded(text: Fields) -> int:
    return text.required_whole(_EXPAND) * text.required_whole(HIDDEN)


def _only_state(text: Fields) -> tuple[Mixer, ...]:
    return (Mixer.STATE,) * num_layers(text)


def _always_both(text: Fields) -> tuple[Mixer, ...]:
    return (Mixer.BOTH,) * num_layers(text)


def _periodic(text: Fields) -> tuple[Mixer, ...]:
    """Jamba: layer `attn_layer_offset` of each period is attention."""
    period, offset = _period(text)
    count = num_layers(text)
    return at(range(offset, count, period), num_layers=count)


def _period(text: Fields) -> tuple[int, int]:
    period, offset = text.required("attn_layer_period"), text.required("attn_layer_offset", minimum=0)
    if offset >= period:
        raise text.error("attn_layer_offset", f"expected less than attn_layer_period {period}, got {offset}")
    return period, offset


def _indexed(text: Fields) -> tuple[Mixer, ...]:
    """Bamba: the attention layers by number, none without such a list."""
    count = num_layers(text)
    return at(numbered(text, "attn_layer_indices", num_layers=count) or (), num_layers=count)


def _granite(text: Fields) -> tuple[Mixer, ...]:
    return listed(text, num_layers=num_layers(text)) or _only_state(text)


def _zamba(text: Fields) -> tuple[Mixer, ...]:
    """Zamba 1: the third layer is hybrid, then one in each period, counted from the fourth."""
    count = num_layers(text)
    mixers = listed(text, num_layers=count)
    if mixers is not None:
        return mixers
    period, offset = _period(text)
    return at({2, *range(3 + offset, count, period)}, num_layers=count, mixer=Mixer.BOTH)


def _zamba2(text: Fields) -> tuple[Mixer, ...]:
    count = num_layers(text)
    mixers = listed(text, num_layers=count)
    if mixers is not None:
        return mixers
    hybrid = numbered(text, "hybrid_layer_ids", num_layers=count)
    return at(hybrid or (), num_layers=count, mixer=Mixer.BOTH)


def _zamba_attention(model: ModelConfig, text: Fields) -> Caches:
    """Heads over hidden state and embedding side by side, so they share twice the hidden size.

    Files also hold `kv_channels`, half as wide, which no cache has.
    """
    width, heads = text.whole("attention_head_dim"), text.required_whole(HEADS)
    if width is None and 2 * text.required_whole(HIDDEN) % heads:
        raise text.error(HIDDEN[0], f"expected twice its value to be a multiple of {heads} attention heads")
    width = width or 2 * text.required_whole(HIDDEN) // heads
    return (AttentionSpec(num_kv_heads=num_kv_heads(text), head_size=width, format=model.format),)


def _nemotron(text: Fields) -> tuple[Mixer, ...]:
    """A list or a string names every layer; a count beside it must agree. Layers of MLP or experts keep nothing."""
    mixers = listed(text, num_layers=None)
    if mixers is None:
        if not text.has("hybrid_override_pattern"):
            raise text.error(LAYER_LISTS[1], "missing")
        mixers = spelled(text, "hybrid_override_pattern", _LETTERS)
    count = text.first_whole(LAYERS)
    if count is not None and count != len(mixers):
        raise text.error(LAYERS[0], f"expected {len(mixers)}, the number of layers named, got {count}")
    return mixers


def _plamo(text: Fields) -> tuple[Mixer, ...]:
    """PLaMo 2: the middle layer of each `mamba_step` is attention, the last one of a model too short for that."""
    count, step = num_layers(text), text.required("mamba_step", minimum=2)
    if not text.flag("mamba_enabled", default=True):
        return (Mixer.ATTENTION,) * count
    attention = range(step // 2, count, step) if count > step // 2 else (count - 1,)
    return at(attention, num_layers=count)


_LETTERS: Final = {"M": Mixer.STATE, "*": Mixer.ATTENTION, "-": Mixer.NOTHING, "E": Mixer.NOTHING}

_PURE: Final = {"hidden_size": 768, "state_size": 16, "conv_kernel": 4, "expand": 2, "num_hidden_layers": 32}
_MAMBA2: Final = {
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}

_KINDS: Final[Mapping[str, _Kind]] = {
    "mamba": _Kind(mixers=_only_state, state=_mamba1, defaults=_PURE),
    "falcon_mamba": _Kind(mixers=_only_state, state=_mamba1, defaults=_PURE),
    "mamba2": _Kind(
        mixers=_only_state,
        state=_pure_mamba2,
        defaults={
            "num_heads": 128,
            "head_dim": 64,
            "hidden_size": 4096,
            "num_hidden_layers": 64,
            "state_size": 128,
            "expand": 2,
            "conv_kernel": 4,
            "n_groups": 8,
        },
    ),
    "jamba": _Kind(
        mixers=_periodic,
        state=_mamba1,
        defaults={
            "attn_layer_period": 8,
            "attn_layer_offset": 4,
            "mamba_d_state": 16,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
        },
    ),
    "bamba": _Kind(mixers=_indexed, state=_mamba2, defaults=_MAMBA2),
    "granitemoehybrid": _Kind(mixers=_granite, state=_mamba2, defaults=_MAMBA2),
    "falcon_h1": _Kind(
        mixers=_always_both,
        state=_mamba2,
        defaults={**_MAMBA2, "mamba_d_ssm": 1024},
    ),
    "nemotron_h": _Kind(
        mixers=_nemotron,
        state=_nemotron_state,
        defaults={
            "mamba_num_heads": 128,
            "mamba_head_dim": 64,
            "n_groups": 8,
            "ssm_state_size": 128,
            "conv_kernel": 4,
        },
    ),
    "zamba": _Kind(
        mixers=_zamba,
        state=_mamba1,
        attention=_zamba_attention,
        defaults={
            "hidden_size": 3712,
            "num_hidden_layers": 76,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "attn_layer_period": 6,
            "attn_layer_offset": 4,
            "mamba_d_state": 16,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
        },
    ),
    "zamba2": _Kind(
        mixers=_zamba2,
        state=_mamba2,
        attention=_zamba_attention,
        defaults={
            "n_mamba_heads": 8,
            "mamba_ngroups": 1,
            "mamba_d_state": 64,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
            "hybrid_layer_ids": [6, 12, 18, 24, 30, 36, 42, 47, 51],
        },
    ),
    "plamo2": _Kind(mixers=_plamo, state=_plamo_state),
}


def _layers(model: ModelConfig) -> Layers:
    kind = _KINDS[model.model_type]
    text = with_defaults(model.text, kind.defaults)
    refuse_window(text)
    return compose(
        kind.mixers(text),
        attention=lambda: kind.attention(model, text),
        state=lambda: kind.state(model, text),
    )


FAMILY = Family(
    name="Mamba", claims=lambda model: model.model_type in _KINDS, layers=_layers, reads=READS, types=frozenset(_KINDS)
)
