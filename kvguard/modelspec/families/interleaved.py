"""Sliding or chunked layers between full ones, with heads of their own where a model has two geometries.

Also layers at the end that hold nothing because they reuse the KV of earlier ones (Gemma 3n, Gemma 4). Geometry after
gemma4.py, mimo_v2.py and step3p5.py in vLLM 0.32 and `per_layer_config` of transformers 5.19. Which layers slide is in
`patterns.py`.
"""

import re
from dataclasses import dataclass, replace
from typing import Final

from kvguard.modelspec.family import Family, ModelConfig
from kvguard.modelspec.fields import Fields
from kvguard.modelspec.heads import KV_HEADS, head_size, num_kv_heads, num_layers
from kvguard.modelspec.patterns import Kind, has_pattern, layer_kinds
from kvguard.modelspec.spec import AttentionSpec, Layers
from kvguard.modelspec.windows import WINDOW_FIELDS, window_entry, window_size

READS: Final = WINDOW_FIELDS | {
    *("sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers", "hybrid_layer_pattern"),
    *("prefix_dense_sliding_window_pattern", "sliding_windows", "interleaved_sliding_window", "sliding_window_size"),
    *("attention_chunk_size", "num_kv_shared_layers", "global_head_dim", "num_global_key_value_heads"),
    *("attention_k_eq_v", "per_layer_config", "v_head_dim", "swa_head_dim", "swa_v_head_dim"),
    *("swa_num_key_value_heads", "swa_num_attention_heads", "swa_rope_theta"),
}

_WINDOW_LISTS: Final = ("sliding_windows", "interleaved_sliding_window", "sliding_window")
# The class gives full layers this width where the file names none.
_GLOBAL_HEAD_SIZE: Final = 512
# A token sees so many tokens and itself: commandr.py and cohere2_moe.py in vLLM 0.32.
_AND_ITSELF: Final = re.compile(r"cohere2(_moe|_vision)?|aya_vision")
_WIDE_FULL_LAYERS: Final = re.compile(r"(gemma4|gemma4_unified|diffusion_gemma)(_text)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Heads:
    """KV heads of a layer and their widths; `head_size_v` where V has its own."""

    num_kv_heads: int
    head_size: int
    head_size_v: int | None = None


def _claims(model: ModelConfig) -> bool:
    text = model.text
    listed = any(isinstance(text.get(name), list | tuple) for name in _WINDOW_LISTS)
    shares = text.get("num_kv_shared_layers") not in (None, 0)
    return has_pattern(model) or listed or shares or bool(text.values.get("per_layer_config"))


def _layers(model: ModelConfig) -> Layers:
    text = model.text
    number = num_layers(text)
    held = number - _num_shared(text, number)
    windows = _windows(model, number)
    chunk = window_entry(text, "attention_chunk_size", text.get("attention_chunk_size"))
    heads = {kind: _heads(model, kind) for kind in Kind}
    layers: Layers = tuple(
        (_spec(model, kind, _overridden(text, index, heads[kind]), window=windows[index], chunk=chunk),)
        for index, kind in enumerate(layer_kinds(model, number))
    )
    return layers[:held] + ((),) * (number - held)


def _spec(model: ModelConfig, kind: Kind, heads: _Heads, *, window: int | None, chunk: int | None) -> AttentionSpec:
    return AttentionSpec(
        num_kv_heads=heads.num_kv_heads,
        head_size=heads.head_size,
        head_size_v=heads.head_size_v,
        format=model.format,
        sliding_window=window if kind is Kind.SLIDING else None,
        attention_chunk_size=chunk if kind is Kind.CHUNKED else None,
    )


def _num_shared(text: Fields, number: int) -> int:
    """The last layers, which reuse the KV of earlier ones."""
    shared = text.whole("num_kv_shared_layers", minimum=0) or 0
    if shared >= number:
        raise text.bad_value("num_kv_shared_layers", f"less than {number} layers")
    return shared


def _windows(model: ModelConfig, number: int) -> tuple[int | None, ...]:
    """The window of every layer that slides; a list that is shorter than the model starts anew (openPangu)."""
    text = model.text
    for name in _WINDOW_LISTS:
        if isinstance(text.get(name), list | tuple) and (entries := text.entries(name)):
            sizes = [window_entry(text, name, entry) for entry in entries]
            return tuple(sizes[index % len(sizes)] for index in range(number))
    single = text.get("interleaved_sliding_window")
    window = window_size(text) if single is None else window_entry(text, "interleaved_sliding_window", single)
    if window is not None and _AND_ITSELF.fullmatch(model.model_type):
        window += 1
    return (window,) * number


def _heads(model: ModelConfig, kind: Kind) -> _Heads:
    text = model.text
    base = _Heads(num_kv_heads=num_kv_heads(text), head_size=head_size(text), head_size_v=text.whole("v_head_dim"))
    base = _with_other_setting(text, kind, base)
    return _sliding_heads(text, base) if kind is Kind.SLIDING else _full_heads(model, kind, base)


def _sliding_heads(text: Fields, base: _Heads) -> _Heads:
    """MiMo-V2 has more and narrower heads where it slides."""
    width = text.whole("swa_head_dim")
    return _Heads(
        num_kv_heads=text.whole("swa_num_key_value_heads") or base.num_kv_heads,
        head_size=width or base.head_size,
        head_size_v=text.whole("swa_v_head_dim") or (base.head_size_v if width is None else None),
    )


def _full_heads(model: ModelConfig, kind: Kind, base: _Heads) -> _Heads:
    """Gemma 4 has fewer and wider heads in full layers; fewer only where V is K again (it is cached all the same)."""
    text = model.text
    if kind is not Kind.FULL or "per_layer_config" in text.values:
        return base
    width = text.whole("global_head_dim")
    if width is None and "global_head_dim" not in text.values and _WIDE_FULL_LAYERS.fullmatch(model.model_type):
        width = _GLOBAL_HEAD_SIZE
    fewer = text.flag("attention_k_eq_v", default=True)
    kv_heads = text.whole("num_global_key_value_heads") if fewer else None
    return replace(base, num_kv_heads=kv_heads or base.num_kv_heads, head_size=width or base.head_size)


def _with_other_setting(text: Fields, kind: Kind, base: _Heads) -> _Heads:
    """Step-3.5 gives the kind of layer that `attention_other_setting` names heads of its own."""
    other = text.nested("attention_other_setting")
    if other is None or other.text("attention_type") != kind.value:
        return base
    return _named(other, base)


def _overridden(text: Fields, index: int, heads: _Heads) -> _Heads:
    """`per_layer_config` has one object for every layer that differs, under its number, with a zero in front or not."""
    layers = text.nested("per_layer_config")
    if layers is None:
        return heads
    key = next((key for key in layers.values if key.isdecimal() and int(key) == index), None)
    own = None if key is None else layers.nested(key)
    if own is None:
        return heads
    unknown = next((name for name in own.values if re.search(r"window|layer_type|chunk", name)), None)
    if unknown is not None:
        raise own.error(unknown, "is not understood for a single layer")
    return _named(own, heads)


def _named(own: Fields, heads: _Heads) -> _Heads:
    return _Heads(
        num_kv_heads=own.first_whole(KV_HEADS) or heads.num_kv_heads,
        head_size=own.whole("head_dim") or heads.head_size,
        head_size_v=own.whole("v_head_dim") or heads.head_size_v,
    )


FAMILY = Family(name="interleaved windows", claims=_claims, layers=_layers, reads=READS)
