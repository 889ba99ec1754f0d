"""The bundled models: complete, small, and equal to what was measured."""

import json
from importlib import resources

import pytest

from kvguard import presets
from kvguard.modelspec.config import kv_cache_spec
from tests import oracle

ORACLE = oracle.models()
MEASURED = [name for name in presets.names() if presets.load(name).source in ORACLE]


@pytest.mark.parametrize("name", presets.names())
def test_every_preset_is_understood(name: str) -> None:
    """A preset names its repository, its size is believable, and its layers are exact."""
    preset = presets.load(name)
    assert preset.source.count("/") == 1
    assert preset.parameters is None or 10**8 < preset.parameters < 2 * 10**12
    spec = kv_cache_spec(preset.config)
    assert spec.layers
    assert spec.assumptions == ()


def test_most_presets_are_measured() -> None:
    """Thirty presets are models whose cache was measured."""
    assert len(MEASURED) >= 30


@pytest.mark.parametrize("name", MEASURED)
def test_a_preset_says_what_the_measured_config_says(name: str) -> None:
    """Fields that concern the cache are those the measurement was made with; only weights and limits are added."""
    preset = presets.load(name)
    measured = ORACLE[preset.source]
    spec = kv_cache_spec(preset.config)
    assert {tokens: spec.bytes_for(int(tokens)) for tokens in measured["expected_bytes"]} == measured["expected_bytes"]


def test_names_are_found_in_any_case() -> None:
    """Spaces around and capitals do not matter."""
    assert presets.load(" Mistral-7B-v0.1 ").name == "mistral-7b-v0.1"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mistral-7b-v0.4", "mistral-7b-v0.1"),
        ("lama-3-8b", "llama-3-8b"),
        ("mixtral-8x7", "did you mean mixtral-8x7b"),
        ("zzzz", "no preset of that name"),
        ("", "no preset of that name"),
        ("../presets/gpt2", "no preset of that name"),
    ],
)
def test_an_unknown_name_gets_close_ones(name: str, message: str) -> None:
    """Nothing is guessed; what is close is offered."""
    with pytest.raises(presets.UnknownPreset, match=message):
        presets.load(name)


def test_files_hold_three_fields() -> None:
    """Every file has the shape the module promises."""
    for name in presets.names():
        document = json.loads((resources.files(presets) / f"{name}.json").read_text("utf-8"))
        assert list(document) == ["source", "parameters", "config"]
