"""Layers that run several times: a cache for every run, and what is refused."""

from typing import Any

import pytest

from kvguard.modelspec.config import UnsupportedConfig, kv_cache_spec
from tests.modelspec.families.plans import flat

LOOPCODER = flat("iquestloopcoder", 5120, 80, 40, 8, head_dim=128, loop_num=2, loop_window_size=64)
HRM: dict[str, Any] = {"model_type": "hrm_text"}


def test_only_the_first_run_keeps_all_tokens() -> None:
    """IQuest-Coder-40B-Loop: 80 layers of 2 * 8 * 128 * 2 = 4096 bytes, for all tokens and again for the last 64."""
    spec = kv_cache_spec(LOOPCODER)
    assert spec.family == "looped layers"
    assert spec.settled_bytes_per_token() == 80 * 4096
    assert spec.bytes_for(1000) == 80 * 4096 * (1000 + 64)


def test_every_further_run_adds_a_window() -> None:
    """Three runs keep two windows; the class has two runs and windows of 64."""
    assert kv_cache_spec({**LOOPCODER, "loop_num": 3}).bytes_for(1000) == 80 * 4096 * (1000 + 2 * 64)
    assert kv_cache_spec(flat("iquestloopcoder", 5120, 80, 40, 8)) == kv_cache_spec(LOOPCODER)


def test_two_stacks_run_in_turns() -> None:
    """16 layers above run twice, 16 below three times for each: 16 * (2 + 2 * 3) = 128 caches of 2 * 12 * 128 * 2."""
    spec = kv_cache_spec(HRM)
    assert len(spec.layers) == 32
    assert spec.settled_bytes_per_token() == 128 * 6144
    assert kv_cache_spec({**HRM, "H_cycles": 1, "L_cycles": 1}).bytes_per_token() == 32 * 6144


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**LOOPCODER, "loop_num": 65}, "^loop_num: expected at most 64, got 65$"),
        ({**LOOPCODER, "loop_num": "2"}, "^loop_num: expected a whole number of at least 1, got '2'$"),
        ({**LOOPCODER, "sliding_window": 64}, "^sliding_window: is not understood in this model$"),
        ({**HRM, "L_cycles": 65}, "^L_cycles: expected at most 64, got 65$"),
        ({**HRM, "num_layers_per_stack": 5000}, "^num_layers_per_stack: expected at most 4096, got 5000$"),
    ],
)
def test_what_would_be_a_guess_is_refused(config: dict[str, Any], message: str) -> None:
    """Runs are bounded, and every error names the field."""
    with pytest.raises(UnsupportedConfig, match=message):
        kv_cache_spec(config)
