"""Reads a YAML file as one mapping, strictly: no name twice, no file that is empty by accident.

What is said of a broken file never quotes it: it may hold a secret by mistake, and faults end up in logs.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from yaml.parser import ParserError
from yaml.reader import ReaderError
from yaml.scanner import ScannerError

from kvguard.errors import SettingsError


def read_mapping(file: Path, *, names: frozenset[str]) -> dict[str, Any] | None:
    """What the file says; None where there is no such file. Raises SettingsError with every fault; of a name that is
    there twice the last is taken for sound.

    `names` are those that may be told: of settings, that is.
    """
    text = _text(file)
    if text is None:
        return None
    try:
        content, faults = _content(text, names)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SettingsError([f"{file}: {_why(error)}"]) from error
    if content is None and b"#" not in text:
        faults.append("is empty; where every default is meant, write a comment into it or remove it")
    elif not isinstance(content, dict | None):
        faults.append(f"must be a mapping of settings, not a {type(content).__name__}")
    if faults:
        sound = content if isinstance(content, dict) else None
        raise SettingsError([f"{file}: {fault}" for fault in faults], sound=sound)
    return content or {}


def _text(file: Path) -> bytes | None:
    try:
        if file.exists() and not file.is_file():
            raise SettingsError([f"{file}: is {'a directory' if file.is_dir() else 'no regular file'}"])
        return file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SettingsError([f"{file}: {error.strerror or type(error).__name__}"]) from error


def _content(text: bytes, names: frozenset[str]) -> tuple[Any, list[str]]:
    """What the text says, and what is wrong with it nevertheless."""
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None, []
        # First, for constructing merges mappings into one another.
        repeated = list(_repeated(node, names, set()))
        return loader.construct_document(node), repeated
    finally:
        loader.dispose()


def _repeated(node: yaml.Node, names: frozenset[str], seen: set[int]) -> Iterator[str]:
    """One line for each name its mapping has already. Aliases make a node part of several; it is looked at once."""
    if id(node) in seen or isinstance(node, yaml.ScalarNode):
        return
    seen.add(id(node))
    parts = node.value
    if isinstance(node, yaml.MappingNode):
        yield from _twice([name for name, _ in node.value if isinstance(name, yaml.ScalarNode)], names)
        parts = [part for pair in node.value for part in pair]
    for part in parts:
        yield from _repeated(part, names, seen)


def _twice(keys: list[yaml.ScalarNode], names: frozenset[str]) -> Iterator[str]:
    lines: dict[tuple[str, str], int] = {}
    for key in keys:
        line, known = key.start_mark.line + 1, (key.tag, key.value)
        if known in lines:
            told = key.value if key.value in names else "a name"
            yield f"line {line}: {told} is there twice, first in line {lines[known]}"
        lines.setdefault(known, line)


def _why(error: Exception) -> str:
    """What is wrong and where, without the text of errors that quote the file."""
    match error:
        case RecursionError():
            return "is nested too deeply"
        case ReaderError():
            return f"is no text: {error.reason} at position {error.position}"
        case yaml.MarkedYAMLError():
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            problem = error.problem or error.context or ""
            plain = isinstance(error, ScannerError | ParserError) and "handle" not in problem
            return f"line {line}: {problem if plain else 'an alias, tag or value that cannot be used'}"
        case _:
            return "has a number or a date that cannot be read"
