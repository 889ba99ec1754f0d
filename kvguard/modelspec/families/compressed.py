"""DeepSeek-V4: a short window of vectors in every layer, and beside it one vector for every 4 or every 128 tokens.

Layers of ratio 4 also keep keys of an indexer, one per vector. After deepseek_v4 in transformers 5.19 and vLLM 0.32.
"""

from collections.abc import Mapping
from typing import Final

from kvguard.modelspec.family import Family, ModelConfig
from kvguard.modelspec.fields import Fields, UnsupportedConfig
from kvguard.modelspec.formats import FP8, KVFormat
from kvguard.modelspec.heads import num_layers
from kvguard.modelspec.hybrid import Caches, with_defaults
from kvguard.modelspec.spec import CompressedSpec, IndexerSpec, LatentSpec, Layers

READS: Final = frozenset(
    {
        *("compress_ratios", "compress_rates", "compress_rate_csa", "compress_rate_hca", "compress_rope_theta"),
        *("index_head_dim", "index_n_heads", "index_topk", "sliding_window", "q_lora_rank", "qk_rope_head_dim"),
    }
)
_WINDOW_ONLY: Final = "sliding_attention"
_SPARSE: Final = "compressed_sparse_attention"
_HEAVY: Final = "heavily_compressed_attention"
_RATIOS: Final = {0: _WINDOW_ONLY, 1: _WINDOW_ONLY, 4: _SPARSE, 128: _HEAVY}
_RATES: Final = ((_SPARSE, "compress_rate_csa", 4), (_HEAVY, "compress_rate_hca", 128))
# transformers 5.19
_DEFAULTS: Final[Mapping[str, object]] = {
    "num_hidden_layers": 43,
    "head_dim": 512,
    "index_head_dim": 128,
    "sliding_window": 128,
    "num_nextn_predict_layers": 1,
}
# One vector in vLLM's fp8_ds_mla of this model: 448 elements of 8 bits, 64 rotary ones of 16, scales padded to 8 bytes.
_FP8_WIDTH: Final = 512
_FP8_BYTES: Final = 448 + 2 * 64 + 8


def _layers(model: ModelConfig) -> Layers:
    text = with_defaults(model.text, _DEFAULTS)
    vector, form = _vector(model, text.required("head_dim"))
    window = LatentSpec(latent_size=vector, rope_size=0, format=form, sliding_window=text.required("sliding_window"))
    sparse, heavy = (
        CompressedSpec(latent_size=vector, ratio=_rate(text, kind, name, rate), format=form)
        for kind, name, rate in _RATES
    )
    keys = IndexerSpec(head_size=text.required("index_head_dim"), ratio=sparse.ratio)
    caches: Mapping[str, Caches] = {
        _WINDOW_ONLY: (window,),
        _SPARSE: (window, sparse, keys),
        _HEAVY: (window, heavy),
    }
    return tuple(caches[kind] for kind in _kinds(text, num_layers(text)))


def _vector(model: ModelConfig, width: int) -> tuple[int, KVFormat]:
    """Width and format of one vector. The format for latent attention is laid out in this model's own way."""
    if not model.format.latent_only:
        return width, model.format
    if model.format.name != "fp8_ds_mla" or width != _FP8_WIDTH:
        raise UnsupportedConfig("kv_cache_dtype", f"{model.format.name} is not understood for vectors of {width}")
    return _FP8_BYTES, FP8


def _rate(text: Fields, kind: str, name: str, default: int) -> int:
    """Tokens per vector, from the object of rates or from the older single field."""
    rates = text.nested("compress_rates")
    rate = text.whole(name) or (None if rates is None else rates.whole(kind))
    return default if rate is None else rate


def _kinds(text: Fields, count: int) -> tuple[str, ...]:
    """`compress_ratios` may go on past the layers, for those that draft. `layer_types` goes before it."""
    words = text.texts("layer_types")
    if words is not None:
        _check_length(text, "layer_types", len(words), count)
        if not set(words) <= set(_RATIOS.values()):
            raise text.bad_value("layer_types", f"each of {_WINDOW_ONLY}, {_SPARSE}, {_HEAVY}")
        return words[:count]
    ratios = text.wholes("compress_ratios")
    if ratios is None:
        return tuple(_HEAVY if index < 2 or index % 2 == 0 else _SPARSE for index in range(count))
    _check_length(text, "compress_ratios", len(ratios), count)
    if not set(ratios) <= set(_RATIOS):
        raise text.bad_value("compress_ratios", "each of 0, 4, 128")
    return tuple(_RATIOS[ratio] for ratio in ratios[:count])


def _check_length(text: Fields, name: str, length: int, count: int) -> None:
    drafting = text.whole("num_nextn_predict_layers", minimum=0) or 0
    if not count <= length <= count + drafting:
        raise text.error(name, f"expected {count} entries and at most {drafting} more, got {length}")


FAMILY = Family(
    name="compressed attention",
    claims=lambda model: model.model_type == "deepseek_v4",
    layers=_layers,
    reads=READS,
    types=frozenset({"deepseek_v4"}),
)
