"""Short convolutions (LFM2), gated linear recurrences (Griffin) and RWKV, by themselves or among attention layers.

LFM2 after vLLM 0.32, RecurrentGemma and RWKV after what transformers 5.19 allocates.
"""

from collections.abc import Callable, Mapping
from typing import Final

from kvguard.modelspec.family import Family, ModelConfig
from kvguard.modelspec.fields import Fields
from kvguard.modelspec.heads import HEADS, HIDDEN, num_layers
from kvguard.modelspec.hybrid import (
    WORDS,
    Caches,
    Mixer,
    at,
    compose,
    full_attention,
    listed,
    numbered,
    refuse_window,
    with_defaults,
)
from kvguard.modelspec.spec import AttentionSpec, Layers

READS: Final = frozenset(
    {
        *("conv_L_cache", "conv_dim", "conv_dim_out", "conv_bias", "conv_use_xavier_init", "full_attn_idxs"),
        *("sliding_window", "attention_window_size", "lru_width", "block_types", "_block_types"),
    }
)

# transformers 5.19
_LFM2: Final[Mapping[str, object]] = {
    "hidden_size": 2560,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "conv_L_cache": 3,
}
_LFM2_MOE: Final = {**_LFM2, "hidden_size": 2048}
_GEMMA: Final[Mapping[str, object]] = {
    "hidden_size": 2560,
    "num_hidden_layers": 26,
    "num_attention_heads": 10,
    "attention_window_size": 2048,
    "conv1d_width": 4,
    "block_types": ["recurrent", "recurrent", "attention"],
}
_RWKV: Final[Mapping[str, object]] = {"hidden_size": 4096, "num_hidden_layers": 32}


def _lfm2(model: ModelConfig) -> Layers:
    text = with_defaults(model.text, _LFM2_MOE if model.model_type == "lfm2_moe" else _LFM2)
    refuse_window(text)
    count = num_layers(text)
    mixers = listed(text, num_layers=count)
    if mixers is None:
        attending = numbered(text, "full_attn_idxs", num_layers=count)
        mixers = (Mixer.ATTENTION,) * count if attending is None else at(attending, num_layers=count)
    return compose(
        mixers,
        attention=lambda: full_attention(model, text),
        state=lambda: _short_conv(model, text),
    )


def _short_conv(model: ModelConfig, text: Fields) -> Caches:
    width = text.whole("conv_dim") or text.required_whole(HIDDEN)
    return (model.state(conv_elements=width * (text.required("conv_L_cache") - 1), recurrent_elements=0),)


def _recurrent_gemma(model: ModelConfig) -> Layers:
    """`block_types`, in files `_block_types`, repeats over the layers.

    Attention slides in all of its layers; the recurrence is float32.
    """
    text = with_defaults(model.text, _GEMMA)
    words = text.texts("_block_types") or text.texts("block_types") or ()
    if not words or not set(words) <= {"recurrent", "attention"}:
        raise text.bad_value("block_types", "a list of recurrent and attention")
    mixers = tuple(WORDS[words[index % len(words)]] for index in range(num_layers(text)))
    return compose(
        mixers,
        attention=lambda: _gemma_attention(model, text),
        state=lambda: _gemma_state(model, text),
    )


def _gemma_attention(model: ModelConfig, text: Fields) -> Caches:
    """Heads share the hidden size; a `head_dim` in the file is not read."""
    heads, hidden = text.required_whole(HEADS), text.required("hidden_size")
    if hidden % heads:
        raise text.error("hidden_size", f"expected a multiple of {heads} attention heads, got {hidden}")
    return (
        AttentionSpec(
            num_kv_heads=text.whole("num_key_value_heads") or heads,
            head_size=hidden // heads,
            format=model.format,
            sliding_window=text.required("attention_window_size"),
        ),
    )


def _gemma_state(model: ModelConfig, text: Fields) -> Caches:
    hidden = text.required("hidden_size")
    return (
        model.state(
            conv_elements=hidden * (text.required("conv1d_width") - 1),
            recurrent_elements=text.whole("lru_width") or hidden,
            recurrent_element_bytes=4,
        ),
    )


def _rwkv(model: ModelConfig) -> Layers:
    """RWKV 4: the last input of both mixers, and three float32 vectors of the attention."""
    text = with_defaults(model.text, _RWKV)
    hidden = text.required("hidden_size")
    state = model.state(conv_elements=2 * hidden, recurrent_elements=3 * hidden, recurrent_element_bytes=4)
    return ((state,),) * num_layers(text)


_READERS: Final[Mapping[str, Callable[[ModelConfig], Layers]]] = {
    **dict.fromkeys(("lfm2", "lfm2_moe", "lfm2_vl"), _lfm2),
    "recurrent_gemma": _recurrent_gemma,
    "rwkv": _rwkv,
}

FAMILY = Family(
    name="recurrent layers",
    claims=lambda model: model.model_type in _READERS,
    layers=lambda model: _READERS[model.model_type](model),
    reads=READS,
    types=frozenset(_READERS),
)
