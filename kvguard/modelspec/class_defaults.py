"""What a model's configuration class puts where its file says nothing, as far as the cache is concerned.

Declared defaults of the configuration classes in transformers 5.19, under the names those classes use. A file saved by
the library leaves out values equal to them, and a LLaVA file may give its language model no sizes at all. What a class
derives from other fields (KV heads from heads, a width from the quotient, a list of layers from a pattern) is not here
but in the rules that read it. Types of remote code have no entry: their files state what they mean.
"""

from collections.abc import Mapping
from typing import Any, Final

_NAMES: Final = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size", "head_dim")

# fmt: off
# Types, then layers, attention heads, KV heads, hidden size, head size: under the names above, None where the class
# has none of its own; then whatever else it puts.
_ROWS: Final[tuple[tuple[Any, ...], ...]] = (
    ("apertus aria_text deepseek_ocr2_text deepseek_v2 flex_olmo granite granitemoe", 32, 32, None, 4096, None),
    ("granitemoehybrid granitemoeshared hunyuan_v1_dense hunyuan_v1_moe hunyuan_vl_text", 32, 32, None, 4096, None),
    ("hyperclovax llama olmo olmo2", 32, 32, None, 4096, None),
    ("arcee gpt_neox_japanese", 32, 32, None, 2560, None),
    ("axk1", 61, 64, 64, 7168, None),
    ("bamba emu3_text_model falcon_h1 jamba minimax mixtral phimoe", 32, 32, 8, 4096, None),
    ("biogpt", 24, 16, None, 1024, None),
    ("bitnet", 30, 20, 5, 2560, None),
    ("chameleon", 32, 32, 32, 4096, None),
    ("cohere", 40, 64, None, 8192, None),
    ("cosmos3_edge_text", 28, 16, 8, 2048, 128),
    ("csm", 16, 32, 8, 2048, None),
    ("deepseek_v3", 61, 128, 128, 7168, None),
    ("deepseek_v32", 61, 128, 128, 7168, 64),
    ("diffllama", 16, 32, None, 2048, None),
    ("doge", 32, 8, None, 1024, None),
    ("ernie4_5 paddleocr_vl_text", 18, 16, 2, 1024, 128),
    ("ernie4_5_moe ernie4_5_vl_moe_text", 28, 20, 4, 2560, None),
    ("gemma", 28, 16, 16, 3072, 256),
    ("glm glm4", 40, 32, 2, 4096, 128),
    ("glm4_moe glm4v_moe_text", 46, 96, 8, 4096, None),
    ("glm4_moe_lite", 47, 20, 20, 2048, None),
    ("glm4v_text glm_image_text", 40, 32, 2, 4096, None),
    ("glm_moe_dsa", 78, 64, 64, 6144, 64),
    ("glm_ocr_text", 16, 16, 8, 1024, None),
    ("gpt_neox", 44, 64, None, 6144, None),
    ("helium", 24, 20, 20, 2560, 128),
    ("hy_v3", 80, 64, 8, 4096, 128),
    ("jais2", 32, 26, None, 3328, None),
    ("kimi_linear", 27, 32, 32, 2304, None),
    ("lfm2", 32, 32, 8, 2560, None),
    ("lfm2_moe", 32, 32, 8, 2048, None),
    ("minicpm3", 62, 40, 40, 2560, None),
    ("minimax_m2", 62, 48, 8, 3072, 128),
    ("minimax_m3_vl_text", 60, 64, 4, 6144, 128),
    ("ministral3", 34, 32, 8, 4096, 128),
    ("mistral4", 36, 32, 32, 4096, None),
    ("mllama_text_model", 40, 32, 8, 4096, None),
    ("nanochat", 12, 6, None, 768, None),
    ("nemotron", 32, 48, None, 6144, None),
    ("olmo_hybrid", 32, 30, None, 3840, None),
    ("olmoe", 16, 16, None, 2048, None),
    ("opt", 12, 12, None, 768, None),
    ("persimmon", 36, 64, None, 4096, None),
    ("phi", 24, 32, None, 2048, None),
    ("phi3", 32, 32, None, 3072, None),
    ("phi4_multimodal", 32, 32, 8, 3072, None),
    ("qwen3_5_moe_text", 40, 16, 2, 2048, 256),
    ("qwen3_5_text", 32, 16, 4, 4096, 256),
    ("qwen3_next", 48, 16, 2, 2048, 256),
    ("qwen3_omni_moe_text", 28, 28, 4, 2048, None),
    ("qwen3_vl_moe_text", 24, 16, 16, 2048, None),
    ("qwen3_vl_text", 32, 32, 32, 4096, 128),
    ("seed_oss", 64, 80, 8, 4096, 128),
    ("solar_open", 48, 64, 8, 4096, 128),
    ("stablelm", 32, 32, 32, 2560, None),
    ("starcoder2", 30, 24, 2, 3072, None),
    ("step3p5", 45, 64, 8, 4096, 128),
    ("youtu", 32, 16, 16, 2048, None),
    ("zamba2", 54, 32, None, 2560, None),
    ("afmoe", 32, 16, None, 2048, 128, {"sliding_window": 1024, "global_attn_every_n_layers": 4}),
    ("cohere2 cohere_compass_text", 40, 64, None, 8192, None, {"sliding_window": 4096}),
    ("cohere2_moe", 40, 64, None, 8192, 128, {"sliding_window": 4096, "sliding_window_pattern": 4}),
    ("cwm", 64, 48, 8, 6144, 128, {"sliding_window": 8192}),
    ("deepseek_v4", 43, 64, 1, 4096, 512, {"sliding_window": 128}),
    ("diffusion_gemma_text", 30, 8, 4, 2304, 256, {"sliding_window": 512}),
    ("dots1", 62, 32, 32, 4608, None, {"sliding_window": 4096, "max_window_layers": 62}),
    ("exaone4 exaone_moe", 32, 32, 32, 4096, None, {"sliding_window": 4096, "sliding_window_pattern": 4}),
    ("falcon", 32, 71, None, 4544, None, {"multi_query": True, "new_decoder_architecture": False}),
    ("gemma2 gemma3_text vaultgemma", 26, 8, 4, 2304, 256, {"sliding_window": 4096}),
    ("gemma3n_text", 35, 8, 2, 2048, 256, {"sliding_window": 512, "num_kv_shared_layers": 15}),
    ("gemma4_text", 30, 8, 4, 2304, 256, {"sliding_window": 512, "attention_k_eq_v": False}),
    ("gemma4_unified_text", 30, 8, 4, 2304, 256, {"sliding_window": 1024, "attention_k_eq_v": False}),
    ("gpt_oss", 36, 64, 8, 2880, 64, {"sliding_window": 128}),
    ("granite_swa", 24, 20, 4, 2560, None, {"sliding_window": 128}),
    ("granitemoe_swa", 32, 32, None, 4096, None, {"sliding_window": 128}),
    ("laguna", 40, 48, 8, 2048, 128, {"sliding_window": 512}),
    ("llama4_text", 48, 40, 8, 5120, 128, {"attention_chunk_size": 8192, "no_rope_layer_interval": 4}),
    ("mellum", 28, 32, 4, 2304, 128, {"sliding_window": 1024}),
    ("mimo_v2_flash", 48, 64, 4, 4096, 192, {"sliding_window": 128, "v_head_dim": 128}),
    ("ministral mistral voxtral_realtime_text", 32, 32, 8, 4096, None, {"sliding_window": 4096}),
    ("muse_glimmer_text", 52, 32, 2, 6656, 128, {"sliding_window": 2048}),
    ("olmo3", 32, 32, None, 4096, None, {"sliding_window": 4096}),
    ("qwen2", 32, 32, 32, 4096, None, {"sliding_window": 4096, "max_window_layers": 28, "use_sliding_window": False}),
    ("qwen2_5_omni_text", 28, 28, 4, 3584, None,
     {"sliding_window": 32768, "max_window_layers": 28, "use_sliding_window": False}),
    ("qwen2_5_vl_text", 80, 64, 8, 8192, None,
     {"sliding_window": 4096, "max_window_layers": 80, "use_sliding_window": False}),
    ("qwen2_vl_text", 80, 64, 8, 8192, None,
     {"sliding_window": 4096, "max_window_layers": 80, "use_sliding_window": False}),
    ("qwen2_moe", 24, 16, 16, 2048, None,
     {"sliding_window": 4096, "max_window_layers": 28, "use_sliding_window": False}),
    ("qwen3", 32, 32, 32, 4096, 128, {"sliding_window": 4096, "max_window_layers": 28, "use_sliding_window": False}),
    ("qwen3_moe", 24, 32, 4, 2048, None, {"sliding_window": 4096, "use_sliding_window": False}),
    ("smollm3", 36, 16, 4, 2048, None, {"no_rope_layer_interval": 4, "use_sliding_window": False}),
)

