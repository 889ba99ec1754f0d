"""MiniMax-M3: full attention that reads chosen blocks only; the layers that choose also keep 16-bit keys to choose by.

After minimax_m3 in vLLM 0.32. Files of the model and files saved by transformers 5.19 name the same in two ways.
"""

from typing import Final

from kvguard.modelspec.family import Family, ModelConfig
from kvguard.modelspec.fields import Fields
from kvguard.modelspec.formats import SIXTEEN_BIT
from kvguard.modelspec.heads import num_layers
from kvguard.modelspec.hybrid import full_attention, refuse_window
from kvguard.modelspec.spec import LatentSpec, Layers

READS: Final = frozenset(
    {
        *("sparse_attention_config", "index_n_heads", "index_head_dim", "index_block_size"),
        *("index_topk_blocks", "index_local_blocks", "sliding_window"),
    }
)
_TYPES: Final = frozenset({"minimax_m3_vl", "minimax_m3_text", "minimax_m3_vl_text"})
_WORDS: Final = {"full_attention": False, "minimax_m3_sparse": True}
_INDEX_SIZE: Final = 128


def _layers(model: ModelConfig) -> Layers:
    text = model.text
    refuse_window(text)
    sparse = text.nested("sparse_attention_config")
    stated = None if sparse is None else sparse.whole("sparse_index_dim")
    size = stated or text.whole("index_head_dim") or _INDEX_SIZE
    own = full_attention(model, text)
    keys = LatentSpec(latent_size=size, rope_size=0, format=SIXTEEN_BIT)
    return tuple((*own, keys) if chooses else own for chooses in _choosing(text, sparse, num_layers(text)))


def _choosing(text: Fields, sparse: Fields | None, count: int) -> tuple[bool, ...]:
    words = text.texts("layer_types")
    if words is not None:
        if len(words) != count or not set(words) <= _WORDS.keys():
            raise text.bad_value("layer_types", f"{count} entries, each of {', '.join(_WORDS)}")
        return tuple(_WORDS[word] for word in words)
    if sparse is None:
        raise text.error("sparse_attention_config", "missing")
    flags = sparse.wholes("sparse_attention_freq") or (0,) * count
    if len(flags) != count:
        raise sparse.error("sparse_attention_freq", f"expected {count} entries, got {len(flags)}")
    return tuple(flag > 0 for flag in flags)


FAMILY = Family(
    name="block-sparse attention",
    claims=lambda model: model.model_type in _TYPES,
    layers=_layers,
    reads=READS,
    types=_TYPES,
)
