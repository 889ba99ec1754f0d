"""Cross-layer attention: neighbouring layers share one KV cache (`use_cla`, Hunyuan-Large)."""

from kvguard.modelspec.family import Family, ModelConfig
from kvguard.modelspec.heads import head_size, num_kv_heads, num_layers
from kvguard.modelspec.spec import AttentionSpec, Layers
from kvguard.modelspec.windows import WINDOW_FIELDS, layer_windows


def _claims(model: ModelConfig) -> bool:
    """`cla_share_factor` alone shares nothing: Hunyuan's dense models carry it as a leftover."""
    return model.text.flag("use_cla", default=False)


def _layers(model: ModelConfig) -> Layers:
    """The first of each `cla_share_factor` layers holds the cache of them all."""
    text = model.text
    factor, number = text.required("cla_share_factor"), num_layers(text)
    kv_heads, width = num_kv_heads(text), head_size(text)
    return tuple(
        (AttentionSpec(num_kv_heads=kv_heads, head_size=width, format=model.format, sliding_window=window),)
        if index % factor == 0
        else ()
        for index, window in enumerate(layer_windows(text, num_layers=number))
    )


FAMILY = Family(
    name="cross-layer attention",
    claims=_claims,
    layers=_layers,
    reads=WINDOW_FIELDS | {"use_cla"},
)
