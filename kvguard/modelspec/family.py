"""The seam between a config and the files that understand one kind of attention each."""

from collections.abc import Callable
from dataclasses import dataclass, field

from kvguard.modelspec.dtype import Serving, recurrent_bytes
from kvguard.modelspec.fields import Fields
from kvguard.modelspec.formats import KVFormat
from kvguard.modelspec.spec import Layers, StateSpec

MODEL_ELEMENT_BYTES = 2  # models are served in 16 bit


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """What a family reads: the language model's fields, the file around them, and how the cache is kept."""

    text: Fields
    root: Fields
    format: KVFormat
    serving: Serving = field(default_factory=Serving)

    @property
    def model_type(self) -> str:
        """The `model_type` of the language model, else of the file; empty when neither says."""
        return self.text.text("model_type") or self.root.text("model_type") or ""

    def state(self, *, conv_elements: int, recurrent_elements: int, recurrent_element_bytes: int = 2) -> StateSpec:
        """A layer's constant state: the convolution in the model's dtype, the recurrent part as the engine was told."""
        return StateSpec(
            conv_elements=conv_elements,
            recurrent_elements=recurrent_elements,
            conv_element_bytes=MODEL_ELEMENT_BYTES,
            recurrent_element_bytes=recurrent_bytes(self.serving, recurrent_element_bytes),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One kind of attention: which configs are its, and what their layers keep.

    `layers` returns one tuple per decoder layer and raises UnsupportedConfig for what it does not understand. `reads`
    are the fields it understands among those that `foreign.py` refuses in general, `types` the model types it knows by
    name beside those whose class defaults are known.
    """

    name: str
    claims: Callable[[ModelConfig], bool]
    layers: Callable[[ModelConfig], Layers]
    reads: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()
