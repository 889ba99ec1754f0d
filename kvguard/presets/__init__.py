"""Well-known models by a short name: `config.json` fields that concern the cache and the weights, as published.

One small file a model: {"source": Hugging Face repository, "parameters": number or null, "config": {...}}.
"""

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

_CLOSE_MATCHES = 3


class UnknownPreset(ValueError):
    """No preset of that name; the message names close ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A published model. `parameters` is its published total, None where it is not known for sure."""

    name: str
    source: str
    parameters: int | None
    config: Mapping[str, object]


def names() -> tuple[str, ...]:
    """Every preset, sorted."""
    files = (entry.name for entry in resources.files(__name__).iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in files if name.endswith(".json")))


def load(name: str) -> Preset:
    """The preset of this name, in any case. Raise UnknownPreset."""
    known = names()
    wanted = name.strip().lower()
    if wanted not in known:
        longer = [name for name in known if wanted and name.startswith(wanted)]
        close = longer[:_CLOSE_MATCHES] or difflib.get_close_matches(wanted, known, n=_CLOSE_MATCHES, cutoff=0.5)
        raise UnknownPreset(f"no preset of that name{f', did you mean {_either(close)}?' if close else ''}")
    document = json.loads((resources.files(__name__) / f"{wanted}.json").read_text("utf-8"))
    return Preset(name=wanted, source=document["source"], parameters=document["parameters"], config=document["config"])


def _either(options: list[str]) -> str:
    return options[0] if len(options) == 1 else f"{', '.join(options[:-1])} or {options[-1]}"
