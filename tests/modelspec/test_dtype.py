"""Bytes per element: the engine's setting, the checkpoint's wish, the model's dtype, in that order."""

from typing import Any

import pytest

from kvguard.modelspec.dtype import dtype_bytes
from kvguard.modelspec.fields import Fields, UnsupportedConfig


def size(text: dict[str, Any], root: dict[str, Any] | None = None, kv_cache_dtype: str = "auto") -> int:
    return dtype_bytes(Fields(root if root is not None else text), Fields(text), kv_cache_dtype)


@pytest.mark.parametrize(
    ("kv_cache_dtype", "element_bytes"), [("bfloat16", 2), ("float16", 2), ("fp8", 1), ("fp8_e4m3", 1), ("fp8_e5m2", 1)]
)
def test_the_engine_setting_wins(kv_cache_dtype: str, element_bytes: int) -> None:
    """Whatever the checkpoint says, an explicit cache dtype decides."""
    quantised = {"quantization_config": {"kv_cache_quant_algo": "FP8"}}
    assert size(quantised, kv_cache_dtype=kv_cache_dtype) == element_bytes


@pytest.mark.parametrize(
    ("text", "element_bytes"),
    [
        ({}, 2),
        ({"torch_dtype": "bfloat16"}, 2),
        ({"dtype": "torch.float16"}, 2),
        ({"torch_dtype": "float32"}, 2),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, 2),
        ({"quantization_config": {"kv_cache_scheme": None}}, 2),
        ({"quantization_config": {"kv_cache_quant_algo": "FP8"}}, 1),
        ({"quantization_config": {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}}, 1),
        ({"compression_config": {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}}, 1),
    ],
)
def test_auto_asks_the_checkpoint(text: dict[str, Any], element_bytes: int) -> None:
    """16 bit, also for a float32 checkpoint or none stated, unless the checkpoint has a KV scheme of its own."""
    assert size(text) == element_bytes


def test_the_outer_object_is_asked_second() -> None:
    """A multimodal file may state dtype and quantisation outside the language model."""
    assert size({}, root={"torch_dtype": "bfloat16"}) == 2
    assert size({}, root={"quantization_config": {"kv_cache_quant_algo": "FP8"}}) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ({"torch_dtype": "float8_e4m3fn"}, "^torch_dtype: expected one of .* got 'float8_e4m3fn'"),
        ({"dtype": 16}, "^dtype: expected a string, got 16"),
        (
            {"quantization_config": {"kv_cache_quant_algo": "NVFP4"}},
            r"^quantization_config\.kv_cache_quant_algo: .*NVFP4",
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
        size(text)


def test_formats_with_scales_are_refused() -> None:
    """A cache dtype that keeps scales beside the elements has no whole number of bytes per element."""
    with pytest.raises(UnsupportedConfig, match=r"^kv_cache_dtype: .* got 'fp8_per_token_head'"):
        size({}, kv_cache_dtype="fp8_per_token_head")
