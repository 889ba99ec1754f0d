"""Samples out of a Prometheus page (text format 0.0.4 and 1.0.0, OpenMetrics). Knows the grammar, no metric.

A page of vLLM has 940 lines, is read twice a second, and about ten lines of it matter. Lines are therefore chosen by
name before anything else is looked at, and a broken line of a metric nobody asked for goes unnoticed.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

_ECHO_LIMIT: Final = 80

_NAME = re.compile(r"[^\s{]+")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*')
# value, optional timestamp, optional exemplar; only the value is kept
_TAIL = re.compile(r"[ \t]*([0-9A-Za-z.+-]+)(?:[ \t]+[+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)?(?:[ \t]+#.*)?[ \t\r]*")
_ESCAPE = re.compile(r'\\([\\n"])')


class ExpositionError(ValueError):
    """A line of a wanted metric that cannot be read. `line_number` counts from 1."""

    def __init__(self, line_number: int, line: str) -> None:
        super().__init__(f"line {line_number} is not a metric sample: {ascii(line[:_ECHO_LIMIT])[:_ECHO_LIMIT]}")
        self.line_number = line_number


@dataclass(frozen=True, slots=True)
class Sample:
    """One line. The value may be NaN or infinite: the reader decides what that means."""

    name: str
    labels: dict[str, str]
    value: float


def parse_samples(text: str, names: Collection[str]) -> list[Sample]:
    """Every sample whose metric name is in `names`, in page order. Raise ExpositionError when one of them is broken."""
    prefixes = tuple(names)
    samples = []
    # Not splitlines(): a label value may hold U+2028 and other characters that it takes for line ends.
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.lstrip(" \t")
        if line.startswith(prefixes) and _name(line) in names:
            samples.append(_parse_line(line, number))
    return samples


def _name(line: str) -> str:
    match = _NAME.match(line)
    return match.group() if match else ""


def _parse_line(line: str, number: int) -> Sample:
    name = _name(line)
    labels: dict[str, str] = {}
    position = _skip_blanks(line, len(name))
    try:
        if line.startswith("{", position):
            position = _parse_labels(line, position + 1, labels)
        value = _parse_value(line, position)
    except ValueError:
        raise ExpositionError(number, line) from None
    return Sample(name, labels, value)


def _skip_blanks(line: str, position: int) -> int:
    while line[position : position + 1] in {" ", "\t"}:
        position += 1
    return position


def _parse_labels(line: str, position: int, labels: dict[str, str]) -> int:
    """Fill `labels` from the text after `{`; return the position after `}`."""
    while match := _LABEL.match(line, position):
        key, value = match.groups()
        if key in labels:
            raise ValueError(key)
        labels[key] = _unescape(value)
        position = match.end()
        if not line.startswith(",", position):
            break
        position += 1
    position = _skip_blanks(line, position)
    if not line.startswith("}", position):
        raise ValueError(line)
    return position + 1


def _unescape(value: str) -> str:
    if "\\" not in value:
        return value
    return _ESCAPE.sub(lambda match: "\n" if match.group(1) == "n" else match.group(1), value)


def _parse_value(line: str, position: int) -> float:
    match = _TAIL.fullmatch(line, position)
    if match is None:
        raise ValueError(line)
    return float(match.group(1))
