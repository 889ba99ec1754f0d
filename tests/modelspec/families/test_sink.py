"""Attention with sinks: K of two parts, V of its own width, no windows."""

import pytest

from kvguard.modelspec.config import UnsupportedConfig, kv_cache_spec
from tests.modelspec.families.plans import flat

PRO = flat("PanguProMoE", 5120, 50, 40, 8, param_sink_number=128, qk_nope_dim=128, qk_rope_dim=64, v_channels=128)


def test_a_head_costs_both_parts_of_k_and_v() -> None:
    """50 layers of 8 * (128 + 64 + 128) * 2 = 5120 bytes, whatever slides."""
    spec = kv_cache_spec(PRO)
    assert spec.family == "attention with sinks"
    assert spec.settled_bytes_per_token() == 50 * 5120
    assert kv_cache_spec({**PRO, "interleaved_sliding_window": [512, None]}) == spec


def test_a_part_that_is_missing_is_refused() -> None:
    """Widths are not guessed from the hidden size."""
    with pytest.raises(UnsupportedConfig, match=r"^qk_rope_dim: missing$"):
        kv_cache_spec({name: value for name, value in PRO.items() if name != "qk_rope_dim"})


def test_without_sinks_a_width_of_v_is_not_understood() -> None:
    """A zero switches the sinks off, and what is left is no plain attention."""
    with pytest.raises(UnsupportedConfig, match=r"^v_channels: means latent attention or a V of its own width"):
        kv_cache_spec({**PRO, "param_sink_number": 0})
