"""What the command was pointed at: a config file, a directory with one, or a preset. Reads files, judges nothing."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvguard import presets

CONFIG_FILE: Final = "config.json"
_LARGEST_FILE: Final = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A model's config and where it came from. `parameters` is set for presets, `directory` for directories."""

    name: str
    origin: str
    config: Mapping[str, object]
    parameters: int | None = None
    directory: Path | None = None


def find_source(argument: str) -> Source:
    """Look for a file, a directory, then a preset. Raise ValueError with the reason."""
    path = Path(argument)
    try:
        if path.is_dir():
            config = read_object(path / CONFIG_FILE)
            return Source(name=path.resolve().name, origin=str(path), config=config, directory=path)
        if path.is_file():
            return Source(name=_file_name(path), origin=str(path), config=read_object(path))
    except ValueError as error:
        raise ValueError(f"{argument}: {error}") from error
    except OSError as error:
        raise ValueError(f"{argument}: cannot be read: {error.strerror or error}") from error
    try:
        preset = presets.load(argument)
    except presets.UnknownPreset as error:
        raise ValueError(f"{argument}: no such file or directory, and {error} (--list prints all)") from error
    return Source(name=preset.name, origin=preset.source, config=preset.config, parameters=preset.parameters)


def read_object(path: Path) -> Mapping[str, object]:
    """One JSON object. Raise ValueError for anything else and OSError for a file that cannot be read."""
    with path.open("rb") as file:
        content = file.read(_LARGEST_FILE + 1)
    if len(content) > _LARGEST_FILE:
        raise ValueError(f"{path.name} is larger than a config.json ever is")
    try:
        document: object = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} is not JSON: {str(error)[:120]}") from error
    if not isinstance(document, dict):
        raise ValueError(f"{path.name} is not a JSON object")
    return document


def _file_name(path: Path) -> str:
    """Every config.json is called that, so the directory tells models apart."""
    return path.resolve().parent.name if path.name == CONFIG_FILE else path.stem
