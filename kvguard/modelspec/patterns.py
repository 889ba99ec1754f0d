"""Which layers of a model slide, are chunked or are full, where its layers are not all of one kind.

A list in the file wins, then a pattern in the file, then the pattern of the model type. Patterns after the
configuration classes of transformers 5.19, which work out the list where a file has none.
"""

import re
from collections.abc import Callable
from enum import Enum
from typing import Final

from kvguard.modelspec.class_defaults import text_type
from kvguard.modelspec.family import ModelConfig
from kvguard.modelspec.fields import Fields

MTP_LAYERS: Final = "num_nextn_predict_layers"


class Kind(Enum):
    """What a layer attends to, in the words of `layer_types`."""

    FULL = "full_attention"
    SLIDING = "sliding_attention"
    CHUNKED = "chunked_attention"


Kinds = tuple[Kind, ...]

_WORDS: Final = {kind.value: kind for kind in Kind}
_LETTERS: Final = {"L": Kind.SLIDING, "G": Kind.FULL}
_INTERVALS: Final = ("sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers")

# The last layer of so many is full where the file has no pattern of its own.
_LAST_OF: Final = {
    **dict.fromkeys(("gemma2", "vaultgemma", "gpt_oss"), 2),
    **dict.fromkeys(("cohere2", "olmo3", "afmoe", "exaone4", "exaone_moe"), 4),
    "gemma3n_text": 5,
    **dict.fromkeys(("gemma3_text", "gemma4_text", "gemma4_unified_text", "diffusion_gemma_text"), 6),
}
_FULL_LAST_LAYER: Final = re.compile(r"(gemma4|gemma4_unified|diffusion_gemma)_text")


def listed_kinds(text: Fields, num_layers: int) -> Kinds | None:
    """`layer_types`, None where it is absent. It may run on over the layers that only draft (Step-3.5)."""
    words = text.texts("layer_types")
    if not words:
        return None
    if len(words) not in (num_layers, num_layers + (text.whole(MTP_LAYERS, minimum=0) or 0)):
        raise text.error("layer_types", f"expected a list of {num_layers} entries, got {len(words)}")
    unknown = next((word for word in words if word not in _WORDS), None)
    if unknown is not None:
        raise text.error("layer_types", f"{unknown!r} is not understood in this model")
    return tuple(_WORDS[word] for word in words[:num_layers])


def has_pattern(model: ModelConfig) -> bool:
    """Whether anything says that layers are of several kinds, in words understood here."""
    text = model.text
    if _type(model) in _LAST_OF or _type(model) in _OWN_RULES:
        return True
    words = text.get("layer_types")
    if words:
        return isinstance(words, list | tuple) and all(word in _WORDS for word in words if isinstance(word, str))
    flags = text.get("hybrid_layer_pattern")
    return isinstance(flags, list | tuple) or any(text.values.get(name) for name in _INTERVALS)


def layer_kinds(model: ModelConfig, num_layers: int) -> Kinds:
    """The kind of every layer. Without any pattern each is as `sliding_window` says."""
    text = model.text
    kinds = listed_kinds(text, num_layers) or _flagged(text, num_layers) or _by_rule(model, num_layers)
    if kinds is None:
        kinds = _all_sliding(text, num_layers)
    return (*kinds[:-1], Kind.FULL) if _FULL_LAST_LAYER.fullmatch(_type(model)) else kinds


def _by_rule(model: ModelConfig, num_layers: int) -> Kinds | None:
    rule = _OWN_RULES.get(_type(model))
    if rule is not None:
        return rule(model.text, num_layers)
    written = _written(model.text, num_layers)
    interval = _LAST_OF.get(_type(model))
    return written if written is not None or interval is None else _every(interval, num_layers)


def _type(model: ModelConfig) -> str:
    return text_type(model.model_type)


