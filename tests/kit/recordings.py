"""Answers of TGI as its source writes them, byte for byte; `tests/data/tgi/README.md` says where each is from."""

import json
from pathlib import Path
from typing import Any

TGI = Path(__file__).parents[1] / "data" / "tgi"


def recorded(name: str) -> bytes:
    """A whole file."""
    return (TGI / name).read_bytes()


def recorded_json(name: str) -> Any:
    """What a file says."""
    return json.loads(recorded(name))
