"""Latent attention (MLA): one vector per token in every layer, and keys of a sparse-attention indexer beside it (DSA).

Field names and layer rules after DeepseekV2Config and its heirs in transformers 5.19 and deepseek_v2.py,
longcat_flash.py and openpangu.py in vLLM 0.32.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kvguard.modelspec.family import Family, ModelConfig
from kvguard.modelspec.fields import Fields
from kvguard.modelspec.heads import HEADS, num_layers
from kvguard.modelspec.hybrid import Caches, full_attention, refuse_window, with_defaults
from kvguard.modelspec.spec import AttentionSpec, IndexerSpec, LatentSpec, Layers

# The second name is that of the first openPangu Ultra files.
RANK: Final = ("kv_lora_rank", "attention_kv_lora_dim")
ROPE: Final = ("qk_rope_head_dim", "attention_qk_rope_dim")

LATENT_FIELDS: Final = frozenset(
    {
        *("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"),
        *("sliding_window", "use_sliding_window", "max_window_layers"),
    }
)
READS: Final = LATENT_FIELDS | {
    *("index_head_dim", "index_n_heads", "index_topk", "index_topk_freq", "index_topk_pattern"),
    *("index_skip_topk_offset", "index_share_for_mtp_iteration", "indexer_types", "indexer_rope_interleave"),
}

_DEEPSEEK: Final[Mapping[str, object]] = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
_SPARSE: Final[Mapping[str, object]] = {**_DEEPSEEK, "index_topk": 2048, "index_head_dim": 128}
_DEEPSEEK_V3: Final[Mapping[str, object]] = {**_DEEPSEEK, "num_hidden_layers": 61}
_SMALL: Final[Mapping[str, object]] = {"qk_rope_head_dim": 32}
# transformers 5.19. Types of remote code, such as deepseek_vl_v2, build on the classes named here. DeepSeek-V2 has no
# layer count, because the class its own files come with puts 30 where the library puts 32.
_DEFAULTS: Final[Mapping[str, Mapping[str, object]]] = {
    **dict.fromkeys(("deepseek_v2", "deepseek_vl_v2"), _DEEPSEEK),
    **dict.fromkeys(("deepseek_v3", "kimi_k2", "kimi_k25", "axk1"), _DEEPSEEK_V3),
    "deepseek_v32": {**_SPARSE, "num_hidden_layers": 61},
    "glm4_moe_lite": {**_DEEPSEEK, "num_hidden_layers": 47},
    "glm_moe_dsa": {**_SPARSE, "num_hidden_layers": 78},
    **dict.fromkeys(("longcat_flash", "longcat_flash_ngram"), _DEEPSEEK),
    "youtu": {**_DEEPSEEK, "num_hidden_layers": 32},
    "hy_v4": {**_SPARSE, "index_topk_freq": 4, "num_hidden_layers": 34},
    "axk2": {**_SPARSE, **_SMALL, "kv_lora_rank": 128, "num_hidden_layers": 48},
    "minicpm3": {**_SMALL, "kv_lora_rank": 256, "num_hidden_layers": 62},
    "mistral4": {**_DEEPSEEK, "kv_lora_rank": 256, "num_hidden_layers": 36},
}
_LONGCAT_BLOCKS: Final = 28
_EXPANDED: Final = frozenset({"minicpm3"})
_TYPES: Final = frozenset({*_DEFAULTS, "pangu_ultra_moe", "sarvam_mla", "deepseek_ocr"})
# Latent attention beside caches that nothing here describes.
_OTHERS: Final = frozenset({"glm5_next", "glm5_next_text", "dots3_note"})
_WORDS: Final = frozenset({"full_attention", "indexed_attention", "deepseek_sparse_attention"})


def latent(model: ModelConfig, text: Fields) -> Caches:
    """The latent vector and its rotary part. A rotary part of 0 is an attention without positions."""
    rope = text.first_whole(ROPE, minimum=0)
    if rope is None:
        raise text.error(ROPE[0], "missing")
    spec = LatentSpec(latent_size=text.required_whole(RANK), rope_size=rope, format=model.format)
    return (replace(spec, expanded=_expanded(model, text, rope)) if model.model_type in _EXPANDED else spec,)


def _expanded(model: ModelConfig, text: Fields, rope: int) -> AttentionSpec:
    """MiniCPM3 in vLLM 0.32 (minicpm3.py): every head with K of both parts, and V padded to the same width."""
    return AttentionSpec(
        num_kv_heads=text.required_whole(HEADS),
        head_size=text.required("qk_nope_head_dim") + rope,
        format=model.format,
    )


def _claims(model: ModelConfig) -> bool:
    text = model.text
    named = text.has("kv_lora_rank") and text.has("qk_rope_head_dim")
    return model.model_type in _TYPES or (named and model.model_type not in _OTHERS)


def _layers(model: ModelConfig) -> Layers:
    text = with_defaults(model.text, _DEFAULTS.get(model.model_type, {}))
    refuse_window(text)
    count = _attention_layers(model, text)
    _check_words(text, count)
    if _is_plain(text):
        return (full_attention(model, text),) * count
    vector = latent(model, text)
    indexer = _indexer(text)
    return tuple(vector + indexer if indexed else vector for indexed in _indexed(text, count))


def _attention_layers(model: ModelConfig, text: Fields) -> int:
    """LongCat has two attentions in each of its `num_layers`; `num_hidden_layers` counts the attentions."""
    if not model.model_type.startswith("longcat_flash"):
        return num_layers(text)
    said = replace(text, defaults={})
    blocks, attentions = said.whole("num_layers"), said.whole("num_hidden_layers")
    if blocks is None:
        return num_layers(said if attentions else replace(said, values={"num_layers": 2 * _LONGCAT_BLOCKS}))
    if attentions not in (None, 2 * blocks):
        raise text.error("num_hidden_layers", f"expected {2 * blocks}, twice num_layers, got {attentions}")
    return 2 * num_layers(replace(said, values={"num_layers": blocks}))


def _is_plain(text: Fields) -> bool:
    """Some DeepSeek-VL2 sizes and DeepSeek-OCR switch the latent off: no rank, or no width for either part of K."""
    said = [text.whole(name, minimum=0) for name in ("qk_nope_head_dim", "qk_rope_head_dim") if name in text.values]
    if said and not any(said):
        return True
    if text.flag("use_mla", default=text.first_whole(RANK) is not None):
        return False
    if any(said):
        raise text.error("qk_rope_head_dim", "a rotary part of its own without latent attention is not understood")
    return True


def _check_words(text: Fields, count: int) -> None:
    words = text.texts("layer_types")
    if words is None:
        return
    if len(words) != count:
        raise text.error("layer_types", f"expected {count} entries, got {len(words)}")
    unknown = sorted(set(words) - _WORDS)
    if unknown:
        raise text.error("layer_types", f"{unknown[0]!r} is not understood")


def _indexer(text: Fields) -> Caches:
    """The indexer's keys, nothing where attention is dense."""
    if text.whole("index_topk", minimum=0):
        return (IndexerSpec(head_size=text.required("index_head_dim")),)
    return ()


