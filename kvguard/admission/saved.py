"""Learned lengths as plain values that can be kept over a restart. Lengths only: nothing of any request is in them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

VERSION: Final = 1

_MAX_NAME: Final = 512
_MAX_CLASS: Final = 64
_MAX_WEIGHT: Final = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedHistogram:
    """One histogram: its population, its class of caps, and lengths with weights, where the next answer weighs 1.

    Raises ValueError for values that none can have.
    """

    model: str
    route: str
    caller: str
    stops: bool
    cap_class: int
    answers: int
    weights: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        if max(map(len, (self.model, self.route, self.caller))) > _MAX_NAME:
            raise ValueError(f"a name is longer than {_MAX_NAME} characters")
        if not 0 <= self.cap_class <= _MAX_CLASS or self.answers < 0:
            raise ValueError("cap_class or answers is out of range")
        if not all(0 <= weight <= _MAX_WEIGHT for _, weight in self.weights):
            raise ValueError("a weight is out of range")

    def faded(self, most: float) -> Iterator[tuple[int, float]]:
        """The lengths, weighing `most` together if they weigh more."""
        total = sum(weight for _, weight in self.weights)
        share = min(1.0, most / total) if total else 0.0
        return ((length, weight * share) for length, weight in self.weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedLengths:
    """What every backend, by its name, has learned. Raises ValueError for another version of this form."""

    version: int = VERSION
    backends: Mapping[str, tuple[SavedHistogram, ...]]

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ValueError(f"it has version {self.version}, not {VERSION}")
