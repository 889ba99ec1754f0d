"""Checks a family's rows of the oracle, at every length and in constant state."""

from typing import Any

from kvguard.modelspec.config import Serving, kv_cache_spec
from tests.oracle import models


def measured(*fragments: str) -> list[dict[str, Any]]:
    """Oracle entries whose name holds one of these fragments; each fragment must name at least one."""
    entries = [entry for name, entry in models().items() if any(fragment in name for fragment in fragments)]
    assert all(any(fragment in entry["name"] for entry in entries) for fragment in fragments)
    return entries


def assert_as_measured(entry: dict[str, Any], family: str) -> None:
    spec = kv_cache_spec(entry["config"])
    assert spec.family == family
    assert {length: spec.bytes_for(int(length)) for length in entry["expected_bytes"]} == entry["expected_bytes"]
    assert spec.settled_bytes_per_token() == entry["kv_bytes_per_token_bf16"]
    assert spec.bytes_per_token() == entry["kv_bytes_per_token_bf16_below_window"]
    assert spec.state_bytes() == entry.get("constant_state_bytes", 0)
    state = entry.get("constant_state")
    if state is not None:
        assert state_with(entry, "bfloat16") == state["bytes_if_recurrent_bf16"]
        assert state_with(entry, "float32") == state["bytes_if_recurrent_fp32"]


def state_with(entry: dict[str, Any], dtype: str) -> int:
    return kv_cache_spec(entry["config"], Serving(mamba_ssm_cache_dtype=dtype)).state_bytes()
