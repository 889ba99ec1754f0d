"""Windows of models whose layers do not interleave, by family."""

from typing import Any

import pytest

from kvguard.modelspec.fields import Fields, UnsupportedConfig
from kvguard.modelspec.windows import layer_windows


@pytest.mark.parametrize(
    ("values", "windows"),
    [
        ({}, (None, None, None)),
        ({"sliding_window": None}, (None, None, None)),
        ({"model_type": "llama", "sliding_window": None}, (None, None, None)),
        ({"model_type": "mistral", "sliding_window": None}, (None, None, None)),
        ({"model_type": "mistral", "sliding_window": 0}, (None, None, None)),
        ({"model_type": "mistral", "sliding_window": -1}, (None, None, None)),
        ({"model_type": "mistral", "sliding_window": 64}, (64, 64, 64)),
        ({"model_type": "mistral", "sliding_window": 64, "max_position_embeddings": 64}, (64, 64, 64)),
        ({"model_type": "phi3", "sliding_window": 65, "max_position_embeddings": 64}, (None, None, None)),
        ({"model_type": "phi3", "sliding_window": 2047}, (2047, 2047, 2047)),
        ({"model_type": "starcoder2", "sliding_window": 64}, (64, 64, 64)),
        ({"model_type": "starcoder2", "sliding_window": 64, "use_sliding_window": False}, (None, None, None)),
        ({"model_type": "qwen2", "sliding_window": 64, "max_window_layers": 0}, (None, None, None)),
        ({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": False}, (None, None, None)),
        ({"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 0}, (64, 64, 64)),
        ({"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 2}, (None, None, 64)),
        ({"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 3}, (None, None, None)),
        ({"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 70}, (None, None, None)),
        ({"model_type": "dots1", "sliding_window": 64, "max_window_layers": 1}, (None, 64, 64)),
        ({"sliding_window": None, "use_sliding_window": True}, (None, None, None)),
        ({"layer_types": [], "sliding_window": None}, (None, None, None)),
    ],
)
def test_windows_by_family(values: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    """The family's rule says whether `sliding_window` counts, and for which layers."""
    assert layer_windows(Fields(values), num_layers=3) == windows


def test_the_class_fills_in_what_the_file_leaves_out() -> None:
    """An absent field is the class's, a null in the file is not."""
    defaults = {"sliding_window": 4096}
    assert layer_windows(Fields({"model_type": "mistral"}, defaults=defaults), num_layers=1) == (4096,)
    said = {"model_type": "mistral", "sliding_window": None}
    assert layer_windows(Fields(said, defaults=defaults), num_layers=1) == (None,)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "mistral", "sliding_window": -2}, "^sliding_window: .* got -2"),
        ({"model_type": "mistral", "sliding_window": False}, "^sliding_window: .* got False"),
        ({"model_type": "new", "sliding_window": 64}, "^sliding_window: which layers slide in 'new' is not known"),
        ({"sliding_window": 64, "use_sliding_window": True}, "^max_window_layers: missing"),
        ({"use_sliding_window": "no"}, "^use_sliding_window: expected true or false, got 'no'"),
        ({"layer_types": ["linear_attention"] * 3}, "^layer_types: names a kind of layer that is not understood"),
    ],
)
def test_windows_that_would_be_a_guess(values: dict[str, Any], message: str) -> None:
    """A window of an unknown family, unknown layers and missing numbers are errors that name the field."""
    with pytest.raises(UnsupportedConfig, match=message):
        layer_windows(Fields(values), num_layers=3)
