import pytest

from kvguard.simulator.config import tgi_sim
from kvguard.simulator.tgi_config import TgiSimConfig


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"block_size": 0}, "block_size must be at least 1"),
        ({"max_concurrent_requests": 0}, "max_concurrent_requests must be at least 1"),
        ({"max_best_of": 0}, "max_best_of must be at least 1"),
        ({"max_stop_sequences": 0}, "max_stop_sequences must be at least 1"),
        ({"max_client_batch_size": 0}, "max_client_batch_size must be at least 1"),
        ({"step_base_seconds": -0.1}, "negative"),
        ({"restart_seconds": -0.1}, "negative"),
        ({"speculate": -1}, "negative"),
        ({"prefill_limit_tokens": -1}, "negative"),
        ({"max_total_tokens": 1}, "max_total_tokens must be 2 to max_batch_total_tokens, got 1"),
        ({"max_total_tokens": 8193}, "max_total_tokens must be 2 to max_batch_total_tokens, got 8193"),
        ({"max_input_tokens": 4096}, "max_input_tokens must be 1 to max_total_tokens - 1, got 4096"),
        ({"max_input_tokens": -1}, "max_input_tokens must be 1 to max_total_tokens - 1, got -1"),
        ({"max_batch_prefill_tokens": 4094}, "max_batch_prefill_tokens must be max_input_tokens to"),
        ({"max_batch_prefill_tokens": 8193}, "max_batch_prefill_tokens must be max_input_tokens to"),
        ({"version": "3.3"}, "three numbers, got '3.3'"),
        ({"max_total_tokens": 8192, "max_batch_prefill_tokens": 8192, "block_size": 16}, "512 blocks, .* has 511"),
        ({"max_total_tokens": 8192, "max_batch_prefill_tokens": 8192, "speculate": 1}, "8192 blocks, .* has 8191"),
    ],
)
def test_a_server_that_would_not_start_is_refused(settings, message):
    """A setting no server could run with raises at construction and is named."""
    with pytest.raises(ValueError, match=message):
        TgiSimConfig(**settings)


def test_the_largest_context_a_pool_holds_is_accepted():
    """With blocks of one token the last token of a context needs none, and one block is nobody's."""
    config = TgiSimConfig(max_total_tokens=8192, max_batch_prefill_tokens=8192)
    assert (config.usable_blocks, config.max_input_tokens) == (8191, 8191)


@pytest.mark.parametrize(
    ("version", "release"),
    [("3.3.6-dev0", (3, 3, 6)), ("2.0.4", (2, 0, 4)), ("1.4.5", (1, 4, 5)), ("3.10.0", (3, 10, 0))],
)
def test_a_version_is_three_numbers(version, release):
    """What follows them says nothing."""
    assert TgiSimConfig(version=version).release == release


def test_an_address_sets_what_it_names():
    """Everything else is by default, and the shortest form is the default server."""
    assert tgi_sim("sim+tgi://a?version=2.0.4&block_size=16&seed=3") == TgiSimConfig(
        version="2.0.4", block_size=16, seed=3
    )
    assert tgi_sim("sim+tgi://") == TgiSimConfig()


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("num_gpu_blocks=1", "no such setting: num_gpu_blocks; there are model, version, "),
        ("block_size=many", "block_size must be a int"),
        ("step_base_seconds=soon", "step_base_seconds must be a float"),
        ("block_size=0", "block_size must be at least 1, got 0"),
    ],
)
def test_an_address_at_fault_is_told_why(query, message):
    """By the name of the setting."""
    with pytest.raises(ValueError, match=message):
        tgi_sim(f"sim+tgi://a?{query}")
