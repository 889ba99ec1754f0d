"""Typed reading of `config.json` values, with errors that name the field as it stands in the file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

_ECHO_LIMIT = 80
_MAX_NUMBER = 1 << 40  # beyond any count or width; bounds what a hostile file can make of a product


class UnsupportedConfig(ValueError):
    """A config from which the KV layout cannot be derived without guessing. `field` is the path of the culprit."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field


@dataclass(frozen=True, slots=True)
class Fields:
    """One JSON object of the file and where it stands. A null counts as absent.

    `defaults` holds what the model's configuration class puts where the file says nothing: files saved by the library
    leave such values out. A null in the file is said, so it is not replaced.
    """

    values: Mapping[str, object]
    path: str = ""
    defaults: Mapping[str, object] = field(default_factory=dict)

    def get(self, name: str) -> object:
        """The value as it stands, the class default where the file has no such name."""
        return self.values[name] if name in self.values else self.defaults.get(name)

    def error(self, name: str, problem: str) -> UnsupportedConfig:
        return UnsupportedConfig(self.path + name, problem)

    def bad_value(self, name: str, expected: str) -> UnsupportedConfig:
        shown = repr(self.get(name))
        return self.error(name, f"expected {expected}, got {shown[:_ECHO_LIMIT]}")

    def has(self, name: str) -> bool:
        return self.get(name) is not None

    def nested(self, name: str) -> "Fields | None":
        """Return the object under `name`, None when it is absent or empty."""
        value = self.get(name)
        if value is None or value == {}:
            return None
        if not isinstance(value, Mapping):
            raise self.bad_value(name, "an object")
        defaults = self.defaults.get(name)
        return Fields(
            cast("Mapping[str, object]", value),
            f"{self.path}{name}.",
            cast("Mapping[str, object]", defaults) if isinstance(defaults, Mapping) else {},
        )

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.bad_value(name, "true or false")
        return value

    def text(self, name: str) -> str | None:
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            raise self.bad_value(name, "a string")
        return value

    def whole(self, name: str, *, minimum: int = 1) -> int | None:
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise self.bad_value(name, f"a whole number of at least {minimum}")
        if value > _MAX_NUMBER:
            raise self.bad_value(name, f"a whole number of at most {_MAX_NUMBER}")
        return value

    def required(self, name: str, *, minimum: int = 1) -> int:
        """The number under this one name; missing is an error."""
        number = self.whole(name, minimum=minimum)
        if number is None:
            raise self.error(name, "missing")
        return number

    def wholes(self, name: str, *, minimum: int = 0) -> tuple[int, ...] | None:
        """The list of numbers under `name`, None when it is absent."""
        entries = self.entries(name)
        if entries is None:
            return None
        if not all(isinstance(n, int) and not isinstance(n, bool) and minimum <= n <= _MAX_NUMBER for n in entries):
            raise self.bad_value(name, f"a list of whole numbers of at least {minimum}")
        return cast("tuple[int, ...]", entries)

    def texts(self, name: str) -> tuple[str, ...] | None:
        """The list of strings under `name`, None when it is absent."""
        entries = self.entries(name)
        if entries is not None and not all(isinstance(entry, str) for entry in entries):
            raise self.bad_value(name, "a list of strings")
        return cast("tuple[str, ...] | None", entries)

    def entries(self, name: str) -> tuple[object, ...] | None:
        """The list under `name`, None when it is absent."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list | tuple):
            raise self.bad_value(name, "a list")
        return tuple(value)

    def first_whole(self, names: Sequence[str], *, minimum: int = 1) -> int | None:
        """Return the number that these names, all of one meaning, agree on; None when every one is absent.

        What the file says under any of them goes before a class default.
        """
        said = [name for name in names if name in self.values]
        found = [(name, number) for name in said or names if (number := self.whole(name, minimum=minimum)) is not None]
        for name, number in found:
            if number != found[0][1]:
                raise self.error(name, f"{number} contradicts {found[0][0]} {found[0][1]}")
        return found[0][1] if found else None

    def required_whole(self, names: Sequence[str]) -> int:
        number = self.first_whole(names)
        if number is None:
            raise self.error(names[0], "missing")
        return number
