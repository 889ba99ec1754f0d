"""vLLM's block layout against vLLM's own cache manager, as measured, and the settings that change it."""

from dataclasses import replace

import pytest

from kvguard.admission.blocks import BlockGroup, BlockRule
from kvguard.engines.vllm_blocks import EngineSettings, UnsupportedLayout, vllm_layout
from kvguard.modelspec.config import kv_cache_spec
from kvguard.modelspec.formats import SIXTEEN_BIT
from kvguard.modelspec.spec import (
    AttentionSpec,
    CompressedSpec,
    CrossAttentionSpec,
    KVCacheSpec,
    LatentSpec,
    LayerSpec,
    StateSpec,
)
from tests.oracle import block_runs, models

RUNS = block_runs()
POINTS = [(run, int(length), held) for run in RUNS for length, held in run["held_blocks"].items()]

FULL = AttentionSpec(num_kv_heads=2, head_size=64, format=SIXTEEN_BIT)  # 512 bytes a token
SLIDING = AttentionSpec(num_kv_heads=2, head_size=64, format=SIXTEEN_BIT, sliding_window=64)
CHUNKED = AttentionSpec(num_kv_heads=2, head_size=64, format=SIXTEEN_BIT, attention_chunk_size=64)
STATE = StateSpec(conv_elements=0, recurrent_elements=10_000, conv_element_bytes=2, recurrent_element_bytes=2)


def spec(*layers: LayerSpec) -> KVCacheSpec:
    return KVCacheSpec(layers=tuple((layer,) for layer in layers))


def measured_rule(run: dict) -> BlockRule:
    """The rule of a measured model, as the measurement was set up."""
    settings = EngineSettings(max_num_batched_tokens=run["max_num_batched_tokens"], enable_prefix_caching=False)
    return vllm_layout(kv_cache_spec(models()[run["name"]]["config"]), settings).rule


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run['name']}-{run['max_num_batched_tokens']}")
def test_groups_and_block_bytes_are_vllms(run: dict) -> None:
    """Every group has vLLM's block size, and a block costs what vLLM allocates for it."""
    layout = vllm_layout(kv_cache_spec(models()[run["name"]]["config"]))
    assert layout.block_bytes == run["bytes_per_block"]
    kinds = [group["spec"] for group in run["groups"]]
    assert layout.rule.state_blocks == kinds.count("MambaSpec")
    sizes = sorted(group["block_size"] for group in run["groups"] if group["spec"] != "MambaSpec")
    assert sorted(group.block_size for group in layout.rule.groups for _ in range(group.count)) == sizes


@pytest.mark.parametrize(
    ("run", "length", "held"), POINTS, ids=[f"{r['name']}-{r['max_num_batched_tokens']}-{n}" for r, n, _ in POINTS]
)
def test_blocks_are_those_vllm_held(run: dict, length: int, held: dict[str, int]) -> None:
    """The peak of the prefill, its last step and the third decode step afterwards, to the block."""
    rule, step = measured_rule(run), run["max_num_batched_tokens"]
    done = (length - 1) // step * step
    assert rule.prefill_blocks(length) == held["peak_during_prefill"]
    assert rule.held_blocks(done, length - done) == held["end_of_prefill"]
    assert rule.settled_blocks(length + 3) == held["third_decode_step"]


@pytest.mark.parametrize(
    ("layers", "counts", "block_bytes"),
    [
        # 4 full + 5 sliding: the larger bucket is less than half as large again, so it sets the width.
        ([FULL] * 4 + [SLIDING] * 5, [1, 1], 5 * 16 * 512),
        ([FULL] * 4 + [SLIDING] * 6, [1, 2], 4 * 16 * 512),
        ([FULL] * 2 + [SLIDING] * 7, [1, 4], 2 * 16 * 512),
        ([FULL] * 3, [1], 3 * 16 * 512),
        ([SLIDING] * 3, [1], 3 * 16 * 512),
        ([], [], 0),
    ],
)
def test_buckets_make_groups(layers: list[LayerSpec], counts: list[int], block_bytes: int) -> None:
    """Groups are as wide as the smallest bucket, or the largest if that wastes little."""
    layout = vllm_layout(spec(*layers) if layers else KVCacheSpec(layers=((),)))
    assert [group.count for group in layout.rule.groups] == counts
    assert layout.block_bytes == block_bytes


def test_a_smaller_geometry_gets_larger_blocks() -> None:
    """Half the bytes a token make blocks of twice the tokens; what does not divide is padded to the same page."""
    half = AttentionSpec(num_kv_heads=1, head_size=64, format=SIXTEEN_BIT, sliding_window=64)
    odd = AttentionSpec(num_kv_heads=1, head_size=48, format=SIXTEEN_BIT, sliding_window=64)
    assert [g.block_size for g in vllm_layout(spec(FULL, half)).rule.groups] == [16, 32]
    assert [g.block_size for g in vllm_layout(spec(FULL, odd)).rule.groups] == [16, 16]


def test_blocks_grow_until_a_state_fits() -> None:
    """20,000 bytes of state need 40 tokens of 512 bytes, and blocks grow by sixteens; a larger block is kept."""
    layout = vllm_layout(spec(FULL, STATE, STATE))
    assert layout.rule.groups == (BlockGroup(block_size=48),)
    assert (layout.rule.state_blocks, layout.rule.spanning_state_blocks, layout.block_bytes) == (2, 2, 48 * 512)
    assert vllm_layout(spec(FULL, STATE), EngineSettings(block_size=64)).rule.block_size == 64
    assert vllm_layout(spec(FULL, STATE), EngineSettings(enable_prefix_caching=False)).rule.spanning_state_blocks == 0


