"""Which layers slide, by family and by list."""

from typing import Any

import pytest

from kvguard.modelspec.fields import Fields, UnsupportedConfig
from kvguard.modelspec.windows import layer_windows

FULL, SLIDING = "full_attention", "sliding_attention"


@pytest.mark.parametrize(
    ("values", "windows"),
    [
        ({}, (None, None, None)),
        ({"sliding_window": None}, (None, None, None)),
        ({"model_type": "llama", "sliding_window": None}, (None, None, None)),
        ({"model_type": "mistral", "sliding_window": None}, (None, None, None)),
        ({"model_type": "mistral", "sliding_window": 64}, (64, 64, 64)),
        ({"model_type": "phi3", "sliding_window": 2047}, (2047, 2047, 2047)),
        ({"model_type": "starcoder2", "sliding_window": 64}, (64, 64, 64)),
        ({"model_type": "starcoder2", "sliding_window": 64, "use_sliding_window": False}, (None, None, None)),
        ({"model_type": "qwen2", "sliding_window": 64, "max_window_layers": 0}, (None, None, None)),
        ({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": False}, (None, None, None)),
        ({"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 0}, (64, 64, 64)),
        ({"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 2}, (None, None, 64)),
        ({"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 3}, (None, None, None)),
        ({"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 70}, (None, None, None)),
        ({"sliding_window": None, "use_sliding_window": True}, (None, None, None)),
        ({"layer_types": [FULL] * 3, "sliding_window": 64, "model_type": "mistral"}, (None, None, None)),
        ({"layer_types": [SLIDING] * 3, "sliding_window": 64}, (64, 64, 64)),
    ],
)
def test_windows_by_family(values: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    """A uniform list wins; then the family's rule says whether `sliding_window` counts, and for which layers."""
    assert layer_windows(Fields(values), num_layers=3) == windows


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "mistral"}, "^sliding_window: missing"),
        ({"model_type": "mistral", "sliding_window": 0}, "^sliding_window: .* got 0"),
        ({"model_type": "new", "sliding_window": 64}, "^sliding_window: which layers slide in 'new' is not known"),
        ({"sliding_window": 64, "use_sliding_window": True}, "^max_window_layers: missing"),
        ({"use_sliding_window": "no"}, "^use_sliding_window: expected true or false, got 'no'"),
        ({"layer_types": [FULL, FULL]}, "^layer_types: expected a list of 3 entries"),
        ({"layer_types": "FFF"}, "^layer_types: expected a list of 3 entries, got 'FFF'"),
        ({"layer_types": [FULL, FULL, SLIDING], "sliding_window": 64}, "^layer_types: layers of several kinds"),
        ({"layer_types": ["linear_attention"] * 3}, "^layer_types: layers of several kinds"),
        ({"layer_types": [SLIDING] * 3}, "^sliding_window: missing"),
    ],
)
def test_windows_that_would_be_a_guess(values: dict[str, Any], message: str) -> None:
    """A window of an unknown family, a mix of layers and missing numbers are errors that name the field."""
    with pytest.raises(UnsupportedConfig, match=message):
        layer_windows(Fields(values), num_layers=3)
