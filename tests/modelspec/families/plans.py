"""Published models that nobody measured for us: the fields of their files, and their layers worked out by hand.

A plan is one row per kind of layer: how many layers, KV heads, head size, window (0 for none); layers that hold nothing
are left out. What a file leaves to its class is left out of the fields as well.
"""

from typing import Any

from kvguard.modelspec.config import kv_cache_spec
from kvguard.modelspec.spec import AttentionSpec

Plan = list[tuple[int, int, int, int]]
Rows = dict[str, tuple[dict[str, Any], Plan]]
LENGTHS = (1, 128, 4096, 4097, 40_000)


def flat(model_type: str, hidden: int, layers: int, heads: int, kv_heads: int, **more: object) -> dict[str, Any]:
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
    return {"model_type": model_type, **sizes, "num_key_value_heads": kv_heads, **more}


def qwen(model_type: str, hidden: int, layers: int, heads: int, kv_heads: int, **more: object) -> dict[str, Any]:
    leftovers = {"use_sliding_window": False, "sliding_window": 131072, "max_window_layers": layers}
    return flat(model_type, hidden, layers, heads, kv_heads, **{**leftovers, **more})


def assert_as_planned(config: dict[str, Any], plan: Plan, family: str) -> None:
    """A sequence costs 2 * Hkv * D * 2 bytes for every token each layer holds."""
    spec = kv_cache_spec(config)
    assert spec.family == family
    assert all(isinstance(cache, AttentionSpec) for cache in spec.caches())
    assert sum(1 for layer in spec.layers if layer) == sum(row[0] for row in plan)
    assert {tokens: spec.bytes_for(tokens) for tokens in LENGTHS} == {
        tokens: sum(layers * 4 * heads * width * min(tokens, window or tokens) for layers, heads, width, window in plan)
        for tokens in LENGTHS
    }
