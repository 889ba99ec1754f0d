import pytest

from kvguard.simulator.config import SimConfig, vllm_sim


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"block_size": 0}, "block_size"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens"),
        ({"max_num_queued_reqs": 0}, "max_num_queued_reqs"),
        ({"max_model_len": 1}, "max_model_len"),
        ({"step_base_seconds": -0.1}, "negative"),
        ({"block_size": 4, "num_gpu_blocks": 5, "max_model_len": 18}, "needs 5 blocks"),
    ],
)
def test_an_engine_that_cannot_run_is_refused(settings, message):
    """A setting no engine could start with raises at construction and is named."""
    with pytest.raises(ValueError, match=message):
        SimConfig(**settings)


def test_the_smallest_pool_for_the_context_is_accepted():
    """The last token of a full context needs no KV, so 17 tokens fit four usable blocks of four."""
    assert SimConfig(block_size=4, num_gpu_blocks=5, max_model_len=17).max_model_len == 17


@pytest.mark.parametrize(
    ("text", "shared"), [("true", True), ("True", True), ("1", True), ("false", False), ("0", False)]
)
def test_an_address_says_whether_prefixes_are_shared(text, shared):
    """Both ways to write a truth value are read."""
    assert vllm_sim(f"sim://?enable_prefix_caching={text}").enable_prefix_caching is shared


@pytest.mark.parametrize("text", ["", "yes", "2"])
def test_what_is_no_truth_value_is_refused(text):
    """The setting at fault is named."""
    with pytest.raises(ValueError, match="enable_prefix_caching must be a bool"):
        vllm_sim(f"sim://?enable_prefix_caching={text}")