def test_blocks_grow_by_the_size_asked_for() -> None:
    """100,000 bytes of state need 196 tokens of 512 bytes: 208 by sixteens, 256 by blocks of 64."""
    large = replace(STATE, recurrent_elements=50_000)
    assert vllm_layout(spec(FULL, large)).rule.block_size == 208
    assert vllm_layout(spec(FULL, large), EngineSettings(block_size=64)).rule.block_size == 256


def test_blocks_beside_a_latent_grow_by_128() -> None:
    """Kimi-Linear: 12,288 * 3 * 2 + 32 * 128 * 128 * 4 = 2,170,880 bytes of state, 1885 latents of 1152: 15 * 128."""
    latent = LatentSpec(latent_size=512, rope_size=64, format=SIXTEEN_BIT)
    state = StateSpec(
        conv_elements=12_288 * 3,
        recurrent_elements=32 * 128 * 128,
        conv_element_bytes=2,
        recurrent_element_bytes=4,
    )
    layout = vllm_layout(spec(latent, state, state, state))
    assert (layout.rule.block_size, layout.block_bytes) == (1920, 1920 * 1152)


def test_a_model_of_states_alone_holds_one_block() -> None:
    """Without attention a sequence costs its state, whatever its length."""
    layout = vllm_layout(spec(STATE, STATE), EngineSettings(enable_prefix_caching=False))
    assert layout.rule.settled_blocks(1) == layout.rule.settled_blocks(100_000) == 1
    assert layout.block_bytes == 2 * 20_000


@pytest.mark.parametrize(
    ("layers", "rule"),
    [
        ([FULL, SLIDING], (BlockGroup(block_size=16),)),
        ([FULL, CHUNKED], (BlockGroup(block_size=16),)),
        ([SLIDING, SLIDING], (BlockGroup(block_size=16, sliding_window=64),)),
        ([FULL, SLIDING, STATE], (BlockGroup(block_size=48, count=2),)),
    ],
)
def test_without_the_hybrid_manager_mixed_models_keep_everything(
    layers: list[LayerSpec], rule: tuple[BlockGroup, ...]
) -> None:
    """Windows beside full layers are given up; a model whose layers all slide keeps its window."""
    layout = vllm_layout(spec(*layers), EngineSettings(disable_hybrid_kv_cache_manager=True))
    assert layout.rule.groups == rule


def test_several_gpus() -> None:
    """Tensor parallelism halves heads, a pipeline its layers, and context parallelism spreads a block over ranks."""
    layers = spec(*[FULL] * 5)
    assert vllm_layout(layers, EngineSettings(tensor_parallel_size=2)).block_bytes == 5 * 16 * 256
    assert vllm_layout(layers, EngineSettings(tensor_parallel_size=4)).block_bytes == 5 * 16 * 256
    assert vllm_layout(layers, EngineSettings(pipeline_parallel_size=2)).block_bytes == 3 * 16 * 512
    spread = vllm_layout(layers, EngineSettings(decode_context_parallel_size=4))
    assert (spread.rule.block_size, spread.block_bytes) == (64, 5 * 16 * 512)
    mixed = spec(*[FULL] * 4, *[SLIDING] * 8)
    assert vllm_layout(mixed, EngineSettings(pipeline_parallel_size=2)).block_bytes == 2 * 16 * 512
    assert vllm_layout(mixed, EngineSettings(decode_context_parallel_size=2)).rule.groups[0].block_size == 32


def test_look_ahead_takes_slots() -> None:
    """Speculated tokens have room in every step."""
    rule = vllm_layout(spec(FULL), EngineSettings(num_speculative_tokens=4)).rule
    assert (rule.settled_blocks(12), rule.settled_blocks(13)) == (1, 2)


def test_an_encoder_of_fixed_length_counts_once() -> None:
    """Whisper's 1500 frames are 94 blocks beside the decoder's; a length of the request's own cannot be foreseen."""
    cross = CrossAttentionSpec(num_kv_heads=2, head_size=64, format=SIXTEEN_BIT, encoder_tokens=1500)
    layout = vllm_layout(KVCacheSpec(layers=((FULL, cross),)))
    assert layout.rule.settled_blocks(17) == 2 + 94
    with pytest.raises(UnsupportedLayout, match="encoder"):
        vllm_layout(KVCacheSpec(layers=((FULL, CrossAttentionSpec(num_kv_heads=2, head_size=64, format=SIXTEEN_BIT)),)))


def test_compressed_kv_has_no_predictable_blocks() -> None:
    """What vLLM keeps in blocks of several sizes is refused, not guessed."""
    with pytest.raises(UnsupportedLayout, match="compressed"):
        vllm_layout(spec(CompressedSpec(latent_size=512, ratio=4, format=SIXTEEN_BIT)))


def test_a_latent_that_vllm_expands_costs_what_it_keeps() -> None:
    """MiniCPM3 is served with ordinary attention: 40 heads, K 96 wide and V padded to as much, 15,360 bytes a layer."""
    entry = models()["openbmb/MiniCPM3-4B"]
    measured = entry["engine_overrides"]["vllm_0.32"]
    latent = kv_cache_spec(entry["config"])
    layout = vllm_layout(latent)
    assert layout.block_bytes == 16 * measured["layers"] * measured["bytes_per_token_per_layer_bf16"]
    assert layout.rule == BlockRule.plain(16)
    assert vllm_layout(latent, EngineSettings(tensor_parallel_size=2)).block_bytes == layout.block_bytes // 2


def test_states_beside_layers_that_all_slide_do_not_make_them_full() -> None:
    """Only full attention does, when the hybrid manager is off."""
    layout = vllm_layout(spec(SLIDING, STATE), EngineSettings(disable_hybrid_kv_cache_manager=True))
    assert layout.rule.groups == (BlockGroup(block_size=48, sliding_window=64),)
