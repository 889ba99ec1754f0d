"""Which layers of a hybrid model are attention and which keep a constant state."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Final

from kvguard.modelspec.family import ModelConfig
from kvguard.modelspec.fields import Fields
from kvguard.modelspec.heads import head_size, num_kv_heads
from kvguard.modelspec.spec import AttentionSpec, Layers, LayerSpec

Caches = tuple[LayerSpec, ...]

# Names of per-layer lists. Files of one model use one or another.
LAYER_LISTS: Final = ("layer_types", "layers_block_type")


class Mixer(Enum):
    """What mixes tokens in a layer."""

    ATTENTION = "attention"
    STATE = "state"
    BOTH = "attention and state"
    NOTHING = "nothing"


# transformers 5.19 renames `mamba` and `attention` to the words with an underscore; files have either.
WORDS: Final[Mapping[str, Mixer]] = {
    "attention": Mixer.ATTENTION,
    "full_attention": Mixer.ATTENTION,
    "mamba": Mixer.STATE,
    "linear_attention": Mixer.STATE,
    "conv": Mixer.STATE,
    "recurrent": Mixer.STATE,
    "hybrid": Mixer.BOTH,
    "mlp": Mixer.NOTHING,
    "moe": Mixer.NOTHING,
}


def with_defaults(fields: Fields, defaults: Mapping[str, object]) -> Fields:
    """The same object with what its configuration class puts where it says nothing."""
    return replace(fields, defaults={**fields.defaults, **defaults})


def listed(fields: Fields, *, num_layers: int | None) -> tuple[Mixer, ...] | None:
    """Layers named one by one, None without such a list. `num_layers` is None where the list is the count."""
    name = next((name for name in LAYER_LISTS if fields.has(name)), None)
    if name is None:
        return None
    words = fields.texts(name) or ()
    _check_length(fields, name, words, num_layers)
    unknown = [word for word in words if word not in WORDS]
    if unknown:
        raise fields.error(name, f"{unknown[0]!r} is not understood")
    return tuple(WORDS[word] for word in words)


def spelled(fields: Fields, name: str, letters: Mapping[str, Mixer]) -> tuple[Mixer, ...]:
    """Layers named by one letter each."""
    pattern = fields.text(name)
    if not pattern or any(letter not in letters for letter in pattern):
        raise fields.bad_value(name, f"a string of {' '.join(letters)}")
    return tuple(letters[letter] for letter in pattern)


def at(indices: Collection[int], *, num_layers: int, mixer: Mixer = Mixer.ATTENTION) -> tuple[Mixer, ...]:
    """`mixer` at these layers, counted from 0; a state in the others."""
    return tuple(mixer if index in indices else Mixer.STATE for index in range(num_layers))


def numbered(fields: Fields, name: str, *, num_layers: int, first: int = 0) -> frozenset[int] | None:
    """Layer numbers under `name`, counted from 0 whatever the file's `first`; None without such a list."""
    numbers = fields.wholes(name, minimum=first)
    if numbers is not None and any(number >= num_layers + first for number in numbers):
        raise fields.bad_value(name, f"layer numbers from {first} to {num_layers + first - 1}")
    return None if numbers is None else frozenset(number - first for number in numbers)


def last_of_each(interval: int, *, num_layers: int) -> tuple[Mixer, ...]:
    """Attention in the last layer of each group of `interval`."""
    return at(range(interval - 1, num_layers, interval), num_layers=num_layers)


def compose(mixers: Sequence[Mixer], *, attention: Callable[[], Caches], state: Callable[[], Caches]) -> Layers:
    """Each layer's caches. A kind that no layer has is not read, so a file need not describe it."""
    attending = attention() if Mixer.ATTENTION in mixers or Mixer.BOTH in mixers else ()
    keeping = state() if Mixer.STATE in mixers or Mixer.BOTH in mixers else ()
    caches = {
        Mixer.ATTENTION: attending,
        Mixer.STATE: keeping,
        Mixer.BOTH: attending + keeping,
        Mixer.NOTHING: (),
    }
    return tuple(caches[mixer] for mixer in mixers)


def full_attention(model: ModelConfig, text: Fields) -> Caches:
    """K and V of every token, with the model's usual heads."""
    return (AttentionSpec(num_kv_heads=num_kv_heads(text), head_size=head_size(text), format=model.format),)


def refuse_window(fields: Fields) -> None:
    """Raise UnsupportedConfig for a sliding window in a family whose layers all attend to everything.

    A window that `use_sliding_window` switches off is a leftover of a template.
    """
    if fields.flag("use_sliding_window", default=True) and fields.whole("sliding_window", minimum=0):
        raise fields.error("sliding_window", "is not understood in this model")


def _check_length(fields: Fields, name: str, words: Sequence[str], num_layers: int | None) -> None:
    if not words or (num_layers is not None and len(words) != num_layers):
        raise fields.error(name, f"expected {num_layers or 'at least 1'} entries, got {len(words)}")
