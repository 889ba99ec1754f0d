"""DeepSeek-V4: bytes of published configs, and what is refused."""

from typing import Any

import pytest

from kvguard.modelspec.config import Serving, UnsupportedConfig, kv_cache_spec
from tests.modelspec.families.measured import assert_as_measured, measured

V4: dict[str, Any] = {"model_type": "deepseek_v4", "num_hidden_layers": 4, "compress_ratios": [0, 1, 4, 128, 0]}


def kinds(config: dict[str, Any]) -> list[int]:
    """Caches of each layer: 1 for a window alone, 2 with vectors of ratio 128, 3 with vectors of ratio 4 and keys."""
    return [len(layer) for layer in kv_cache_spec(config).layers]


@pytest.mark.parametrize("entry", measured("DeepSeek-V4"), ids=lambda entry: entry["name"])
def test_measured(entry: dict[str, Any]) -> None:
    """Every measured model keeps what was measured."""
    assert_as_measured(entry, "compressed attention")


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        # 4 windows of 1024 B a token; at 4 tokens a vector and its 132 B key; at 128 a vector of ratio 128
        (3, 4 * 3 * 1024),
        (4, 4 * 4 * 1024 + 1024 + 132),
        (127, 4 * 127 * 1024 + 31 * (1024 + 132)),
        (128, 4 * 128 * 1024 + 32 * (1024 + 132) + 1024),
        (129, 4 * 128 * 1024 + 32 * (1024 + 132) + 1024),
    ],
)
def test_grows_by_whole_vectors(tokens: int, expected: int) -> None:
    """A vector is added when its last token is there."""
    assert kv_cache_spec(V4).bytes_for(tokens) == expected


def test_layer_kinds() -> None:
    """The list of ratios, the list of names and the class default say the same."""
    assert kinds(V4) == [1, 1, 3, 2]
    names = ["sliding_attention", "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"]
    assert kinds({"model_type": "deepseek_v4", "num_hidden_layers": 4, "layer_types": names}) == [1, 1, 3, 2]
    assert kinds({"model_type": "deepseek_v4", "num_hidden_layers": 5}) == [2, 2, 2, 3, 2]
    assert len(kinds({"model_type": "deepseek_v4"})) == 43


def test_rates() -> None:
    """Rates of their own go before 4 and 128, in an object or in the older fields."""
    plain = {"model_type": "deepseek_v4", "num_hidden_layers": 4, "layer_types": ["compressed_sparse_attention"] * 4}
    eight = 4 * (8 * 1024 + 1024 + 132)
    assert kv_cache_spec({**plain, "compress_rate_csa": 8}).bytes_for(8) == eight
    assert kv_cache_spec({**plain, "compress_rates": {"compressed_sparse_attention": 8}}).bytes_for(8) == eight
    assert kv_cache_spec({**plain, "compress_rates": {"other": 8}}).bytes_for(8) == eight + 4 * (1024 + 132)


@pytest.mark.parametrize(
    ("dtype", "vector"),
    # 448 + 2 * 64 + 8, as vLLM lays it out for this model
    [("auto", 1024), ("fp8", 512), ("fp8_ds_mla", 584)],
)
def test_cache_dtype(dtype: str, vector: int) -> None:
    """The cache's format reaches the vectors and not the keys."""
    spec = kv_cache_spec(V4, Serving(kv_cache_dtype=dtype))
    assert spec.bytes_for(4) == 4 * 4 * vector + vector + 132


@pytest.mark.parametrize(
    ("more", "dtype", "field"),
    [
        ({"compress_ratios": [0, 4, 128]}, "auto", "compress_ratios"),
        ({"compress_ratios": [0, 4, 128, 4, 0, 0]}, "auto", "compress_ratios"),
        ({"compress_ratios": [0, 4, 16, 4]}, "auto", "compress_ratios"),
        ({"layer_types": ["sliding_attention"]}, "auto", "layer_types"),
        ({"layer_types": ["full_attention"] * 4}, "auto", "layer_types"),
        ({"num_nextn_predict_layers": 0}, "auto", "compress_ratios"),
        ({}, "nvfp4_ds_mla", "kv_cache_dtype"),
        ({"head_dim": 256}, "fp8_ds_mla", "kv_cache_dtype"),
    ],
)
def test_refused(more: dict[str, Any], dtype: str, field: str) -> None:
    """What is not understood is an error that names the field."""
    with pytest.raises(UnsupportedConfig) as error:
        kv_cache_spec({**V4, **more}, Serving(kv_cache_dtype=dtype))
    assert error.value.field == field
