"""Sizes of the cache dtypes, against page sizes measured on vLLM 0.32 (8 heads of 128; a latent of 512 + 64)."""

import pytest

from kvguard.modelspec.fields import UnsupportedConfig
from kvguard.modelspec.formats import FORMATS

GQA = {
    "bfloat16": 4096,
    "float16": 4096,
    "half": 4096,
    "float32": 8192,
    "fp8": 2048,
    "fp8_e4m3": 2048,
    "fp8_e5m2": 2048,
    "fp8_inc": 2048,
    "fp8_per_token_head": 2112,
    "int8_per_token_head": 2112,
    "nvfp4": 1152,
    "int4_per_token_head": 1088,
    "turboquant_k8v4": 1568,
    "turboquant_4bit_nc": 1072,
    "turboquant_k3v4_nc": 944,
    "turboquant_3bit_nc": 816,
}
LATENT = {"bfloat16": 1152, "float16": 1152, "fp8": 576, "fp8_ds_mla": 656, "nvfp4_ds_mla": 352}


@pytest.mark.parametrize("name", GQA)
def test_heads_cost_what_was_measured(name: str) -> None:
    """One token of one layer with 8 KV heads of 128, scales included."""
    assert 8 * FORMATS[name].head_bytes(128, 128) == GQA[name]


@pytest.mark.parametrize("name", LATENT)
def test_a_latent_costs_what_was_measured(name: str) -> None:
    """One token of one layer of latent attention, scales included."""
    assert FORMATS[name].latent_bytes(512, 64) == LATENT[name]


def test_k_and_v_may_differ_in_width() -> None:
    """Each has its own elements, and in nvfp4 its own scales."""
    assert FORMATS["bfloat16"].head_bytes(192, 128) == 2 * (192 + 128)
    assert FORMATS["nvfp4"].head_bytes(192, 128) == (192 + 128) // 2 + (192 + 128) // 16


@pytest.mark.parametrize("name", ["fp8_ds_mla", "nvfp4_ds_mla"])
def test_latent_formats_have_no_heads(name: str) -> None:
    """A format made for latent attention is refused for any other."""
    with pytest.raises(UnsupportedConfig, match=f"^kv_cache_dtype: {name} holds latent attention"):
        FORMATS[name].head_bytes(128, 128)


@pytest.mark.parametrize("name", ["fp8_per_token_head", "nvfp4", "turboquant_k8v4"])
def test_formats_with_scales_per_head_hold_no_latent(name: str) -> None:
    """A latent has no heads to scale."""
    with pytest.raises(UnsupportedConfig, match=f"^kv_cache_dtype: {name} does not hold latent attention"):
        FORMATS[name].latent_bytes(512, 64)
