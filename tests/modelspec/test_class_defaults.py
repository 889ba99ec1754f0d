"""The table's shape and lookup; `tests/vllm/test_class_defaults.py` compares its values with the library."""

import pytest

from kvguard.modelspec.class_defaults import CLASS_DEFAULTS, TEXT_TYPES, class_defaults, text_type


@pytest.mark.parametrize(
    ("model_type", "name", "value"),
    [
        ("llama", "num_hidden_layers", 32),
        ("mistral", "sliding_window", 4096),
        ("gemma", "head_dim", 256),
        ("gpt_bigcode", "multi_query", True),
        ("bart", "decoder_layers", 12),
        ("t5", "d_kv", 64),
        ("llava", "hidden_size", 4096),
    ],
)
def test_a_type_has_the_values_of_its_class(model_type: str, name: str, value: object) -> None:
    """Under the class's own names; a multimodal type has those of the language model inside."""
    assert class_defaults(model_type)[name] == value


@pytest.mark.parametrize("model_type", ["llama", "phi3"])
def test_what_a_class_derives_is_not_in_the_table(model_type: str) -> None:
    """KV heads from heads and a width from the quotient are left to the rules."""
    assert not {"num_key_value_heads", "head_dim"} & class_defaults(model_type).keys()


@pytest.mark.parametrize("model_type", ["new", None, 7, ["llama"]])
def test_an_unknown_type_has_none(model_type: object) -> None:
    """Nothing is assumed about it, nor about a file with something else in that place."""
    assert class_defaults(model_type) == {}


def test_every_multimodal_type_names_a_known_one() -> None:
    """No entry leads nowhere."""
    assert set(TEXT_TYPES.values()) <= CLASS_DEFAULTS.keys()
    assert (text_type("llava"), text_type("llama"), text_type("new"), text_type(None)) == ("llama", "llama", "new", "")
