"""Plain attention (MHA, GQA, MQA): every layer keeps K and V of the same heads, all of them or one window's worth."""

from kvguard.modelspec.family import Family, ModelConfig
from kvguard.modelspec.foreign import refuse_model_type
from kvguard.modelspec.heads import head_size, num_kv_heads, num_layers
from kvguard.modelspec.spec import AttentionSpec, Layers
from kvguard.modelspec.windows import WINDOW_FIELDS, layer_windows


def _layers(model: ModelConfig) -> Layers:
    refuse_model_type(model)
    text = model.text
    kv_heads, width = num_kv_heads(text), head_size(text)
    return tuple(
        (AttentionSpec(num_kv_heads=kv_heads, head_size=width, format=model.format, sliding_window=window),)
        for window in layer_windows(text, num_layers=num_layers(text))
    )


# MiniCPM 4 can read a part of what it keeps; vLLM reads all of it.
FAMILY = Family(name="plain attention", claims=lambda _: True, layers=_layers, reads=WINDOW_FIELDS | {"sparse_config"})
