"""Windows of models whose layers are all alike or slide from one layer on, and what counts as a window at all.

Which layers slide elsewhere is in `families/interleaved.py`. Rules after the configuration classes of transformers 5.19
and vllm/config/model.py, which keeps `sliding_window` in every layer of a model that does not interleave.
"""

import re
from typing import Final

from kvguard.modelspec.fields import Fields

_CONTEXT: Final = "max_position_embeddings"
WINDOW_FIELDS: Final = frozenset({"sliding_window", "use_sliding_window", "max_window_layers"})

# `sliding_window` holds for every layer.
_ALL_LAYERS_SLIDE: Final = re.compile(
    r"(llava_)?mistral|ministral3|mixtral|phi3(_v)?|phi4mm|phi4_multimodal|phimoe|starcoder2|solar|arctic"
)


def window_size(fields: Fields) -> int | None:
    """Tokens that `sliding_window` keeps; null, 0, -1 and `use_sliding_window` false mean that it keeps them all.

    Qwen files carry a window from their template, which counts only where the flag says so. A window wider than the
    model's context (Phi-3.5: 262144) is never reached.
    """
    model_type = fields.text("model_type") or ""
    if not fields.flag("use_sliding_window", default=not model_type.startswith("qwen")):
        return None
    window, context = window_entry(fields, "sliding_window", fields.get("sliding_window")), fields.get(_CONTEXT)
    return None if window is not None and isinstance(context, int) and window > context else window


def window_entry(fields: Fields, name: str, value: object) -> int | None:
    """One window as it stands under `name`, None where it is switched off."""
    if value is None or (value in (0, -1) and not isinstance(value, bool)):
        return None
    return Fields({name: value}, fields.path).whole(name)


def layer_windows(fields: Fields, *, num_layers: int) -> tuple[int | None, ...]:
    """Return one entry per layer: its window in tokens, None for full attention."""
    if fields.get("layer_types"):
        raise fields.error("layer_types", "names a kind of layer that is not understood in this model")
    window = window_size(fields)
    if window is None:
        return (None,) * num_layers
    if _ALL_LAYERS_SLIDE.fullmatch(fields.text("model_type") or ""):
        return (window,) * num_layers
    return _upper_layers(fields, window, num_layers=num_layers)


def _upper_layers(fields: Fields, window: int, *, num_layers: int) -> tuple[int | None, ...]:
    """Qwen, once `use_sliding_window` is true, and dots.llm1: layers from index `max_window_layers` on slide."""
    if not fields.has("use_sliding_window") and fields.text("model_type") != "dots1":
        raise fields.error("sliding_window", f"which layers slide in {fields.text('model_type')!r} is not known")
    num_full = fields.required("max_window_layers", minimum=0)
    return tuple(None if index < num_full else window for index in range(num_layers))
