"""Plain attention: measured and other published models, and what is refused."""

from typing import Any

import pytest

from kvguard.modelspec.config import UnsupportedConfig, kv_cache_spec
from tests.modelspec.families.measured import assert_as_measured, measured
from tests.modelspec.families.plans import Rows, assert_as_planned, flat, qwen

MEASURED = measured(
    *("gpt2", "opt-6.7b", "bloom", "gpt-j", "gpt-neox", "Llama-2", "phi-2", "OLMo-2", "mpt-7b", "Qwen1.5", "gemma-7b"),
    *("Baichuan", "Meta-Llama-3-8B", "Llama-3.1", "Llama-3.2-1B", "Mistral-7B", "Mixtral", "Qwen2-7B", "Qwen2.5"),
    *(
        "Qwen3-0.6B",
        "Qwen3-32B",
        "Qwen3-30B",
        "phi-4",
        "aya-23",
        "GLM-4.5",
        "dbrx",
        "MiniMax-M2",
        "falcon-40b",
        "Phi-3",
    ),
    *("chatglm3", "Devstral", "Qwen3-VL", "Voxtral", "falcon-7b", "santacoder", "gemma-2b", "starcoder2"),
)
PLAIN: Rows = {
    "Qwen2.5-7B": (qwen("qwen2", 3584, 28, 28, 4), [(28, 4, 128, 0)]),
    "Qwen2.5-72B": (qwen("qwen2", 8192, 80, 64, 8), [(80, 8, 128, 0)]),
    "Qwen1.5-MoE": (qwen("qwen2_moe", 2048, 24, 16, 16), [(24, 16, 128, 0)]),
    "Qwen3-8B": (qwen("qwen3", 4096, 36, 32, 8, head_dim=128, sliding_window=None), [(36, 8, 128, 0)]),
    "Qwen3-235B-A22B": (qwen("qwen3_moe", 4096, 94, 64, 4, head_dim=128), [(94, 4, 128, 0)]),
    "Qwen-7B": (
        {
            "model_type": "qwen",
            "hidden_size": 4096,
            "kv_channels": 128,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
        },
        [(32, 32, 128, 0)],
    ),
    "Llama-3.2-3B": (flat("llama", 3072, 28, 24, 8, head_dim=128), [(28, 8, 128, 0)]),
    "Llama-3.1-405B": (flat("llama", 16384, 126, 128, 8), [(126, 8, 128, 0)]),
    "Mistral-Nemo": (flat("mistral", 5120, 40, 32, 8, head_dim=128, sliding_window=None), [(40, 8, 128, 0)]),
    "Mistral-Large-2407": (flat("mistral", 12288, 88, 96, 8, head_dim=128, sliding_window=None), [(88, 8, 128, 0)]),
    "Ministral-8B": (flat("mistral", 4096, 36, 32, 8, head_dim=128, sliding_window=32768), [(36, 8, 128, 32768)]),
    "Zephyr-7B": (flat("mistral", 4096, 32, 32, 8, sliding_window=4096), [(32, 8, 128, 4096)]),
    "a Mistral file without the field": (flat("mistral", 4096, 32, 32, 8), [(32, 8, 128, 4096)]),
    "Mixtral with a window": (flat("mixtral", 4096, 32, 32, 8, sliding_window=4096), [(32, 8, 128, 4096)]),
    "Phi-4-mini": (flat("phi3", 3072, 32, 24, 8, sliding_window=262144), [(32, 8, 128, 262144)]),
    "Phi-3-medium-4k": (flat("phi3", 5120, 40, 40, 10, sliding_window=2047), [(40, 10, 128, 2047)]),
    "Phi-3.5-vision": (flat("phi3_v", 3072, 32, 32, 32, sliding_window=262144), [(32, 32, 96, 262144)]),
    "Phi-3.5-MoE": (flat("phimoe", 4096, 32, 32, 8, sliding_window=131072), [(32, 8, 128, 131072)]),
    "Phi-4-multimodal": (
        flat("phi4mm", 3072, 32, 24, 8, sliding_window=262144, audio_processor={"config": {"chunk_size": -1}}),
        [(32, 8, 128, 262144)],
    ),
    "Granite-3.1-8B": (flat("granite", 4096, 40, 32, 8), [(40, 8, 128, 0)]),
    "Granite-3.1-3B-A800M": (flat("granitemoe", 1536, 32, 24, 8), [(32, 8, 64, 0)]),
    "Command-R": (flat("cohere", 8192, 40, 64, 64), [(40, 64, 128, 0)]),
    "Command-R+": (flat("cohere", 12288, 64, 96, 8), [(64, 8, 128, 0)]),
    "InternLM2-20B": (flat("internlm2", 6144, 48, 48, 8), [(48, 8, 128, 0)]),
    "InternLM3-8B": (flat("internlm3", 4096, 48, 32, 2, head_dim=128), [(48, 2, 128, 0)]),
    "Yi-34B": (flat("llama", 7168, 60, 56, 8), [(60, 8, 128, 0)]),
    "Baichuan2-13B": (
        {"model_type": "baichuan", "hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 40},
        [(40, 40, 128, 0)],
    ),
    "StableLM-2-12B": (flat("stablelm", 5120, 40, 32, 8), [(40, 8, 160, 0)]),
    "StableLM-3B by its class": ({"model_type": "stablelm", "hidden_size": 2560}, [(32, 32, 80, 0)]),
    "OLMoE": (flat("olmoe", 2048, 16, 16, 16), [(16, 16, 128, 0)]),
    "MPT-30B": (
        {
            "model_type": "mpt",
            "d_model": 7168,
            "n_heads": 64,
            "n_layers": 48,
            "attn_config": {"attn_type": "multihead_attention", "alibi": True, "sliding_window_size": -1},
        },
        [(48, 64, 112, 0)],
    ),
    "StarCoder": ({"model_type": "gpt_bigcode", "n_embd": 6144, "n_head": 48, "n_layer": 40}, [(40, 1, 128, 0)]),
    "StarCoder2-15B": (flat("starcoder2", 6144, 40, 48, 4, sliding_window=4096), [(40, 4, 128, 4096)]),
    "Falcon3-10B": (flat("llama", 3072, 40, 12, 4, head_dim=256), [(40, 4, 256, 0)]),
    "Falcon-11B": (
        {
            "model_type": "falcon",
            "hidden_size": 4096,
            "num_hidden_layers": 60,
            "num_attention_heads": 32,
            "num_kv_heads": 8,
            "new_decoder_architecture": True,
            "multi_query": True,
        },
        [(60, 8, 128, 0)],
    ),
    "Falcon-7B by its class": ({"model_type": "falcon"}, [(32, 1, 64, 0)]),
    "SmolLM3-3B": (
        flat(
            "smollm3",
            2048,
            36,
            16,
            4,
            no_rope_layers=[1, 1, 1, 0] * 9,
            no_rope_layer_interval=4,
            use_sliding_window=False,
            sliding_window=None,
        ),
        [(36, 4, 128, 0)],
    ),
    "Hunyuan-7B": (
        flat(
            "hunyuan_v1_dense", 4096, 32, 32, 8, head_dim=128, attention_head_dim=128, use_cla=False, cla_share_factor=2
        ),
        [(32, 8, 128, 0)],
    ),
    "ERNIE-4.5-0.3B": (flat("ernie4_5", 1024, 18, 16, 2, head_dim=128), [(18, 2, 128, 0)]),
    "ERNIE-4.5-21B-A3B": (flat("ernie4_5_moe", 2560, 28, 20, 4), [(28, 4, 128, 0)]),
    "GLM-4-9B-0414": (flat("glm4", 4096, 40, 32, 2, head_dim=128), [(40, 2, 128, 0)]),
    "GLM-4-9B by its class": ({"model_type": "glm"}, [(40, 2, 128, 0)]),
    "ChatGLM-4-9B": (
        {
            "model_type": "chatglm",
            "hidden_size": 4096,
            "kv_channels": 128,
            "multi_query_attention": True,
            "multi_query_group_num": 2,
            "num_attention_heads": 32,
            "num_layers": 40,
            "seq_length": 131072,
        },
        [(40, 2, 128, 0)],
    ),
    "Jais-13B": ({"model_type": "jais", "n_embd": 5120, "n_head": 40, "n_layer": 40}, [(40, 40, 128, 0)]),
    "Persimmon-8B": (
        {"model_type": "persimmon", "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 64},
        [(36, 64, 64, 0)],
    ),
    "Nemotron-4-340B": (flat("nemotron", 18432, 96, 96, 8), [(96, 8, 192, 0)]),
    "Minitron-4B": (flat("nemotron", 3072, 32, 24, 8, head_dim=128), [(32, 8, 128, 0)]),
    "Solar-Pro": (flat("solar", 5120, 64, 40, 10, sliding_window=2047), [(64, 10, 128, 2047)]),
    "Arctic": (flat("arctic", 7168, 35, 56, 8, sliding_window=None), [(35, 8, 128, 0)]),
    "Grok-1": (flat("grok-1", 6144, 64, 48, 8), [(64, 8, 128, 0)]),
    "Seed-OSS-36B": (flat("seed_oss", 5120, 64, 80, 8, head_dim=128), [(64, 8, 128, 0)]),
    "MiniCPM4.1-8B": (flat("minicpm", 4096, 32, 32, 2, sparse_config={"window_size": 2048}), [(32, 2, 128, 0)]),
    "MiniCPM-2B": (flat("minicpm", 2304, 40, 36, 36), [(40, 36, 64, 0)]),
    "Apertus-70B": (flat("apertus", 8192, 80, 64, 8), [(80, 8, 128, 0)]),
    "dots.llm1": (flat("dots1", 4096, 62, 32, 32, head_dim=128, max_window_layers=62), [(62, 32, 128, 0)]),
    "EXAONE-3.5-32B": (
        {
            "model_type": "exaone",
            "hidden_size": 5120,
            "num_layers": 64,
            "num_attention_heads": 40,
            "num_key_value_heads": 8,
            "head_dim": 128,
        },
        [(64, 8, 128, 0)],
    ),
    "JetMoE": ({"model_type": "jetmoe", "num_hidden_layers": 24}, [(24, 16, 128, 0)]),
    "XGLM by its class": ({"model_type": "xglm"}, [(24, 16, 64, 0)]),
    "DBRX by its class": ({"model_type": "dbrx", "attn_config": {"clip_qkv": 8}}, [(24, 1, 128, 0)]),
}

NESTED: Rows = {
    "Mistral-Small-3.1": (
        {
            "model_type": "mistral3",
            "text_config": flat("mistral", 5120, 40, 32, 8, head_dim=128, sliding_window=None),
            "vision_config": {"num_hidden_layers": 24, "head_dim": 64},
        },
        [(40, 8, 128, 0)],
    ),
    "Pixtral-12B": (
        {
            "model_type": "llava",
            "text_config": {
                "model_type": "mistral",
                "hidden_size": 5120,
                "head_dim": 128,
                "num_hidden_layers": 40,
                "num_key_value_heads": 8,
                "sliding_window": None,
            },
        },
        [(40, 8, 128, 0)],
    ),
    "LLaVA-1.5-7B": ({"model_type": "llava", "text_config": {"model_type": "llama"}}, [(32, 32, 128, 0)]),
    "LLaVA-1.5 without a type inside": (
        {"model_type": "llava", "text_config": {"vocab_size": 32064}},
        [(32, 32, 128, 0)],
    ),
    "LLaVA as it was first published": (flat("llava", 5120, 40, 40, 40, mm_hidden_size=1024), [(40, 40, 128, 0)]),
    "LLaVA-1.6-Mistral": (
        {
            "model_type": "llava_next",
            "text_config": {"model_type": "mistral", "num_key_value_heads": 8, "sliding_window": None},
        },
        [(32, 8, 128, 0)],
    ),
    "LLaVA-OneVision": (
        {"model_type": "llava_onevision", "text_config": qwen("qwen2", 3584, 28, 28, 4)},
        [(28, 4, 128, 0)],
    ),
    "InternVL2-8B": (
        {
            "model_type": "internvl_chat",
            "llm_config": flat("internlm2", 4096, 32, 32, 8, chunk_size_feed_forward=0, is_encoder_decoder=False),
        },
        [(32, 8, 128, 0)],
    ),
    "PaliGemma-3B": (
        {
            "model_type": "paligemma",
            "text_config": {
                "model_type": "gemma",
                "hidden_size": 2048,
                "num_hidden_layers": 18,
                "num_attention_heads": 8,
                "num_key_value_heads": 1,
            },
        },
        [(18, 1, 256, 0)],
    ),
    "Qwen2-VL-7B": (qwen("qwen2_vl", 3584, 28, 28, 4, vision_config={"depth": 32}), [(28, 4, 128, 0)]),
    "Qwen3-VL-8B": (
        {"model_type": "qwen3_vl", "text_config": flat("qwen3_vl_text", 4096, 36, 32, 8, head_dim=128)},
        [(36, 8, 128, 0)],
    ),
    "Qwen2.5-Omni": (
        {
            "model_type": "qwen2_5_omni",
            "thinker_config": {
                "model_type": "qwen2_5_omni_thinker",
                "text_config": qwen("qwen2_5_omni_text", 3584, 28, 28, 4),
            },
            "talker_config": {"num_hidden_layers": 24},
        },
        [(28, 4, 128, 0)],
    ),
    "Qwen3-Omni": (
        {"thinker_config": {"text_config": flat("qwen3_omni_moe_text", 2048, 48, 32, 4, head_dim=128)}},
        [(48, 4, 128, 0)],
    ),
    "MiniCPM-o-2.6": (qwen("minicpmo", 3584, 28, 28, 4, audio_chunk_length=1.0, chunk_input=True), [(28, 4, 128, 0)]),
    "Kimi-Audio-7B": (flat("kimi_audio", 3584, 28, 28, 4, kimia_mimo_layers=6), [(28, 4, 128, 0)]),
    "Molmo-7B-D": (flat("molmo", 3584, 28, 28, 4, attention_layer_norm=False), [(28, 4, 128, 0)]),
    "Step3": (
        {
            "model_type": "step3_vl",
            "text_config": {
                "model_type": "step3_text",
                "hidden_size": 7168,
                "head_dim": 256,
                "num_attention_heads": 64,
                "num_attention_groups": 1,
                "num_hidden_layers": 61,
                "share_q_dim": 2048,
            },
        },
        [(61, 1, 256, 0)],
    ),
}

MODELS = {**PLAIN, **NESTED}


@pytest.mark.parametrize("entry", MEASURED, ids=lambda entry: entry["name"])
def test_measured(entry: dict[str, Any]) -> None:
    """Every measured model keeps what was measured."""
    assert_as_measured(entry, "plain attention")


@pytest.mark.parametrize("name", MODELS)
def test_published(name: str) -> None:
    """A published model keeps what its layers say."""
    assert_as_planned(*MODELS[name], "plain attention")


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (flat("new", 1024, 4, 8, 2, sliding_window=4096), "sliding_window"),
        (flat("llama", 1024, 4, 8, 2, sliding_window=4096), "sliding_window"),
        (flat("new", 1024, 4, 8, 2, layer_types=["gated_attention"] * 4), "layer_types"),
        (flat("phi3small", 4096, 32, 32, 8), "model_type"),
        (flat("phi3small", 4096, 32, 32, 8, blocksparse_block_size=64), "blocksparse_block_size"),
        (flat("ouro", 2048, 24, 16, 16, total_ut_steps=4), "total_ut_steps"),
        # its encoder keeps tokens of the audio in the same cache
        (
            {"model_type": "voxtral_realtime", "text_config": {"model_type": "voxtral_realtime_text"}},
            "text_config.model_type",
        ),
        (flat("xlm-roberta", 1024, 24, 16, 16), "model_type"),
        (flat("gemma9", 1024, 24, 16, 16), "model_type"),
    ],
)
def test_what_is_not_plain_is_refused(config: dict[str, Any], field: str) -> None:
    """The error names the field that says so."""
    with pytest.raises(UnsupportedConfig) as caught:
        kv_cache_spec(config)
    assert caught.value.field == field
