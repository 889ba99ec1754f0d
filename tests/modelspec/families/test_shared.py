"""Cross-layer attention: the measured model, other factors, and what is refused."""

from typing import Any

import pytest

from kvguard.modelspec.config import UnsupportedConfig, kv_cache_spec
from tests.modelspec.families.measured import assert_as_measured, measured
from tests.modelspec.families.plans import Rows, assert_as_planned, flat

MODELS: Rows = {
    "Hunyuan with three layers to a cache": (
        flat("hunyuan", 1024, 7, 8, 2, use_cla=True, cla_share_factor=3),
        [(3, 2, 128, 0)],
    ),
    "every layer for itself": (flat("hunyuan", 1024, 4, 8, 2, use_cla=True, cla_share_factor=1), [(4, 2, 128, 0)]),
}


@pytest.mark.parametrize("entry", measured("Hunyuan-Large"), ids=lambda entry: entry["name"])
def test_measured(entry: dict[str, Any]) -> None:
    """The measured model keeps half its layers."""
    assert_as_measured(entry, "cross-layer attention")


@pytest.mark.parametrize("name", MODELS)
def test_published(name: str) -> None:
    """The first layer of each group holds the cache of them all."""
    assert_as_planned(*MODELS[name], "cross-layer attention")


def test_a_factor_is_needed() -> None:
    """How many layers share is not guessed."""
    with pytest.raises(UnsupportedConfig, match=r"^cla_share_factor: missing$"):
        kv_cache_spec(flat("hunyuan", 1024, 4, 8, 2, use_cla=True))
