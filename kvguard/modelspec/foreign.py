"""Refuses configs whose attention is of a kind no file here understands. A field is named, never skipped.

A config.json carries hundreds of names, most of no concern to the cache, so this is a net of the words in which
families write down what does concern it. Families stand here by name where their layout needs no field.
"""

import re
from typing import Final

from kvguard.modelspec.family import Family, ModelConfig
from kvguard.modelspec.fields import Fields

_LATENT: Final = "latent attention or a V of its own width"
_COMPRESSED: Final = "an indexer or compressed KV"
_RECURRENT: Final = "recurrent or linear attention layers"
_MIXED: Final = "layers of several kinds"
_SHARED: Final = "layers that share KV"
_ENCODER: Final = "an encoder"
_TWO_GEOMETRIES: Final = "two geometries in one model"
_PARTIAL: Final = "attention to a part of the context"
_REPEATED: Final = "layers that run, and cache, more than once"
_NO_CACHE: Final = "no KV cache"

_UNBOUNDED: Final = frozenset({_RECURRENT, _ENCODER, _REPEATED, _NO_CACHE})

_NET: Final = tuple(
    (re.compile(words), what)
    for words, what in (
        (r"kv_lora_rank|q_lora_rank|qk_(rope|nope)_head_dim|(^|_)v_head_dim|^v_channels$", _LATENT),
        (r"^index(er)?_|indexer|compress_", _COMPRESSED),
        (r"mamba|ssm|^state_size|^conv_|_conv(_|$)|^d_conv|^d_state|^lru_|rwkv|recurrent|^expand$", _RECURRENT),
        (r"^linear_(attn|attention|conv|key|value|num)|lightning|full_attention_interval", _RECURRENT),
        (r"hybrid|^attn_layer_|^attention_(layers|types)|block_types?$|block_configs", _MIXED),
        (r"key_value_heads_per_|^per_layer_config", _MIXED),
        (r"kv_shared|kv_sharing|share_kv|^use_cla$|attention_k_eq_v", _SHARED),
        (r"cross_(attention|attn|layer)|^is_encoder_decoder|^(en|de)coder_(layers|attention)|^num_decoder_", _ENCODER),
        (r"^swa_|global_(head_dim|key_value_heads)|num_global_|^global_attn|^full_attn", _TWO_GEOMETRIES),
        (r"window|attention_chunk|attn_chunk|chunked_att|^chunk_size$", _PARTIAL),
        (r"^local_att|_local_att|blocksparse|sparse_att|^sparse_", _PARTIAL),
        (r"^loop_num|^num_loops|^total_ut_steps|^[hl]_cycles$", _REPEATED),
    )
)

_MODEL_TYPES: Final = tuple(
    (re.compile(words), what)
    for words, what in (
        (r"gemma[2-9].*|cohere[2-9].*|olmo[3-9].*|exaone[4-9_].*|llama[4-9].*|phi3small", _PARTIAL),
        (
            r"deepseek_v[2-9].*|deepseek_vl_v2|kimi_(?!audio).*|minicpm3|longcat_flash|glm4_moe_lite|glm_moe_dsa",
            _LATENT,
        ),
        (r".*mamba.*|jamba|bamba|zamba.*|nemotron_h|falcon_h1|rwkv.*|recurrent_gemma|lfm2.*", _RECURRENT),
        (r"minimax|qwen3_next|qwen3_5.*|granitemoehybrid|plamo2|zaya", _RECURRENT),
        (r"[mu]?t5.*|m?bart|whisper|mllama.*|pegasus|marian|idefics|florence2.*|udop|prophetnet", _ENCODER),
        (r"moonshine.*|voxtral_realtime.*|cohere_asr|canary.*|seamless.*|.*encoder-decoder", _ENCODER),
        (r"mimo_v2.*|nemotron-nas|openelm", _MIXED),
        (r"hrm_text|ouro|iquestloopcoder", _REPEATED),
        (r".*bert.*|electra|mpnet|ernie|xlnet|xmod|roformer|camembert|deberta.*|data2vec.*|gte|jina_.*", _NO_CACHE),
    )
)


def refuse_foreign(model: ModelConfig, family: Family) -> None:
    """Raise UnsupportedConfig for the first field that means more than `family` understands."""
    _refuse_words(model.text, family.reads)
    attention = model.text.nested("attn_config")
    if attention is not None:
        _refuse_words(attention, family.reads)


def refuse_model_type(model: ModelConfig) -> None:
    """Raise UnsupportedConfig for a model type whose layout needs no field to differ from plain attention."""
    model_type = model.model_type
    for words, what in _MODEL_TYPES:
        if words.fullmatch(model_type):
            raise model.text.error("model_type", f"{model_type!r} has {what}, which is not supported yet")


def refuse_unbounded(model: ModelConfig) -> None:
    """Raise UnsupportedConfig for what full attention in every layer does not bound."""
    for name, value in model.text.values.items():
        for words, what in _NET:
            if what in _UNBOUNDED and not _is_off(value) and words.search(name):
                raise model.text.error(name, f"means {what}, for which no bound is known")
    for words, what in _MODEL_TYPES:
        if what in _UNBOUNDED and words.fullmatch(model.model_type):
            raise model.text.error("model_type", f"{model.model_type!r} has {what}, for which no bound is known")


def _refuse_words(fields: Fields, understood: frozenset[str]) -> None:
    for name, value in fields.values.items():
        if name in understood or _is_off(value):
            continue
        for words, what in _NET:
            if words.search(name):
                raise fields.error(name, f"means {what}, which is not understood in this model")


def _is_off(value: object) -> bool:
    """Whether a value switches its field off: null, false, 0, -1 or something empty."""
    return value in (None, False, -1, "", [], {})
