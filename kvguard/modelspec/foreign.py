"""Refuses configs whose attention is of a kind no file here understands. A field is named, never skipped.

A config.json carries hundreds of names, most of no concern to the cache, so this is a net of the words in which
families write down what does concern it. Families stand here by name where their layout needs no field.
"""

import re
from typing import Final

from kvguard.modelspec.fields import Fields

_LATENT: Final = "latent attention or a V of its own width"
_COMPRESSED: Final = "an indexer or compressed KV"
_RECURRENT: Final = "recurrent or linear attention layers"
_MIXED: Final = "layers of several kinds"
_SHARED: Final = "layers that share KV"
_ENCODER: Final = "an encoder"
_TWO_GEOMETRIES: Final = "two geometries in one model"
_PARTIAL: Final = "attention to a part of the context"
_NO_CACHE: Final = "no KV cache"

_NET: Final = tuple(
    (re.compile(words), what)
    for words, what in (
        (r"kv_lora_rank|q_lora_rank|qk_(rope|nope)_head_dim|(^|_)v_head_dim", _LATENT),
        (r"^index(er)?_|indexer|compress_", _COMPRESSED),
        (r"mamba|ssm|^state_size|^conv_|_conv(_|$)|^d_conv|^d_state|^lru_|rwkv|recurrent|^expand$", _RECURRENT),
        (r"^linear_(attn|attention|conv|key|value|num)|lightning|full_attention_interval", _RECURRENT),
        (r"hybrid|^attn_layer_|^attention_(layers|types)|block_types?$|block_configs", _MIXED),
        (r"key_value_heads_per_|^per_layer_config", _MIXED),
        (r"kv_shared|kv_sharing|share_kv|^use_cla$|attention_k_eq_v", _SHARED),
        (r"cross_(attention|attn|layer)|^is_encoder_decoder|^(en|de)coder_(layers|attention)|^num_decoder_", _ENCODER),
        (r"^swa_|global_(head_dim|key_value_heads)|num_global_|^global_attn|^full_attn", _TWO_GEOMETRIES),
        (r"window|chunk|^local_att|_local_att|blocksparse|sparse_att|^sparse_", _PARTIAL),
    )
)

# Caught by the net, read by windows.py.
_READ_ELSEWHERE: Final = frozenset({"sliding_window", "use_sliding_window", "max_window_layers"})

_FAMILIES: Final = tuple(
    (re.compile(words), what)
    for words, what in (
        (r"gemma[2-9].*|vaultgemma|cohere2.*|olmo3|gpt_oss|exaone[4_].*|llama4.*|afmoe", _PARTIAL),
        (r"deepseek_v[2-9].*|deepseek_vl_v2|kimi_.*|minicpm3|longcat_flash|glm4_moe_lite|glm_moe_dsa", _LATENT),
        (r".*mamba.*|jamba|bamba|zamba.*|nemotron_h|falcon_h1|rwkv.*|recurrent_gemma|lfm2.*", _RECURRENT),
        (r"minimax|qwen3_next|qwen3_5.*|granitemoehybrid|plamo2|zaya", _RECURRENT),
        (r"t5.*|mt5|bart|mbart|whisper|mllama.*|pegasus|marian", _ENCODER),
        (r"gpt_neo|mimo_v2.*|nemotron-nas|openelm|phi3small", _MIXED),
        (r".*bert.*|electra|mpnet|ernie|xlnet|xmod|roformer|camembert|deberta.*|data2vec.*|gte|jina_.*", _NO_CACHE),
    )
)


def refuse_foreign(fields: Fields) -> None:
    """Raise UnsupportedConfig for the first field, else for the model type, that means more than plain attention."""
    _refuse_words(fields)
    attention = fields.nested("attn_config")
    if attention is not None:
        _refuse_words(attention)
    _refuse_family(fields)


def _refuse_words(fields: Fields) -> None:
    for name, value in fields.values.items():
        if name in _READ_ELSEWHERE or _is_off(value):
            continue
        for words, what in _NET:
            if words.search(name):
                raise fields.error(name, f"means {what}, which is not supported yet")


def _is_off(value: object) -> bool:
    """Whether a value switches its field off: null, false, 0, -1 or something empty."""
    return value in (None, False, -1, "", [], {})


def _refuse_family(fields: Fields) -> None:
    model_type = fields.text("model_type") or ""
    for words, what in _FAMILIES:
        if words.fullmatch(model_type):
            raise fields.error("model_type", f"{model_type!r} has {what}, which is not supported yet")
