"""Names and rules for layers, KV heads and head size."""

from typing import Any

import pytest

from kvguard.modelspec.fields import Fields, UnsupportedConfig
from kvguard.modelspec.heads import head_size, num_kv_heads, num_layers


def fields(**values: Any) -> Fields:
    return Fields(values)


@pytest.mark.parametrize("name", ["num_hidden_layers", "n_layer", "n_layers", "num_layers"])
def test_layers_under_every_name(name: str) -> None:
    """Four names mean the number of layers."""
    assert num_layers(Fields({name: 4096})) == 4096


def test_an_absurd_number_of_layers_is_an_error() -> None:
    """A file cannot make kvguard build an unbounded list."""
    with pytest.raises(UnsupportedConfig, match=r"^num_hidden_layers: expected at most 4096, got 4097$"):
        num_layers(fields(n_layer=4097))


@pytest.mark.parametrize(
    ("values", "kv_heads"),
    [
        ({"num_attention_heads": 32}, 32),
        ({"n_head": 32}, 32),
        ({"n_heads": 32}, 32),
        ({"n_head": 32, "num_key_value_heads": 8}, 8),
        ({"n_head": 32, "num_key_value_heads": None}, 32),
        ({"n_head": 32, "num_kv_heads": 8}, 8),
        ({"n_head": 32, "n_head_kv": 8}, 8),
        ({"n_head": 32, "num_attention_groups": 8}, 8),
        ({"n_head": 32, "multi_query_attention": True, "multi_query_group_num": 2}, 2),
        ({"n_head": 32, "multi_query_attention": False, "multi_query_group_num": 2}, 32),
        ({"n_head": 32, "attn_config": {"kv_n_heads": 8}}, 8),
        ({"n_head": 32, "attn_config": {"attn_type": "grouped_query_attention", "kv_n_heads": 8}}, 8),
        ({"n_head": 32, "attn_config": {"attn_type": "multihead_attention"}}, 32),
        ({"n_head": 32, "attn_config": {"clip_qkv": 8}, "num_key_value_heads": 4}, 4),
        ({"n_head": 32, "multi_query": False}, 32),
        ({"n_head": 32, "model_type": "gpt_bigcode", "multi_query": True}, 1),
        ({"attention_heads": 16}, 16),
        ({"num_key_value_heads": 16}, 16),
        ({"n_heads": 32, "n_kv_heads": 8}, 8),
        ({"n_head": 32, "model_type": "gpt_bigcode", "multi_query": False}, 32),
        ({"n_head": 71, "model_type": "falcon", "multi_query": True}, 1),
        ({"n_head": 71, "model_type": "RefinedWebModel", "multi_query": True}, 1),
        ({"n_head": 128, "model_type": "RefinedWeb", "n_head_kv": 8}, 8),
        ({"n_head": 128, "model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 8}, 8),
        ({"n_head": 64, "model_type": "falcon", "multi_query": False}, 64),
    ],
)
def test_kv_heads_under_every_name(values: dict[str, Any], kv_heads: int) -> None:
    """Each family's way to write KV heads is read, with the exceptions of its flags."""
    assert num_kv_heads(Fields(values)) == kv_heads


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "num_attention_heads: missing"),
        ({"n_head": 32, "num_key_value_heads": 0}, "num_key_value_heads: expected a whole number of at least 1, got 0"),
        ({"n_head": 32, "num_key_value_heads": [4, 8]}, r"num_key_value_heads: .* got \[4, 8\]"),
        ({"n_head": 32, "num_key_value_heads": 5}, "num_key_value_heads: expected a divisor of 32 .* got 5"),
        ({"n_head": 32, "num_kv_heads": 8, "n_head_kv": 4}, "n_head_kv: 4 contradicts num_kv_heads 8"),
        ({"n_head": 32, "multi_query_attention": True}, "multi_query_group_num: missing"),
        ({"n_head": 32, "attn_config": {"attn_type": "multiquery_attention"}}, r"attn_config\.attn_type: .*multiquery"),
        ({"n_head": 32, "multi_query": True, "model_type": "new"}, "multi_query: .*'new'"),
    ],
)
def test_kv_heads_that_would_be_a_guess(values: dict[str, Any], message: str) -> None:
    """Contradictions, broken values and flags without a known meaning are errors."""
    with pytest.raises(UnsupportedConfig, match=message):
        num_kv_heads(Fields(values))


@pytest.mark.parametrize(
    ("values", "width"),
    [
        ({"hidden_size": 4096}, 128),
        ({"n_embd": 4096}, 128),
        ({"n_embed": 4096}, 128),
        ({"d_model": 4096}, 128),
        ({"hidden_size": 4096, "head_dim": 256}, 256),
        ({"hidden_size": 4096, "head_dim": 0}, 128),
        ({"hidden_size": 4096, "head_dim": None}, 128),
        ({"hidden_size": 4096, "kv_channels": 64}, 64),
        ({"attention_head_dim": 64}, 64),
        ({"hidden_size_per_head": 64}, 64),
    ],
)
def test_head_size_under_every_name(values: dict[str, Any], width: int) -> None:
    """An explicit width wins; otherwise it is the hidden size over the heads."""
    assert head_size(Fields({"num_attention_heads": 32, **values})) == width


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "hidden_size: missing"),
        ({"hidden_size": 4097}, "hidden_size: expected a multiple of 32 attention heads, got 4097"),
        ({"head_dim": -1}, "head_dim: expected a whole number of at least 0, got -1"),
        ({"head_dim": 64, "kv_channels": 128}, "kv_channels: 128 contradicts head_dim 64"),
    ],
)
def test_head_sizes_that_would_be_a_guess(values: dict[str, Any], message: str) -> None:
    """A quotient with a remainder and a contradiction are errors."""
    with pytest.raises(UnsupportedConfig, match=message):
        head_size(Fields({"num_attention_heads": 32, **values}))


def test_the_class_fills_in_what_the_file_leaves_out() -> None:
    """An absent field is the class's; a null in the file means heads and quotient; another name counts as said."""
    defaults = {"num_key_value_heads": 8, "head_dim": 256}
    sizes = {"num_attention_heads": 32, "hidden_size": 4096}
    absent = Fields(sizes, defaults=defaults)
    assert (num_kv_heads(absent), head_size(absent)) == (8, 256)
    null = Fields({**sizes, "num_key_value_heads": None, "head_dim": None}, defaults=defaults)
    assert (num_kv_heads(null), head_size(null)) == (32, 128)
    other = Fields({**sizes, "num_kv_heads": 4, "kv_channels": 64}, defaults=defaults)
    assert (num_kv_heads(other), head_size(other)) == (4, 64)
