"""The cache's format: the engine's setting, the checkpoint's wish, the model's dtype, in that order."""

from typing import Any

import pytest

from kvguard.modelspec.dtype import Serving, cache_format, recurrent_bytes, state_bytes_named
from kvguard.modelspec.fields import Fields, UnsupportedConfig
from kvguard.modelspec.formats import FORMATS


def name_of(text: dict[str, Any], root: dict[str, Any] | None = None, kv_cache_dtype: str = "auto") -> str:
    chosen = cache_format(Fields(text if root is None else root), Fields(text), Serving(kv_cache_dtype=kv_cache_dtype))
    return chosen.name


@pytest.mark.parametrize("kv_cache_dtype", FORMATS)
def test_the_engine_setting_wins(kv_cache_dtype: str) -> None:
    """Whatever the checkpoint says, an explicit cache dtype decides."""
    quantised = {"quantization_config": {"kv_cache_quant_algo": "NVFP4"}}
    assert name_of(quantised, kv_cache_dtype=kv_cache_dtype) == FORMATS[kv_cache_dtype].name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ({}, "bfloat16"),
        ({"torch_dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "torch.float16"}, "bfloat16"),
        ({"torch_dtype": "float32"}, "bfloat16"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "bfloat16"),
        ({"quantization_config": {"kv_cache_scheme": None}}, "bfloat16"),
        ({"quantization_config": {"kv_cache_quant_algo": "FP8"}}, "fp8"),
        ({"quantization_config": {"kv_cache_quant_algo": "NVFP4"}}, "nvfp4"),
        ({"quantization_config": {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}}, "fp8"),
        ({"compression_config": {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}}, "fp8"),
    ],
)
def test_auto_asks_the_checkpoint(text: dict[str, Any], name: str) -> None:
    """16 bit, also for a float32 checkpoint or none stated, unless the checkpoint has a KV scheme of its own."""
    assert name_of(text) == name


def test_the_outer_object_is_asked_second() -> None:
    """A multimodal file may state dtype and quantisation outside the language model."""
    assert name_of({}, root={"torch_dtype": "bfloat16"}) == "bfloat16"
    assert name_of({}, root={"quantization_config": {"kv_cache_quant_algo": "FP8"}}) == "fp8"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ({"torch_dtype": "float8_e4m3fn"}, "^torch_dtype: expected one of .* got 'float8_e4m3fn'"),
        ({"dtype": 16}, "^dtype: expected a string, got 16"),
        (
            {"quantization_config": {"kv_cache_quant_algo": "INT3"}},
            r"^quantization_config\.kv_cache_quant_algo: .*INT3",
        ),
        (
            {"quantization_config": {"kv_cache_scheme": {"num_bits": 4}}},
            r"^quantization_config\.kv_cache_scheme\.num_bits: expected 8, got 4",
        ),
    ],
)
def test_unknown_formats_are_refused(text: dict[str, Any], message: str) -> None:
    """A dtype or scheme without a known size is an error that names it."""
    with pytest.raises(UnsupportedConfig, match=message):
        name_of(text)


def test_an_unknown_setting_is_refused() -> None:
    """The error lists what is known."""
    with pytest.raises(UnsupportedConfig, match=r"^kv_cache_dtype: expected one of auto, bfloat16, .* got 'int2'"):
        name_of({}, kv_cache_dtype="int2")


@pytest.mark.parametrize(("setting", "size"), [("auto", 3), ("float32", 4), ("bfloat16", 2), ("float16", 2)])
def test_recurrent_state_has_a_setting_of_its_own(setting: str, size: int) -> None:
    """The engine's flag wins over what the checkpoint says."""
    assert recurrent_bytes(Serving(mamba_ssm_cache_dtype=setting), 3) == size


def test_an_unknown_state_dtype_is_refused() -> None:
    """As a setting and as a field of the file."""
    with pytest.raises(UnsupportedConfig, match=r"^mamba_ssm_cache_dtype: expected one of auto, .* got 'fp8'"):
        recurrent_bytes(Serving(mamba_ssm_cache_dtype="fp8"), 2)
    with pytest.raises(UnsupportedConfig, match=r"^mamba_ssm_dtype: expected one of .* got 'fp8'"):
        state_bytes_named(Fields({"mamba_ssm_dtype": "fp8"}), "mamba_ssm_dtype", default=2)


def test_a_checkpoint_names_its_state_dtype() -> None:
    """With or without the prefix, and not at all."""
    fields = Fields({"a": "float32", "b": "torch.bfloat16"})
    assert [state_bytes_named(fields, name, default=7) for name in "abc"] == [4, 2, 7]
