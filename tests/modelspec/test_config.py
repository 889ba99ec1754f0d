"""Published configs to bytes. The numbers were measured on transformers and vLLM, not by the code under test."""

from typing import Any

import pytest

from kvguard.modelspec.config import UnsupportedConfig, kv_cache_spec

LLAMA_3_8B: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
}


def qwen(model_type: str, hidden: int, layers: int, heads: int, kv_heads: int, **more: object) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        **more,
    }


# name: config, bytes of one sequence of 1024 tokens and of 32768 tokens in 16 bit
MODELS: dict[str, tuple[dict[str, Any], int, int]] = {
    "gpt2": (
        {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024},
        37748736,
        1207959552,
    ),
    "bloom-7b1": ({"model_type": "bloom", "n_layer": 30, "n_head": 32, "hidden_size": 4096}, 503316480, 16106127360),
    "mpt-7b": ({"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32}, 536870912, 17179869184),
    "gemma-7b": (qwen("gemma", 3072, 28, 16, 16, head_dim=256), 469762048, 15032385536),
    "llama-3-8b": (LLAMA_3_8B, 134217728, 4294967296),
    "qwen1.5-1.8b": (
        qwen("qwen2", 2048, 24, 16, 16, max_window_layers=21, sliding_window=32768, use_sliding_window=False),
        201326592,
        6442450944,
    ),
    "qwen3-0.6b": (
        qwen("qwen3", 1024, 28, 16, 8, head_dim=128, sliding_window=None, use_sliding_window=False),
        117440512,
        3758096384,
    ),
    "glm-4.5": (qwen("glm4_moe", 5120, 92, 96, 8, head_dim=128, num_nextn_predict_layers=1), 385875968, 12348030976),
    "dbrx": (
        {"model_type": "dbrx", "d_model": 6144, "n_layers": 40, "n_heads": 48, "attn_config": {"kv_n_heads": 8}},
        167772160,
        5368709120,
    ),
    "chatglm3-6b": (
        {
            "model_type": "chatglm",
            "hidden_size": 4096,
            "kv_channels": 128,
            "multi_query_attention": True,
            "multi_query_group_num": 2,
            "num_attention_heads": 32,
            "num_layers": 28,
        },
        29360128,
        939524096,
    ),
    "falcon-40b": (
        {
            "model_type": "falcon",
            "hidden_size": 8192,
            "num_hidden_layers": 60,
            "num_attention_heads": 128,
            "num_kv_heads": 8,
            "new_decoder_architecture": True,
            "multi_query": True,
        },
        125829120,
        4026531840,
    ),
    "falcon-7b": (
        {
            "model_type": "falcon",
            "hidden_size": 4544,
            "num_hidden_layers": 32,
            "num_attention_heads": 71,
            "num_kv_heads": 71,
            "new_decoder_architecture": False,
            "multi_query": True,
        },
        8388608,
        268435456,
    ),
    "santacoder": (
        {"model_type": "gpt_bigcode", "multi_query": True, "n_embd": 2048, "n_head": 16, "n_layer": 24},
        12582912,
        402653184,
    ),
    "voxtral-mini-3b": (
        {
            "model_type": "voxtral",
            "hidden_size": 3072,
            "audio_config": {
                "head_dim": 64,
                "num_attention_heads": 20,
                "num_hidden_layers": 32,
                "num_key_value_heads": 20,
            },
            "text_config": qwen("llama", 3072, 30, 32, 8, head_dim=128, sliding_window=None),
        },
        125829120,
        4026531840,
    ),
    "qwen2.5-vl-7b": (
        qwen("qwen2_5_vl", 3584, 28, 28, 4, max_window_layers=28, vision_config={"num_heads": 16, "window_size": 112}),
        58720256,
        1879048192,
    ),
    "mistral-7b-v0.1": (qwen("mistral", 4096, 32, 32, 8, head_dim=128, sliding_window=4096), 134217728, 536870912),
    "mistral-7b-v0.3": (qwen("mistral", 4096, 32, 32, 8, sliding_window=None), 134217728, 4294967296),
    "phi-3-mini-4k": (qwen("phi3", 3072, 32, 32, 32, sliding_window=2047), 402653184, 804913152),
    "phi-3.5-mini": (qwen("phi3", 3072, 32, 32, 32, sliding_window=262144), 402653184, 12884901888),
    "starcoder2-7b": (qwen("starcoder2", 4608, 32, 36, 4, sliding_window=4096), 67108864, 268435456),
}

# name: config, the field that must be named
FOREIGN: dict[str, tuple[dict[str, Any], str]] = {
    "gemma-2": (qwen("gemma2", 3584, 42, 16, 8, head_dim=256, sliding_window=4096), "model_type"),
    "gemma-3": (
        {"text_config": qwen("gemma3_text", 5376, 62, 32, 16, sliding_window=1024, sliding_window_pattern=6)},
        "text_config.sliding_window_pattern",
    ),
    "gemma-3n": (qwen("gemma3n_text", 2048, 35, 8, 2, num_kv_shared_layers=15), "num_kv_shared_layers"),
    "gemma-4": (
        {"text_config": qwen("gemma4_text", 2816, 30, 16, 8, global_head_dim=512)},
        "text_config.global_head_dim",
    ),
    "llama-4": (
        {"text_config": qwen("x", 5120, 48, 40, 8, attention_chunk_size=8192)},
        "text_config.attention_chunk_size",
    ),
    "olmo-3": (qwen("olmo3", 4096, 32, 32, 32, sliding_window=4096), "model_type"),
    "mimo-v2": (qwen("x", 4096, 48, 64, 4, hybrid_layer_pattern=[0, 1, 1]), "hybrid_layer_pattern"),
    "deepseek-v3": (qwen("deepseek_v3", 7168, 61, 128, 128, kv_lora_rank=512), "kv_lora_rank"),
    "deepseek-v3 by defaults": (qwen("deepseek_v3", 7168, 61, 128, 128), "model_type"),
    "glm-5": (qwen("glm_moe_dsa", 6144, 78, 64, 64, index_topk=2048), "index_topk"),
    "deepseek-v4": (qwen("x", 4096, 43, 64, 1, compress_ratios=[0, 4]), "compress_ratios"),
    "jamba": (qwen("jamba", 4096, 32, 32, 8, attn_layer_period=8), "attn_layer_period"),
    "falcon-h1": (qwen("x", 1024, 36, 8, 2, attn_layer_indices=None, mamba_d_conv=4), "mamba_d_conv"),
    "qwen3-next": (qwen("qwen3_next", 2048, 48, 16, 2, full_attention_interval=4), "full_attention_interval"),
    "kimi": (qwen("x", 7168, 93, 96, 96, linear_attn_config={"num_heads": 96}), "linear_attn_config"),
    "codestral-mamba": ({"model_type": "mamba2", "state_size": 128, "num_hidden_layers": 64}, "state_size"),
    "nemotron-nas": (qwen("x", 8192, 80, 64, 8, block_configs=[{"attention": {}}]), "block_configs"),
    "hunyuan-large": (qwen("hunyuan", 6400, 64, 80, 8, use_cla=True, cla_share_factor=2), "use_cla"),
    "whisper": ({"model_type": "whisper", "is_encoder_decoder": True}, "is_encoder_decoder"),
    "mllama": (
        {"text_config": qwen("x", 8192, 100, 64, 8, cross_attention_layers=[3, 8])},
        "text_config.cross_attention_layers",
    ),
    "roberta": (qwen("xlm-roberta", 1024, 24, 16, 16), "model_type"),
    "mpt with a window": (
        {"model_type": "mpt", "attn_config": {"sliding_window_size": 4096}, "d_model": 64, "n_heads": 1, "n_layers": 1},
        "attn_config.sliding_window_size",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_published_models_cost_what_was_measured(name: str) -> None:
    """The bytes of a short and of a long sequence equal the measured ones."""
    config, short, long = MODELS[name]
    spec = kv_cache_spec(config)
    assert (spec.bytes_for(1024), spec.bytes_for(32768)) == (short, long)


@pytest.mark.parametrize("name", FOREIGN)
def test_other_kinds_of_attention_are_refused_by_field(name: str) -> None:
    """A config with anything that is not plain attention is an error that names the field, never a number."""
    config, field = FOREIGN[name]
    with pytest.raises(UnsupportedConfig) as caught:
        kv_cache_spec(config)
    assert caught.value.field == field


def test_fields_switched_off_do_not_matter() -> None:
    """Null, false, zero, -1 and empty values of foreign fields, and leftovers of a template, change nothing."""
    leftovers = {
        "num_kv_shared_layers": 0,
        "attn_layer_indices": None,
        "add_cross_attention": False,
        "is_encoder_decoder": False,
        "chunk_size_feed_forward": 0,
        "sliding_window_size": -1,
        "block_configs": [],
        "per_layer_config": {},
        "cla_share_factor": 2,
        "num_mtp_modules": 3,
        "text_config": {},
    }
    assert kv_cache_spec({**LLAMA_3_8B, **leftovers}) == kv_cache_spec(LLAMA_3_8B)


@pytest.mark.parametrize("name", ["text_config", "llm_config", "language_config"])
def test_the_language_model_may_be_nested(name: str) -> None:
    """Multimodal files keep it under one of three names, or one level deeper; top-level fields are then ignored."""
    spec = kv_cache_spec(LLAMA_3_8B)
    assert kv_cache_spec({name: LLAMA_3_8B, "num_hidden_layers": 1}) == spec
    assert kv_cache_spec({"thinker_config": {name: LLAMA_3_8B}}) == spec


def test_the_cache_dtype_scales_every_layer() -> None:
    """An 8-bit cache costs half."""
    assert kv_cache_spec(LLAMA_3_8B, kv_cache_dtype="fp8").bytes_per_token() == 65536


def test_an_empty_config_names_what_is_missing() -> None:
    """Nothing is assumed about a file that says nothing."""
    with pytest.raises(UnsupportedConfig, match=r"^num_attention_heads: missing$"):
        kv_cache_spec({})
