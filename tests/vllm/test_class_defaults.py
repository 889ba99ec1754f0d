"""Class defaults as kvguard lists them, against the configuration classes of the transformers release beside vLLM."""

import json
import subprocess
from typing import Any

import pytest

from kvguard.modelspec.class_defaults import CLASS_DEFAULTS, TEXT_TYPES
from tests.vllm.server import vllm_python

# Prints the declared default of every field asked for, and the type of the language model in every multimodal type.
ASK_TRANSFORMERS = """
import dataclasses, json, sys
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

def declared(config_class, name):
    field = config_class.__dataclass_fields__.get(name)
    value = None if field is None or field.default is dataclasses.MISSING else field.default
    if value is None and name in getattr(config_class, "sub_configs", {}):
        inner = config_class.sub_configs[name]
        return {key: each.default for key, each in inner.__dataclass_fields__.items() if each.default is not None}
    return value if isinstance(value, int | float | str | bool) else None

asked = json.load(sys.stdin)
defaults = {
    model_type: {name: declared(CONFIG_MAPPING[model_type], name) for name in names}
    for model_type, names in asked["defaults"].items()
}
texts = {name: CONFIG_MAPPING[name]().get_text_config(decoder=True).model_type for name in asked["texts"]}
json.dump({"defaults": defaults, "texts": texts}, sys.stdout)
"""

# Names the comparison asks for in every class, whether or not the table has them.
SIZES = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size", "head_dim", "sliding_window")


@pytest.fixture(scope="module")
def library() -> dict[str, Any]:
    if not vllm_python().exists():
        pytest.fail("no vLLM here: run tests/vllm/install.sh", pytrace=False)
    asked = {
        "defaults": {name: [*SIZES, *values] for name, values in CLASS_DEFAULTS.items()},
        "texts": list(TEXT_TYPES),
    }
    command = [vllm_python(), "-c", ASK_TRANSFORMERS]
    run = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=True, timeout=300)
    found: dict[str, Any] = json.loads(run.stdout)
    return found


@pytest.mark.parametrize("model_type", CLASS_DEFAULTS)
def test_defaults_are_those_of_the_class(library: dict[str, Any], model_type: str) -> None:
    """Every value of the table is the class's, and no size the class has is missing from the table."""
    ours, theirs = CLASS_DEFAULTS[model_type], library["defaults"][model_type]
    assert {name: subset(theirs[name], value) for name, value in ours.items()} == dict(ours)
    assert {name for name in SIZES if isinstance(theirs[name], int)} <= ours.keys()


def subset(theirs: object, ours: object) -> object:
    """Of an object only the fields the table has."""
    return {name: theirs.get(name) for name in ours} if isinstance(ours, dict) and isinstance(theirs, dict) else theirs


@pytest.mark.parametrize("outer", TEXT_TYPES)
def test_the_language_model_inside_is_that_of_the_class(library: dict[str, Any], outer: str) -> None:
    """A multimodal file that says nothing of its language model has the one of the table."""
    assert library["texts"][outer] == TEXT_TYPES[outer]
