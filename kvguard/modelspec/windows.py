"""The sliding window of each layer. Rules per family: which fields count, and which are left over from a template."""

from typing import Final

from kvguard.modelspec.fields import Fields

_FULL: Final = "full_attention"
_SLIDING: Final = "sliding_attention"

# `sliding_window` holds for every layer.
_ALL_LAYERS_SLIDE: Final = frozenset({"mistral", "phi3", "starcoder2"})
# The configuration class puts 4096 where the file has no such key; null in the file means no window.
_WINDOW_BY_DEFAULT: Final = frozenset({"mistral"})


def layer_windows(fields: Fields, *, num_layers: int) -> tuple[int | None, ...]:
    """Return one entry per layer: its window in tokens, None for full attention."""
    if fields.has("layer_types"):
        return _listed(fields, num_layers=num_layers)
    model_type = fields.text("model_type") or ""
    if not fields.flag("use_sliding_window", default=not model_type.startswith("qwen")):
        return (None,) * num_layers
    if model_type in _WINDOW_BY_DEFAULT and "sliding_window" not in fields.values:
        raise fields.error("sliding_window", f"missing, and {model_type!r} does not mean 'no window' by that")
    window = fields.whole("sliding_window")
    if window is None:
        return (None,) * num_layers
    if model_type in _ALL_LAYERS_SLIDE:
        return (window,) * num_layers
    return _upper_layers(fields, window, num_layers=num_layers)


def _listed(fields: Fields, *, num_layers: int) -> tuple[int | None, ...]:
    """Every layer alike, by name. A mix is refused: engines hold it in groups."""
    kinds = fields.values["layer_types"]
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        raise fields.bad_value("layer_types", f"a list of {num_layers} entries")
    if all(kind == _FULL for kind in kinds):
        return (None,) * num_layers
    if any(kind != _SLIDING for kind in kinds):
        raise fields.error("layer_types", "layers of several kinds are not supported yet")
    return (fields.required_whole(("sliding_window",)),) * num_layers


def _upper_layers(fields: Fields, window: int, *, num_layers: int) -> tuple[int | None, ...]:
    """Qwen, once `use_sliding_window` is true: layers from index `max_window_layers` on slide."""
    if not fields.has("use_sliding_window"):
        raise fields.error("sliding_window", f"which layers slide in {fields.text('model_type')!r} is not known")
    num_full = fields.whole("max_window_layers", minimum=0)
    if num_full is None:
        raise fields.error("max_window_layers", "missing")
    return tuple(None if index < num_full else window for index in range(num_layers))
