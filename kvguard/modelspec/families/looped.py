"""Layers that run several times with the same weights and keep a cache each time: IQuest-LoopCoder and HRM-Text.

After iquest_loopcoder.py and hrm_text.py in vLLM 0.32.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from kvguard.modelspec.family import Family, ModelConfig
from kvguard.modelspec.fields import Fields
from kvguard.modelspec.heads import HEADS, MAX_LAYERS, head_size, num_kv_heads, num_layers
from kvguard.modelspec.hybrid import refuse_window, with_defaults
from kvguard.modelspec.spec import AttentionSpec, Layers

READS: Final = frozenset({"loop_num", "loop_window_size", "H_cycles", "L_cycles", "sliding_window"})

_MAX_RUNS: Final = 64  # bounds the tuple a hostile file can ask for
_LOOPCODER: Final[Mapping[str, object]] = {"loop_num": 2, "loop_window_size": 64}
# transformers 5.19
_HRM: Final[Mapping[str, object]] = {
    "H_cycles": 2,
    "L_cycles": 3,
    "num_layers_per_stack": 16,
    "num_attention_heads": 12,
    "hidden_size": 1536,
    "head_dim": 128,
}


def _loopcoder(model: ModelConfig) -> Layers:
    """The first run of a layer keeps all tokens, each later one a window."""
    text = with_defaults(model.text, _LOOPCODER)
    refuse_window(text)
    first = AttentionSpec(num_kv_heads=num_kv_heads(text), head_size=head_size(text), format=model.format)
    later = replace(first, sliding_window=text.required("loop_window_size"))
    return ((first, *(later,) * (_runs(text, "loop_num") - 1)),) * num_layers(text)


def _hrm(model: ModelConfig) -> Layers:
    """The stack below runs `L_cycles` times for every run of the stack above; no heads are shared."""
    text = with_defaults(model.text, _HRM)
    stack, above, below = text.required("num_layers_per_stack"), _runs(text, "H_cycles"), _runs(text, "L_cycles")
    if stack > MAX_LAYERS:
        raise text.error("num_layers_per_stack", f"expected at most {MAX_LAYERS}, got {stack}")
    cache = AttentionSpec(num_kv_heads=text.required_whole(HEADS), head_size=head_size(text), format=model.format)
    return ((cache,) * (above * below),) * stack + ((cache,) * above,) * stack


def _runs(text: Fields, name: str) -> int:
    runs = text.required(name)
    if runs > _MAX_RUNS:
        raise text.error(name, f"expected at most {_MAX_RUNS}, got {runs}")
    return runs


_READERS: Final[Mapping[str, Callable[[ModelConfig], Layers]]] = {"iquestloopcoder": _loopcoder, "hrm_text": _hrm}

FAMILY = Family(
    name="looped layers",
    claims=lambda model: model.model_type in _READERS,
    layers=lambda model: _READERS[model.model_type](model),
    reads=READS,
    types=frozenset(_READERS),
)