def _flagged(text: Fields, num_layers: int) -> Kinds | None:
    """`hybrid_layer_pattern` of MiMo-V2: 1 slides."""
    flags = text.wholes("hybrid_layer_pattern")
    if flags is None:
        return None
    if len(flags) != num_layers or not set(flags) <= {0, 1}:
        raise text.bad_value("hybrid_layer_pattern", f"a list of {num_layers} entries 0 or 1")
    return tuple(Kind.SLIDING if flag else Kind.FULL for flag in flags)


def _written(text: Fields, num_layers: int) -> Kinds | None:
    """A pattern as letters ("LLLG", EXAONE, whose last layer is full whatever they say) or as an interval."""
    if isinstance(text.get("sliding_window_pattern"), str):
        return _lettered(text, num_layers)
    intervals = [n for name in _INTERVALS if (n := text.whole(name, minimum=0)) is not None]
    return _every(intervals[0], num_layers) if intervals else None


def _lettered(text: Fields, num_layers: int) -> Kinds | None:
    letters = text.text("sliding_window_pattern")
    if not letters:
        return None
    if not set(letters) <= _LETTERS.keys():
        raise text.bad_value("sliding_window_pattern", "a number or a string of L and G")
    kinds = tuple(_LETTERS[letters[index % len(letters)]] for index in range(num_layers))
    return (*kinds[:-1], Kind.FULL)


def _every(interval: int, num_layers: int) -> Kinds:
    """The last of each `interval` layers is full; 0 makes all of them so."""
    return tuple(Kind.SLIDING if interval and (n + 1) % interval else Kind.FULL for n in range(num_layers))


def _first_of_four(_: Fields, num_layers: int) -> Kinds:
    return tuple(Kind.SLIDING if n % 4 else Kind.FULL for n in range(num_layers))


def _last_of_four_from_the_end(_: Fields, num_layers: int) -> Kinds:
    return tuple(Kind.SLIDING if (num_layers - 1 - n) % 4 else Kind.FULL for n in range(num_layers))


def _mimo(_: Fields, num_layers: int) -> Kinds:
    return (Kind.FULL, *_every(6, num_layers)[1:])


def _all_full(_: Fields, num_layers: int) -> Kinds:
    return (Kind.FULL,) * num_layers


def _all_sliding(_: Fields, num_layers: int) -> Kinds:
    return (Kind.SLIDING,) * num_layers


def _cohere2_moe(text: Fields, num_layers: int) -> Kinds:
    """The dense layers in front have an interval of their own."""
    dense = min(text.whole("first_k_dense_replace", minimum=0) or 0, num_layers)
    prefix = _every(text.whole("prefix_dense_sliding_window_pattern") or 1, dense)
    return prefix + _every(text.whole("sliding_window_pattern") or 4, num_layers - dense)


def _rope_layers(text: Fields, num_layers: int) -> Kinds:
    """Llama 4: layers with rotary positions (1) are chunked, the others full; every 4th where no list is given."""
    flags = text.wholes("no_rope_layers")
    if not flags:
        interval = text.whole("no_rope_layer_interval") or 4
        flags = tuple(int((n + 1) % interval != 0) for n in range(num_layers))
    if len(flags) != num_layers:
        raise text.error("no_rope_layers", f"expected a list of {num_layers} entries, got {len(flags)}")
    return tuple(Kind.CHUNKED if flag else Kind.FULL for flag in flags)


_OWN_RULES: Final[dict[str, Callable[[Fields, int], Kinds]]] = {
    **dict.fromkeys(("cwm", "granite_swa", "granitemoe_swa"), _first_of_four),
    **dict.fromkeys(("laguna", "mellum", "cohere_compass_text"), _all_full),
    "muse_glimmer_text": _last_of_four_from_the_end,
    "ministral": _all_sliding,
    "mimo_v2_flash": _mimo,
    "cohere2_moe": _cohere2_moe,
    "llama4_text": _rope_layers,
}