# Decoder layers, decoder heads, width.
_BART_LIKE: Final = (
    ("bart fsmt led m2m_100 marian mbart mvp nllb-moe pegasus", 12, 16, 1024),
    ("bigbird_pegasus pegasus_x", 16, 16, 1024),
    ("blenderbot", 24, 32, 2560),
    ("blenderbot-small", 8, 16, 512),
    ("plbart", 6, 12, 768),
    ("speech_to_text", 6, 4, 256),
)

# Layers, heads, width, head size.
_T5_LIKE: Final = (
    ("longt5 pop2piano t5", 6, 8, 512, 64),
    ("mt5 umt5", 8, 6, 512, 64),
    ("switch_transformers", 12, 12, 768, 64),
)

_OWN_NAMES: Final[Mapping[str, Mapping[str, object]]] = {
    "bloom": {"hidden_size": 64, "n_layer": 2, "n_head": 8},
    "codegen": {"n_layer": 28, "n_head": 16, "n_embd": 4096},
    "dbrx": {"n_layers": 24, "n_heads": 16, "d_model": 2048, "attn_config": {"kv_n_heads": 1}},
    "gpt2": {"n_layer": 12, "n_head": 12, "n_embd": 768},
    "gpt_bigcode": {"n_layer": 12, "n_head": 12, "n_embd": 768, "multi_query": True},
    "gpt_neo": {"hidden_size": 2048, "num_layers": 24, "num_heads": 16, "window_size": 256},
    "gptj": {"n_layer": 28, "n_head": 16, "n_embd": 4096},
    "jetmoe": {"num_hidden_layers": 12, "num_key_value_heads": 16, "hidden_size": 2048, "kv_channels": 128},
    "longcat_flash": {"num_attention_heads": 64, "hidden_size": 6144, "head_dim": 64, "num_layers": 28},
    "mpt": {"n_layers": 24, "n_heads": 16, "d_model": 2048},
    "nemotron_h": {"num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096, "head_dim": 128},
    "whisper": {
        "decoder_layers": 4, "decoder_attention_heads": 6, "d_model": 384, "max_source_positions": 1500,
        "is_encoder_decoder": True,
    },
    "xglm": {"num_layers": 24, "d_model": 1024, "attention_heads": 16},
}

# The language model inside a multimodal type, where its object says no type of its own.
_TEXT_TYPES: Final = (
    ("aria_text", "aria"),
    ("bart", "florence2"),
    ("cohere2", "aya_vision cohere2_vision"),
    ("cohere_compass_text", "cohere_compass"),
    ("cosmos3_edge_text", "cosmos3_edge"),
    ("deepseek_ocr2_text", "deepseek_ocr2"),
    ("deepseek_v3", "kimi_k25"),
    ("diffusion_gemma_text", "diffusion_gemma"),
    ("emu3_text_model", "emu3"),
    ("ernie4_5_vl_moe_text", "ernie4_5_vl_moe"),
    ("exaone4", "exaone4_5"),
    ("gemma", "colpali paligemma"),
    ("gemma3_text", "gemma3 shieldgemma2"),
    ("gemma3n_text", "gemma3n"),
    ("gemma4_text", "gemma4"),
    ("gemma4_unified_text", "gemma4_unified"),
    ("glm4v_moe_text", "glm4v_moe"),
    ("glm4v_text", "glm46v glm4v glmga"),
    ("glm_image_text", "glm_image"),
    ("glm_ocr_text", "glm_ocr"),
    ("granite", "granite_speech granite_speech_plus"),
    ("hunyuan_vl_text", "hunyuan_vl"),
    ("hyperclovax", "hyperclovax_vision_v2"),
    ("lfm2", "lfm2_vl"),
    ("llama", "deepseek_vl deepseek_vl_hybrid glmasr granite4_vision idefics3 janus llava llava_next"),
    ("llama", "llava_next_video perception_lm smolvlm video_llava vipllava voxtral"),
    ("llama4_text", "llama4"),
    ("minimax_m3_vl_text", "minimax_m3_vl"),
    ("mistral", "idefics2 mistral3"),
    ("mllama_text_model", "mllama"),
    ("muse_glimmer_text", "muse_glimmer"),
    ("nemotron_h", "nemotron_h_omni"),
    ("opt", "blip-2 instructblip instructblipvideo"),
    ("paddleocr_vl_text", "paddleocr_vl"),
    ("persimmon", "fuyu"),
    ("qwen2", "audioflamingo3 fast_vlm got_ocr2 internvl llava_onevision musicflamingo ovis2 pp_chart2table"),
    ("qwen2", "qwen2_audio vibevoice vibevoice_asr video_llama_3"),
    ("qwen2_5_omni_text", "qwen2_5_omni qwen2_5_omni_thinker"),
    ("qwen2_5_vl_text", "qwen2_5_vl"),
    ("qwen2_vl_text", "colqwen2 qwen2_vl"),
    ("qwen3", "fun_asr_nano lighton_ocr qianfan_ocr qwen3_asr"),
    ("qwen3_5_moe_text", "qwen3_5_moe"),
    ("qwen3_5_text", "minicpmv4_6 minicpmv4_7 qwen3_5"),
    ("qwen3_omni_moe_text", "qwen3_omni_moe qwen3_omni_moe_thinker"),
    ("qwen3_vl_moe_text", "qwen3_vl_moe"),
    ("qwen3_vl_text", "cosmos3_omni qwen3_vl"),
    ("step3p5", "step3p7"),
    ("voxtral_realtime_text", "voxtral_realtime"),
)
# fmt: on


def _row_defaults(row: tuple[Any, ...]) -> Mapping[str, object]:
    sizes = {name: size for name, size in zip(_NAMES, row[1:6], strict=True) if size is not None}
    return {**sizes, **(row[6] if len(row) > 6 else {})}


def _bart_defaults(layers: int, heads: int, width: int) -> Mapping[str, object]:
    sizes = {"decoder_layers": layers, "decoder_attention_heads": heads, "d_model": width}
    return {**sizes, "is_encoder_decoder": True}


def _t5_defaults(layers: int, heads: int, width: int, head_size: int) -> Mapping[str, object]:
    sizes = {"num_layers": layers, "num_heads": heads, "d_model": width, "d_kv": head_size}
    return {**sizes, "is_encoder_decoder": True}


CLASS_DEFAULTS: Final[Mapping[str, Mapping[str, object]]] = {
    **{name: _row_defaults(row) for row in _ROWS for name in row[0].split()},
    **{name: _bart_defaults(*sizes) for names, *sizes in _BART_LIKE for name in names.split()},
    **{name: _t5_defaults(*sizes) for names, *sizes in _T5_LIKE for name in names.split()},
    **_OWN_NAMES,
}
TEXT_TYPES: Final[Mapping[str, str]] = {outer: text for text, outers in _TEXT_TYPES for outer in outers.split()}


def text_type(model_type: object) -> str:
    """The type of the language model in a file of `model_type`, which is `model_type` where it is one itself."""
    return TEXT_TYPES.get(model_type, model_type) if isinstance(model_type, str) else ""


def class_defaults(model_type: object) -> Mapping[str, object]:
    """Fields and values the class of `model_type` fills in; empty for a type that is not known."""
    return CLASS_DEFAULTS.get(text_type(model_type), {})
