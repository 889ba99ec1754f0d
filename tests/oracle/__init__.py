"""Measured truth for footprints: what transformers and vLLM really kept, by model and length.

`models.json`: the fields of published `config.json` files that matter to the cache (and their decoys), and the bytes of
one sequence in 16 bit at several lengths. Measured on transformers 5.19 and vLLM 0.32, never with kvguard.
`vllm_blocks.json`: blocks one request held in vLLM 0.32's own cache manager, prefix caching off.
"""

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def models() -> dict[str, dict[str, Any]]:
    """Every measured model by name."""
    return {entry["name"]: entry for entry in json.loads((HERE / "models.json").read_text())}


def block_runs() -> list[dict[str, Any]]:
    """Every run of vLLM's cache manager."""
    runs: list[dict[str, Any]] = json.loads((HERE / "vllm_blocks.json").read_text())
    return runs
