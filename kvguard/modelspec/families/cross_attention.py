"""Mllama (Llama 3.2 Vision): some decoder layers attend to the image only and hold nothing of the text."""

from typing import Final

from kvguard.modelspec.class_defaults import text_type
from kvguard.modelspec.family import Family, ModelConfig
from kvguard.modelspec.heads import head_size, num_kv_heads, num_layers
from kvguard.modelspec.spec import AttentionSpec, CrossAttentionSpec, Layers

_DEFAULT_LAYERS: Final = (3, 8, 13, 18, 23, 28, 33, 38)


def _claims(model: ModelConfig) -> bool:
    return text_type(model.model_type) == "mllama_text_model" or bool(model.text.get("cross_attention_layers"))


def _layers(model: ModelConfig) -> Layers:
    text = model.text
    number, kv_heads, width = num_layers(text), num_kv_heads(text), head_size(text)
    listed = text.wholes("cross_attention_layers")
    crossing = frozenset(_DEFAULT_LAYERS if listed is None else listed)
    if crossing and max(crossing) >= number:
        raise text.error("cross_attention_layers", f"expected layers below {number}, got {max(crossing)}")
    own = AttentionSpec(num_kv_heads=kv_heads, head_size=width, format=model.format)
    cross = CrossAttentionSpec(num_kv_heads=kv_heads, head_size=width, format=model.format)
    return tuple((cross if index in crossing else own,) for index in range(number))


FAMILY = Family(
    name="cross-attention layers", claims=_claims, layers=_layers, reads=frozenset({"cross_attention_layers"})
)
