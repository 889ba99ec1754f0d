"""Layers, KV heads and head size of plain attention (MHA, GQA, MQA), under every name public configs use."""

from typing import Final

from kvguard.modelspec.fields import Fields

LAYERS: Final = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS: Final = ("num_attention_heads", "n_head", "n_heads", "attention_heads")
HIDDEN: Final = ("hidden_size", "n_embd", "n_embed", "d_model")
KV_HEADS: Final = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads", "num_attention_groups")
HEAD_SIZE: Final = ("head_dim", "kv_channels", "attention_head_dim", "hidden_size_per_head")

MAX_LAYERS: Final = 4096  # bounds the tuple a hostile file can ask for

_MULTI_QUERY: Final = frozenset({"falcon", "RefinedWeb", "RefinedWebModel", "gpt_bigcode"})


def num_layers(fields: Fields) -> int:
    number = fields.required_whole(LAYERS)
    if number > MAX_LAYERS:
        raise fields.error(LAYERS[0], f"expected at most {MAX_LAYERS}, got {number}")
    return number


def num_kv_heads(fields: Fields) -> int:
    """KV heads of the whole model, before tensor parallelism splits or copies them."""
    if _is_multi_query(fields):
        return 1
    heads, kv_heads = fields.first_whole(HEADS), _grouped_heads(fields)
    if kv_heads is None:
        return fields.required_whole(HEADS)
    if heads is not None and heads % kv_heads:
        raise fields.error(KV_HEADS[0], f"expected a divisor of {heads} attention heads, got {kv_heads}")
    return kv_heads


def head_size(fields: Fields) -> int:
    """An explicit width wins over hidden size / heads (they differ in Qwen3-0.6B, Gemma-7B); 0 means absent."""
    explicit = fields.first_whole(HEAD_SIZE, minimum=0)
    if explicit:
        return explicit
    hidden, heads = fields.required_whole(HIDDEN), fields.required_whole(HEADS)
    if hidden % heads:
        raise fields.error(HIDDEN[0], f"expected a multiple of {heads} attention heads, got {hidden}")
    return hidden // heads


def _is_multi_query(fields: Fields) -> bool:
    """`multi_query` means one KV head, except in Falcon's newer layout, where the flag is a leftover."""
    model_type = fields.text("model_type") or ""
    if not fields.flag("multi_query", default=False):
        return False
    if fields.flag("new_decoder_architecture", default=False):
        return False
    if model_type not in _MULTI_QUERY:
        raise fields.error("multi_query", f"what it means in {model_type!r} is not known")
    return True


def _grouped_heads(fields: Fields) -> int | None:
    attention = fields.nested("attn_config")
    if attention is not None and (kv_heads := _attn_config_heads(attention)) is not None:
        return kv_heads
    if fields.flag("multi_query_attention", default=False):
        return fields.required_whole(("multi_query_group_num",))
    return fields.first_whole(KV_HEADS)


def _attn_config_heads(attention: Fields) -> int | None:
    """DBRX and MPT keep attention settings in an object of their own."""
    kind = attention.text("attn_type") or "multihead_attention"
    kv_heads = attention.whole("kv_n_heads")
    if kv_heads is None and kind != "multihead_attention":
        raise attention.error("attn_type", f"{kind!r} without kv_n_heads is not understood")
    return kv_heads
