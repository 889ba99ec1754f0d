"""Heads that differ from layer to layer: Nemotron-NAS (`block_configs`), OpenELM, DeciLM.

Nemotron-NAS after nemotron_nas.py in vLLM 0.32. Its layers without attention, or with a linear layer in place of it,
hold nothing.
"""

from collections.abc import Mapping
from typing import Final, cast

from kvguard.modelspec.family import Family, ModelConfig
from kvguard.modelspec.fields import Fields
from kvguard.modelspec.heads import HEADS, head_size, num_layers
from kvguard.modelspec.spec import AttentionSpec, Layers, LayerSpec
from kvguard.modelspec.windows import WINDOW_FIELDS, layer_windows

_LISTS: Final = ("num_key_value_heads_per_layer", "num_kv_heads", "num_key_value_heads")
_FOREIGN_BLOCKS: Final = ("mamba", "llama4", "is_sink", "num_sink_tokens")


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)


def _claims(model: ModelConfig) -> bool:
    text = model.text
    return _attention_blocks(text) is not None or any(_is_list(text.get(name)) for name in _LISTS)


def _layers(model: ModelConfig) -> Layers:
    blocks = _attention_blocks(model.text)
    return _listed_layers(model) if blocks is None else tuple(_block_layer(model, block) for block in blocks)


def _attention_blocks(text: Fields) -> tuple[Fields, ...] | None:
    """The attention of each block; None where blocks are described in another way or not at all."""
    blocks = text.get("block_configs")
    if not isinstance(blocks, list) or not all(isinstance(block, Mapping) and "attention" in block for block in blocks):
        return None
    return tuple(_block(text, index, block["attention"]) for index, block in enumerate(blocks)) or None


def _block(text: Fields, index: int, attention: object) -> Fields:
    if not isinstance(attention, Mapping):
        raise text.error(f"block_configs.{index}.attention", "expected an object")
    return Fields(cast("Mapping[str, object]", attention), f"{text.path}block_configs.{index}.attention.")


def _block_layer(model: ModelConfig, block: Fields) -> tuple[LayerSpec, ...]:
    if block.flag("no_op", default=False) or block.flag("replace_with_linear", default=False):
        return ()
    foreign = next((name for name in _FOREIGN_BLOCKS if block.get(name)), None)
    if foreign is not None:
        raise block.error(foreign, "is not understood")
    return (
        AttentionSpec(
            num_kv_heads=_block_kv_heads(model.text, block),
            head_size=head_size(model.text),
            format=model.format,
            sliding_window=block.whole("window_length"),
        ),
    )


def _block_kv_heads(text: Fields, block: Fields) -> int:
    stated = block.whole("num_key_value_heads")
    if stated is not None:
        return stated
    heads, group = text.required_whole(HEADS), block.required("n_heads_in_group")
    if heads % group:
        raise block.error("n_heads_in_group", f"expected a divisor of {heads} attention heads, got {group}")
    return heads // group


def _listed_layers(model: ModelConfig) -> Layers:
    text = model.text
    name = next(name for name in _LISTS if _is_list(text.get(name)))
    kv_heads = text.wholes(name, minimum=1) or ()
    number = text.first_whole(("num_transformer_layers",)) or num_layers(text)
    if len(kv_heads) != number:
        raise text.error(name, f"expected a list of {number} entries, got {len(kv_heads)}")
    width, windows = head_size(text), layer_windows(text, num_layers=number)
    return tuple(
        (AttentionSpec(num_kv_heads=heads, head_size=width, format=model.format, sliding_window=window),)
        for heads, window in zip(kv_heads, windows, strict=True)
    )


FAMILY = Family(
    name="heads per layer",
    claims=_claims,
    layers=_layers,
    reads=WINDOW_FIELDS | {"block_configs", "num_key_value_heads_per_layer"},
)