def _indexed(text: Fields, count: int) -> tuple[bool, ...]:
    """Layers with an indexer of their own; the others use the choice of the last one that has.

    A list goes before the schedule: every `index_topk_freq`-th layer, `index_skip_topk_offset` layers first.
    """
    words = _spelled_out(text.text("index_topk_pattern")) if _is_pattern(text) else text.texts("index_topk_pattern")
    listed = text.texts("indexer_types") or words
    if listed is None:
        every = text.whole("index_topk_freq") or 1
        offset = text.whole("index_skip_topk_offset", minimum=0)
        first = 2 if offset is None else offset
        return tuple(max(index - first + 1, 0) % every == 0 for index in range(count))
    name = "indexer_types" if text.has("indexer_types") else "index_topk_pattern"
    if len(listed) != count or not set(listed) <= {"full", "shared"}:
        raise text.bad_value(name, f"{count} entries, each full or shared")
    return tuple(word == "full" for word in listed)


def _is_pattern(text: Fields) -> bool:
    return isinstance(text.get("index_topk_pattern"), str)


def _spelled_out(pattern: str | None) -> tuple[str, ...]:
    return tuple({"F": "full", "S": "shared"}.get(letter, letter) for letter in pattern or "")


FAMILY = Family(name="latent attention", claims=_claims, layers=_layers, reads=READS, types=_TYPES)
