"""GPT-Neo: global and local layers, under each of its ways to write them."""

from typing import Any

import pytest

from kvguard.modelspec.config import UnsupportedConfig, kv_cache_spec
from tests.modelspec.families.plans import Rows, assert_as_planned

NEO = {"model_type": "gpt_neo", "hidden_size": 512, "num_heads": 4, "num_layers": 4}

MODELS: Rows = {
    "GPT-Neo-1.3B": (
        {
            "model_type": "gpt_neo",
            "hidden_size": 2048,
            "num_heads": 16,
            "num_layers": 24,
            "window_size": 256,
            "attention_types": [[["global", "local"], 12]],
        },
        [(12, 16, 128, 0), (12, 16, 128, 256)],
    ),
    "listed": ({**NEO, "attention_layers": ["global", "local", "local", "local"]}, [(1, 4, 128, 0), (3, 4, 128, 256)]),
    "by its class": (NEO, [(2, 4, 128, 0), (2, 4, 128, 256)]),
    "global only": ({**NEO, "attention_types": [[["global"], 4]]}, [(4, 4, 128, 0)]),
}


@pytest.mark.parametrize("name", MODELS)
def test_published(name: str) -> None:
    """A published model keeps what its layers say."""
    assert_as_planned(*MODELS[name], "GPT-Neo")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_layers": ["global"]}, "^attention_layers: expected 'global' or 'local' for each of 4 layers"),
        ({"attention_layers": ["global", "odd"] * 2}, "^attention_layers: expected 'global' or 'local'"),
        ({"attention_types": [[["global"], 3]]}, "^attention_types: expected 'global' or 'local' for each of 4 layers"),
        ({"attention_types": [[["global"], 10**9]]}, r"^attention_types: expected a list of \[\[words\], times\]"),
        ({"attention_types": ["global"]}, r"^attention_types: expected a list of \[\[words\], times\]"),
        ({"window_size": None}, "^window_size: missing"),
        ({"hidden_size": 510}, "^hidden_size: expected a multiple of 4 attention heads, got 510"),
    ],
)
def test_what_would_be_a_guess_is_refused(changes: dict[str, Any], message: str) -> None:
    """Words that do not cover the layers are errors that name the field."""
    with pytest.raises(UnsupportedConfig, match=message):
        kv_cache_spec({**NEO, **changes})
