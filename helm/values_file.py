"""Reads values.yaml with its comments: what each value is called, what it is by default, and what it is for."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

CHART: Final = Path(__file__).parent / "kvguard"
VALUES: Final = CHART / "values.yaml"

_KEY = re.compile(r"(?P<indent> *)(?P<key>[A-Za-z]\w*):")
_FIRST = re.compile(r" *# -- (?P<text>.*)")
_MORE = re.compile(r" *# (?P<text>.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A value with a description; what is below it is part of it."""

    path: tuple[str, ...]
    default: Any
    description: str

    @property
    def name(self) -> str:
        """As `--set` has it."""
        return ".".join(self.path)


def values() -> list[Value]:
    """Every value that is described, in the order of the file."""
    defaults = yaml.safe_load(VALUES.read_text())
    return [
        Value(path=path, default=_at(defaults, path), description=text)
        for path, text in _described(VALUES.read_text().splitlines())
    ]


def _at(defaults: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        defaults = defaults[key]
    return defaults


def _described(lines: list[str]) -> Iterator[tuple[tuple[str, ...], str]]:
    """The path of each key with a comment that begins with two dashes, and the comment as one line."""
    above: list[str] = []
    text: list[str] = []
    for line in lines:
        if first := _FIRST.fullmatch(line):
            text = [first["text"]]
        elif text and (more := _MORE.fullmatch(line)):
            text.append(more["text"])
        elif key := _KEY.match(line):
            above = [*above[: len(key["indent"]) // 2], key["key"]]
            if text:
                yield tuple(above), " ".join(text)
            text = []
