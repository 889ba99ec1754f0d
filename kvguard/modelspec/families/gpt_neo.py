"""GPT-Neo: local layers between global ones, under names of its own (`attention_types`, `window_size`)."""

from typing import Final

from kvguard.modelspec.family import Family, ModelConfig
from kvguard.modelspec.fields import Fields
from kvguard.modelspec.heads import HEADS, HIDDEN, num_layers
from kvguard.modelspec.spec import AttentionSpec, Layers

_WORDS: Final = {"global": False, "local": True}
_DEFAULT_TYPES: Final = ("global", "local")
READS: Final = frozenset({"attention_types", "attention_layers", "window_size"})


def _layers(model: ModelConfig) -> Layers:
    text = model.text
    heads, hidden = text.required_whole(("num_heads", *HEADS)), text.required_whole(HIDDEN)
    if hidden % heads:
        raise text.error(HIDDEN[0], f"expected a multiple of {heads} attention heads, got {hidden}")
    full = AttentionSpec(num_kv_heads=heads, head_size=hidden // heads, format=model.format)
    local = AttentionSpec(
        num_kv_heads=heads, head_size=hidden // heads, format=model.format, sliding_window=text.required("window_size")
    )
    return tuple((local if _WORDS[word] else full,) for word in _attention_layers(text, num_layers(text)))


def _attention_layers(text: Fields, number: int) -> tuple[str, ...]:
    """One word a layer: listed, or as groups of words that repeat, [[["global", "local"], 12]]."""
    name = "attention_layers"
    words = text.texts(name)
    if not words and text.has("attention_types"):
        name = "attention_types"
        words = tuple(word for group in text.entries(name) or () for word in _repeated(text, group, number))
    if not words:
        words = tuple(_DEFAULT_TYPES[index % 2] for index in range(number))
    if len(words) != number or not set(words) <= _WORDS.keys():
        raise text.bad_value(name, f"'global' or 'local' for each of {number} layers")
    return words


def _repeated(text: Fields, group: object, number: int) -> tuple[str, ...]:
    match group:
        case [[*words], int(times)] if 0 <= times <= number:
            return tuple(word for word in words if isinstance(word, str)) * times
    raise text.bad_value("attention_types", "a list of [[words], times]")


FAMILY = Family(name="GPT-Neo", claims=lambda model: model.model_type == "gpt_neo", layers=_layers, reads=READS)
