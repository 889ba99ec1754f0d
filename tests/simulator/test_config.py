import pytest

from kvguard.simulator.config import SimConfig


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
