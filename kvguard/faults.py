"""Faults of settings: what is said of them, and how those of several settings are found beside those of single ones.

Pydantic looks at settings together only once each is right by itself. So those at fault are taken out and the rest is
looked at again; what is found then counts if it lies in nothing that was taken out, or is otherwise in doubt.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

TOGETHER: Final = "together"
Place = tuple[str | int, ...]
Given = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is wrong, and the places of all settings that may have to change."""

    text: str
    places: tuple[Place, ...]

    def lies_in(self, places: Iterable[Place]) -> bool:
        """Whether one of its settings is, or is part of, one of these."""
        return any(mine[: len(each)] == each for each in places for mine in self.places)


def faults_of(error: ValidationError) -> list[Fault]:
    """One for each detail. The settings themselves are not quoted."""
    return [_fault(detail) for detail in error.errors(include_input=False, include_url=False)]


def _fault(detail: Any) -> Fault:
    where, text = detail["loc"], detail["msg"].removeprefix("Value error, ")
    within = detail["ctx"]["places"] if detail["type"] == TOGETHER else [()]
    named = ".".join(str(part) for part in where)
    return Fault(text=f"{named}: {text}" if named else text, places=tuple((*where, *place) for place in within))


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """Each fault once, what is left without the settings at fault (None when faults stay), and those settings."""

    faults: list[Fault]
    sound: Given | None
    doubtful: frozenset[Place]


def every_fault(given: Given, look: Callable[[Given], Sequence[Fault]]) -> list[Fault]:
    """All that `look` finds in what is given, and in what is left of it without the settings at fault; each once."""
    return review(given, look).faults


def review(given: Given, look: Callable[[Given], Sequence[Fault]]) -> Review:
    """The same, with what is left."""
    told: dict[str, Fault] = {}
    doubtful: set[Place] = set()
    while faults := look(given):
        told |= {fault.text: fault for fault in faults if not fault.lies_in(doubtful)}
        taken = {place for fault in faults for place in _given_of(fault, given)}
        doubtful.update(taken, *(fault.places for fault in faults))
        if not taken:
            break
        for place in taken:
            given = _without(given, place)
    sound = None if faults else given
    return Review(faults=list(told.values()), sound=sound, doubtful=frozenset(doubtful))


def _given_of(fault: Fault, given: Given) -> set[Place]:
    """What of the fault's settings is given, or else what is nearest around; no entry of a list, which moves others."""
    reached = [(place, _reach(given, place)) for place in fault.places]
    whole = [place for place, depth in reached if depth == len(place)]
    near = whole or [place[:depth] for place, depth in reached]
    return {kept for place in near if (kept := _movable(place))}


def _reach(given: Any, place: Place) -> int:
    """How far the place leads into what is given."""
    for depth, part in enumerate(place):
        if not _has(given, part):
            return depth
        given = given[part]
    return len(place)


def _has(given: Any, part: str | int) -> bool:
    if isinstance(given, dict):
        return part in given
    return isinstance(given, list | tuple) and isinstance(part, int) and part < len(given)


def _movable(place: Place) -> Place:
    while place and isinstance(place[-1], int):
        place = place[:-1]
    return place


def _without(given: Any, place: Place) -> Any:
    """A copy without what is there; the same where nothing is."""
    part, *rest = place
    if not _has(given, part):
        return given
    if isinstance(given, dict):
        others = {name: value for name, value in given.items() if name != part}
        return {**others, part: _without(given[part], tuple(rest))} if rest else others
    return [_without(each, tuple(rest)) if number == part else each for number, each in enumerate(given)]
