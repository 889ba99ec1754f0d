"""Hugging Face `config.json`, as a mapping, -> `KVCacheSpec`. What is not understood is an error naming the field."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kvguard.modelspec.class_defaults import class_defaults, text_type
from kvguard.modelspec.dtype import Serving, cache_format
from kvguard.modelspec.families import FAMILIES, plain, upper_bound
from kvguard.modelspec.family import Family, ModelConfig
from kvguard.modelspec.fields import Fields, UnsupportedConfig
from kvguard.modelspec.foreign import refuse_foreign
from kvguard.modelspec.spec import KVCacheSpec, Layers

__all__ = ["Serving", "UnsupportedConfig", "kv_cache_spec", "text_fields"]

# Where multimodal files keep the language model. Their vision and audio objects hold the same names and never KV.
_TEXT_CONFIGS: Final = ("text_config", "llm_config", "language_config")
_OUTER_CONFIGS: Final = ("thinker_config",)

# Layers that draft for the model. Each keeps a cache like the model's last attention layer, only while drafting.
_MAX_DRAFT_LAYERS: Final = 64
MTP_LAYERS: Final = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")


def kv_cache_spec(
    config: Mapping[str, object],
    serving: Serving = Serving(),  # noqa: B008  a frozen value
    *,
    bound: bool = False,
) -> KVCacheSpec:
    """Read a model's layers. Raise UnsupportedConfig, which names the field, for what is not understood.

    With `bound`, a model of unknown attention counts as full attention in every layer instead, and the result says so
    in `assumptions`; what not even that bounds, such as recurrent state, stays an error.
    """
    root = Fields(config, defaults=class_defaults(config.get("model_type")))
    text = text_fields(root)
    model = ModelConfig(text=text, root=root, format=cache_format(root, text, serving), serving=serving)
    assumptions: tuple[str, ...] = ()
    try:
        family = next(family for family in FAMILIES if family.claims(model))
        refuse_foreign(model, family)
        layers = family.layers(model)
    except UnsupportedConfig as error:
        if not bound:
            raise
        family, layers = upper_bound.FAMILY, upper_bound.FAMILY.layers(model)
        assumptions = (f"full attention in every layer, because {error}",)
    else:
        assumptions = _unknown_type(model, family)
    return KVCacheSpec(layers=layers + _drafting(model, layers), family=family.name, assumptions=assumptions)


def _unknown_type(model: ModelConfig, family: Family) -> tuple[str, ...]:
    """What is assumed of a model whose type nobody here has heard of: that its fields mean what they usually do."""
    model_type = model.model_type
    if class_defaults(model_type) or model_type in family.types or model_type in plain.FAMILY.types:
        return ()
    name = repr(model_type) if model_type else "none"
    return (f"model_type {name[:80]} is not known: its fields are read as {family.name}",)


def text_fields(root: Fields) -> Fields:
    """The language model's object in the file. One that names no type has the type that the file around it implies."""
    outer = next((inner for name in _OUTER_CONFIGS if (inner := root.nested(name)) is not None), root)
    around = text_type(outer.values.get("model_type") or root.values.get("model_type"))
    for name in _TEXT_CONFIGS:
        inner = outer.nested(name)
        if inner is not None:
            implied = {} if inner.values.get("model_type") or not around else {"model_type": around}
            known = class_defaults(inner.values.get("model_type") or around)
            return replace(inner, defaults={**known, **implied})
    return outer if outer is root else replace(outer, defaults=class_defaults(around))


def _drafting(model: ModelConfig, layers: Layers) -> Layers:
    """Caches of the model's own draft layers, when the engine drafts with them."""
    if not model.serving.mtp:
        return ()
    number = model.text.first_whole(MTP_LAYERS, minimum=0)
    if not number:
        raise model.text.error(MTP_LAYERS[0], "missing, so the model has no layers to draft with")
    if number > _MAX_DRAFT_LAYERS:
        raise model.text.bad_value(MTP_LAYERS[0], f"at most {_MAX_DRAFT_LAYERS}")
    attention = next((layer for layer in reversed(layers) if any(cache.bytes_per_token() for cache in layer)), None)
    return () if attention is None else (attention,) * number
