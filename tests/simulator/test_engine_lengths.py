"""Output lengths the engine draws when the client does not force them."""

import statistics

import pytest

from kvguard.simulator.config import SimConfig
from kvguard.simulator.engine import SequenceRequest, SimEngine


def natural(prompt_tokens=1):
    return SequenceRequest(prompt_tokens=prompt_tokens, max_tokens=4000)


def lengths_of(engine):
    """Tokens per sequence once all have ended."""
    lengths = {}
    while engine.has_work:
        for token in engine.step().tokens:
            lengths[token.sequence_id] = token.position + 1
    return lengths


def drawn_lengths(seed, count, prompt_tokens=1):
    """Natural output lengths of the first `count` sequences."""
    engine = SimEngine(SimConfig(seed=seed))
    for _ in range(count):
        engine.submit(natural(prompt_tokens))
    return lengths_of(engine)


def test_lengths_depend_on_seed_and_order_only():
    """The same seed gives the same lengths for other prompts, another seed gives others."""
    assert drawn_lengths(1, 20) == drawn_lengths(1, 20, prompt_tokens=50)
    assert drawn_lengths(1, 20) != drawn_lengths(2, 20)


def test_a_forced_length_shifts_no_draw():
    """A request that forces its length consumes its draw, so those after it keep theirs."""
    engine = SimEngine(SimConfig(seed=1))
    engine.submit(SequenceRequest(prompt_tokens=1, max_tokens=3, ignore_eos=True))
    for _ in range(5):
        engine.submit(natural())
    found = lengths_of(engine)
    expected = drawn_lengths(1, 6)
    assert {k: found[k] for k in range(1, 6)} == {k: expected[k] for k in range(1, 6)}


def test_the_mean_output_is_as_documented():
    """Natural lengths average about 130 tokens and vary."""
    lengths = list(drawn_lengths(3, 1500).values())
    assert statistics.mean(lengths) == pytest.approx(130, rel=0.1)
    assert min(lengths) < 30 < 400 < max(lengths)
