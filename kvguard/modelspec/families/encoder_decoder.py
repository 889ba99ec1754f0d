"""Encoder and decoder (T5, BART, Whisper and their heirs): decoder layers also keep K and V of the encoder's output.

Cross-attention is written once per request. Names after the configuration classes of transformers 5.19.
"""

from typing import Final

from kvguard.modelspec.family import Family, ModelConfig
from kvguard.modelspec.fields import Fields
from kvguard.modelspec.heads import MAX_LAYERS
from kvguard.modelspec.spec import AttentionSpec, CrossAttentionSpec, Layers

READS: Final = frozenset(
    {
        *("is_encoder_decoder", "encoder_layers", "encoder_attention_heads", "encoder_attention_type"),
        *("decoder_layers", "decoder_attention_heads", "num_decoder_layers"),
        *("attention_window", "conv_channels", "conv_kernel_sizes", "num_conv_layers"),  # of the encoder: LED, S2T
        *("num_sparse_encoder_layers", "num_sparse_decoder_layers"),
        *("encoder_sparse_step", "decoder_sparse_step", "chunk_size_feed_forward"),
    }
)


def _claims(model: ModelConfig) -> bool:
    return model.text.flag("is_encoder_decoder", default=False) or model.root.flag("is_encoder_decoder", default=False)


def _layers(model: ModelConfig) -> Layers:
    text = model.text
    layers, heads, width = _bart_sizes(text) if text.has("decoder_layers") else _t5_sizes(text)
    if layers > MAX_LAYERS:
        raise text.error("decoder_layers", f"expected at most {MAX_LAYERS}, got {layers}")
    own = AttentionSpec(num_kv_heads=heads, head_size=width, format=model.format)
    cross = CrossAttentionSpec(
        num_kv_heads=heads, head_size=width, format=model.format, encoder_tokens=_encoder_tokens(model)
    )
    return ((own, cross),) * layers


def _bart_sizes(text: Fields) -> tuple[int, int, int]:
    heads, hidden = text.required("decoder_attention_heads"), text.required_whole(("d_model", "hidden_size"))
    if hidden % heads:
        raise text.error("d_model", f"expected a multiple of {heads} attention heads, got {hidden}")
    return text.required("decoder_layers"), heads, hidden // heads


def _t5_sizes(text: Fields) -> tuple[int, int, int]:
    """As many decoder layers as encoder layers where the file names only those."""
    if not text.has("d_kv"):
        raise text.error("is_encoder_decoder", "means an encoder, and the sizes of its decoder are not understood")
    layers = text.whole("num_decoder_layers")
    return layers or text.required("num_layers"), text.required("num_heads"), text.required("d_kv")


def _encoder_tokens(model: ModelConfig) -> int | None:
    """Whisper pads its input, so the encoder always has the same length; elsewhere it is the request's."""
    return model.text.required("max_source_positions") if model.model_type == "whisper" else None


FAMILY = Family(name="encoder and decoder", claims=_claims, layers=_layers, reads=READS)
