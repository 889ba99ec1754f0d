"""Typed reading of `config.json` values, with errors that name the field as it stands in the file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

_ECHO_LIMIT = 80


class UnsupportedConfig(ValueError):
    """A config from which the KV layout cannot be derived without guessing. `field` is the path of the culprit."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field


@dataclass(frozen=True, slots=True)
class Fields:
    """One JSON object of the file and where it stands. A null counts as absent."""

    values: Mapping[str, object]
    path: str = ""

    def error(self, name: str, problem: str) -> UnsupportedConfig:
        return UnsupportedConfig(self.path + name, problem)

    def bad_value(self, name: str, expected: str) -> UnsupportedConfig:
        shown = repr(self.values.get(name))
        return self.error(name, f"expected {expected}, got {shown[:_ECHO_LIMIT]}")

    def has(self, name: str) -> bool:
        return self.values.get(name) is not None

    def nested(self, name: str) -> "Fields | None":
        """Return the object under `name`, None when it is absent or empty."""
        value = self.values.get(name)
        if value is None or value == {}:
            return None
        if not isinstance(value, Mapping):
            raise self.bad_value(name, "an object")
        return Fields(cast("Mapping[str, object]", value), f"{self.path}{name}.")

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.bad_value(name, "true or false")
        return value

    def text(self, name: str) -> str | None:
        value = self.values.get(name)
        if value is not None and not isinstance(value, str):
            raise self.bad_value(name, "a string")
        return value

    def whole(self, name: str, *, minimum: int = 1) -> int | None:
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise self.bad_value(name, f"a whole number of at least {minimum}")
        return value

    def first_whole(self, names: Sequence[str], *, minimum: int = 1) -> int | None:
        """Return the number that these names, all of one meaning, agree on; None when every one is absent."""
        found = [(name, number) for name in names if (number := self.whole(name, minimum=minimum)) is not None]
        for name, number in found:
            if number != found[0][1]:
                raise self.error(name, f"{number} contradicts {found[0][0]} {found[0][1]}")
        return found[0][1] if found else None

    def required_whole(self, names: Sequence[str]) -> int:
        number = self.first_whole(names)
        if number is None:
            raise self.error(names[0], "missing")
        return number
