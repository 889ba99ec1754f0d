"""Attention to learnt sinks ahead of the context (openPangu Pro V2), with K of two parts and V of a width of its own.

After openpangu.py in vLLM 0.32. The sinks lie in blocks that all sequences share, and layers that slide keep all tokens
like the others.
"""

from typing import Final

from kvguard.modelspec.family import Family, ModelConfig
from kvguard.modelspec.heads import num_kv_heads, num_layers
from kvguard.modelspec.spec import AttentionSpec, Layers

READS: Final = frozenset({"v_channels", "sliding_window", "interleaved_sliding_window"})


def _claims(model: ModelConfig) -> bool:
    return model.text.get("param_sink_number") not in (None, 0)


def _layers(model: ModelConfig) -> Layers:
    text = model.text
    spec = AttentionSpec(
        num_kv_heads=num_kv_heads(text),
        head_size=text.required("qk_nope_dim") + text.required("qk_rope_dim"),
        head_size_v=text.required("v_channels"),
        format=model.format,
    )
    return ((spec,),) * num_layers(text)


FAMILY = Family(name="attention with sinks", claims=_claims, layers=_layers, reads=READS)
