"""Plain attention (MHA, GQA, MQA): every layer keeps K and V of the same heads, all of them or one window's worth."""

from typing import Final

from kvguard.modelspec.family import Family, ModelConfig
from kvguard.modelspec.foreign import refuse_model_type
from kvguard.modelspec.heads import head_size, num_kv_heads, num_layers
from kvguard.modelspec.spec import AttentionSpec, Layers
from kvguard.modelspec.windows import WINDOW_FIELDS, layer_windows


def _layers(model: ModelConfig) -> Layers:
    refuse_model_type(model)
    text = model.text
    kv_heads, width = num_kv_heads(text), head_size(text)
    return tuple(
        (AttentionSpec(num_kv_heads=kv_heads, head_size=width, format=model.format, sliding_window=window),)
        for window in layer_windows(text, num_layers=num_layers(text))
    )


# Types of remote code whose files state what they mean.
_TYPES: Final = frozenset(
    {
        *("RefinedWeb", "RefinedWebModel", "aquila", "arctic", "baichuan", "chatglm", "codegen", "dbrx"),
        *("deepseek", "exaone", "falcon", "grok-1", "hunyuan", "internlm", "internlm2", "internlm3"),
        *("internvl_chat", "iquestcoder", "jais", "llama_nemotron", "mimo", "mimo_v2_flash", "minicpm"),
        *("minicpmv", "molmo", "mpt", "nemotron-nas", "openelm", "orion", "phi-msft", "phi3_v", "phi4mm"),
        *("plamo", "qwen", "skywork", "solar", "step1", "step3_text", "step3_vl", "step3p5", "telechat"),
        *("telechat2", "xverse", "yi"),
    }
)

# MiniCPM 4 can read a part of what it keeps; vLLM reads all of it.
FAMILY = Family(
    name="plain attention",
    claims=lambda _: True,
    layers=_layers,
    reads=WINDOW_FIELDS | {"sparse_config"},
    types=_TYPES,
)
