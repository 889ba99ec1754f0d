"""A stated upper bound for attention nobody here understands: full attention in every layer, with the widest heads."""

import re
from typing import Final

from kvguard.modelspec.family import Family, ModelConfig
from kvguard.modelspec.fields import Fields
from kvguard.modelspec.foreign import refuse_unbounded
from kvguard.modelspec.heads import HEADS, HIDDEN, num_layers
from kvguard.modelspec.spec import AttentionSpec, Layers

_KV_HEADS: Final = re.compile(r"(key_value|kv)_heads|n_head_kv|attention_groups|_group_num$")
_WIDTHS: Final = re.compile(r"head_dim|head_size|size_per_head|^kv_channels$|^d_kv$")
_LATENT_WIDTHS: Final = ("qk_nope_head_dim", "qk_rope_head_dim")


def _layers(model: ModelConfig) -> Layers:
    """As many KV heads as attention heads, unless the file names KV heads; the most and the widest any field names.

    Raise UnsupportedConfig where even that is no bound: constant state, an encoder, or no sizes at all.
    """
    refuse_unbounded(model)
    text = model.text
    heads = text.required_whole(HEADS)
    spec = AttentionSpec(
        num_kv_heads=max(_numbers(text, _KV_HEADS), default=heads),
        head_size=max(_widths(text, heads)),
        format=model.format,
    )
    return ((spec,),) * num_layers(text)


def _widths(text: Fields, heads: int) -> list[int]:
    """Every width a head may have, with the quotient and with K put together from two parts (MLA served as MHA)."""
    hidden = text.first_whole(HIDDEN)
    parts = sum(text.whole(name, minimum=0) or 0 for name in _LATENT_WIDTHS)
    widths = [*_numbers(text, _WIDTHS), *([-(-hidden // heads)] if hidden else []), *([parts] if parts else [])]
    if not widths:
        raise text.error(HIDDEN[0], "missing")
    return widths


def _numbers(text: Fields, names: re.Pattern[str]) -> list[int]:
    """Every positive number under such a name, alone or in a list, said by the file or by the model's class."""
    values = {**text.defaults, **text.values}
    found = [value for name, value in values.items() if names.search(name)]
    entries = [entry for value in found for entry in (value if isinstance(value, list | tuple) else (value,))]
    return [entry for entry in entries if isinstance(entry, int) and not isinstance(entry, bool) and entry > 0]


FAMILY = Family(name="upper bound", claims=lambda _: True, layers=_layers)
