"""Hugging Face `config.json`, as a mapping, -> `KVCacheSpec`. What is not understood is an error naming the field."""

from collections.abc import Mapping
from typing import Final

from kvguard.modelspec.dtype import dtype_bytes
from kvguard.modelspec.fields import Fields, UnsupportedConfig
from kvguard.modelspec.foreign import refuse_foreign
from kvguard.modelspec.heads import head_size, num_kv_heads, num_layers
from kvguard.modelspec.spec import KVCacheSpec, LayerSpec
from kvguard.modelspec.windows import layer_windows

__all__ = ["UnsupportedConfig", "kv_cache_spec"]

# Where multimodal files keep the language model. Their vision and audio objects hold the same names and never KV.
_TEXT_CONFIGS: Final = ("text_config", "llm_config", "language_config")


def kv_cache_spec(config: Mapping[str, object], *, kv_cache_dtype: str = "auto") -> KVCacheSpec:
    """Read a model with plain attention (MHA, GQA, MQA), full or windowed. Raise UnsupportedConfig for any other.

    `kv_cache_dtype` is the engine's setting; "auto" is the dtype the checkpoint asks for.
    """
    root = Fields(config)
    if root.flag("is_encoder_decoder", default=False):
        raise root.error("is_encoder_decoder", "means an encoder, which is not supported yet")
    text = _text_fields(root)
    refuse_foreign(text)
    element_bytes = dtype_bytes(root, text, kv_cache_dtype)
    kv_heads, width = num_kv_heads(text), head_size(text)
    windows = layer_windows(text, num_layers=num_layers(text))
    return KVCacheSpec(
        layers=tuple(
            LayerSpec(num_kv_heads=kv_heads, head_size=width, dtype_bytes=element_bytes, sliding_window=window)
            for window in windows
        )
    )


def _text_fields(root: Fields) -> Fields:
    outer = root.nested("thinker_config") or root
    for name in _TEXT_CONFIGS:
        inner = outer.nested(name)
        if inner is not None:
            return inner
    return outer
