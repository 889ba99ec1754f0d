"""The engine with prefix caching: what sequences share, what they skip, and that nothing else changes."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvguard.simulator.blocks import blocks_for
from kvguard.simulator.config import SimConfig
from kvguard.simulator.engine import SequenceRequest, SimEngine
from tests.kit.properties import deterministic

BLOCK = 4
SMALL = {"block_size": BLOCK, "num_gpu_blocks": 20, "max_model_len": 60, "max_num_batched_tokens": 24}
RECORDED = {"block_size": 128, "max_model_len": 2048, "max_num_batched_tokens": 4096}
SAME = tuple(range(1, 20))


def engine_of(*, caching=True, **settings):
    return SimEngine(SimConfig(enable_prefix_caching=caching, **settings))


def asked(prompt_tokens, output_tokens, prefix=SAME):
    return SequenceRequest(prompt_tokens=prompt_tokens, max_tokens=output_tokens, ignore_eos=True, prefix=prefix)


def run(engine, limit=10_000):
    results = []
    while engine.has_work:
        results.append(engine.step())
        assert len(results) < limit
    return results


def used_over_time(engine):
    seen = []
    while engine.has_work:
        engine.step()
        seen.append(engine.stats().used_blocks)
    return seen


@pytest.mark.parametrize(
    ("copies", "caching", "first", "peak"),
    [(2, True, 9, 11), (2, False, 16, 18), (4, True, 11, 15), (4, False, 32, 36)],
)
def test_sequences_with_one_prompt_hold_what_vllm_was_seen_to_hold(copies, caching, first, peak):
    """1000 tokens in blocks of 128: seven blocks are shared at once, in the very step that computes them."""
    engine = engine_of(caching=caching, **RECORDED)
    for _ in range(copies):
        engine.submit(asked(1000, 60, SAME[:7]))
    used = used_over_time(engine)
    assert (used[0], max(used), used[-1]) == (first, peak, 0)


def test_the_next_equal_prompt_hits_what_vllm_was_seen_to_hit():
    """896 of 1000 tokens, although the gauge was at 0 in between."""
    engine = engine_of(**RECORDED)
    for _ in range(2):
        engine.submit(asked(1000, 60, SAME[:7]))
        run(engine)
        assert engine.stats().used_blocks == 0
    assert (engine.stats().prefix_cache_queries, engine.stats().prefix_cache_hits) == (2000, 896)


@pytest.mark.parametrize(("prompt_tokens", "hit"), [(BLOCK, 0), (BLOCK + 1, BLOCK), (2 * BLOCK, BLOCK), (9, 8)])
def test_the_last_token_is_always_computed(prompt_tokens, hit):
    """A prompt that ends with a block computes that block again."""
    engine = engine_of(**SMALL)
    computed = []
    for _ in range(2):
        engine.submit(asked(prompt_tokens, 1))
        computed.append(engine.step().scheduled_tokens)
    assert computed == [prompt_tokens, prompt_tokens - hit]
    assert engine.stats().prefix_cache_hits == hit


def test_a_conversation_comes_back_with_its_answer():
    """The next turn's prompt has the last answer in it, whose blocks are cached as far as they got KV."""
    engine = engine_of(**SMALL)
    engine.submit(asked(6, 11))
    run(engine)
    engine.submit(asked(22, 2))
    assert engine.step().scheduled_tokens == 22 - 16


def test_prefill_that_is_skipped_takes_no_time():
    """A step is shorter by what the tokens that hit would have taken."""
    times = []
    engine = engine_of(step_base_seconds=1.0, step_seconds_per_sequence=0.0, prefill_seconds_per_token=0.01)
    for _ in range(2):
        engine.submit(asked(40, 1))
        times.append(engine.step().seconds)
    assert times == pytest.approx([1.4, 1.4 - 0.32])


def test_a_chunked_prompt_shares_what_is_computed_so_far():
    """The second of two equal prompts starts where the first has got to, not from zero and not at its end."""
    engine = engine_of(max_num_batched_tokens=32)
    engine.submit(asked(70, 2))
    engine.step()
    engine.submit(asked(70, 2))
    results = [engine.step() for _ in range(2)]
    assert [result.scheduled_tokens for result in results] == [32, 6 + 6]
    assert engine.stats().prefix_cache_hits == 64


def test_a_preempted_sequence_finds_its_blocks_and_is_not_counted_again():
    """What it lost is still cached when it is computed again, and neither queries nor hits move."""
    engine = engine_of(block_size=4, num_gpu_blocks=5, max_model_len=17)
    older, younger = engine.submit(asked(7, 6, (1,))), engine.submit(asked(7, 6, (2,)))
    while not engine.step().preempted:
        pass
    before = engine.stats()
    assert engine.held_blocks(older) == 3
    while younger not in (result := engine.step()).admitted:
        pass
    assert result.scheduled_tokens < 7
    after = engine.stats()
    assert (after.prefix_cache_queries, after.prefix_cache_hits) == (before.prefix_cache_queries, 0) == (14, 0)


def test_room_for_shared_blocks_is_asked_for_once():
    """A prompt that would not fit by itself is admitted beside the one it shares blocks with."""
    for caching, admitted in ((True, (0, 1)), (False, (0,))):
        engine = engine_of(caching=caching, block_size=4, num_gpu_blocks=6, max_model_len=20)
        for _ in range(2):
            engine.submit(asked(14, 2, (1, 2, 3)))
        assert engine.step().admitted == admitted


@settings(deterministic, max_examples=100)
@given(
    seed=st.integers(0, 2**16),
    traffic=st.lists(
        st.tuples(st.integers(1, 30), st.integers(1, 30), st.integers(0, 3), st.integers(0, 6)), min_size=1, max_size=25
    ),
)
def test_sharing_changes_no_answer_and_keeps_the_books(seed, traffic):
    """Whatever is shared, tokens are the same; used blocks stay within the pool, and in the end nobody holds any."""
    outcomes = []
    for caching in (True, False):
        engine, chance, tokens = engine_of(caching=caching, **SMALL), random.Random(seed), {}
        for prompt, output, topic, common in traffic:
            hashes = tuple(hash((topic if i < common else (topic, prompt, output), i)) for i in range(15))
            engine.submit(asked(prompt, output, hashes))
            for _ in range(chance.randrange(4)):
                _step(engine, tokens)
        while engine.has_work:
            _step(engine, tokens)
        stats = engine.stats()
        assert stats.used_blocks == 0
        assert stats.prefix_cache_hits <= stats.prefix_cache_queries
        outcomes.append(tokens)
    assert outcomes[0] == outcomes[1] == {n: list(range(output)) for n, (_, output, _, _) in enumerate(traffic)}


def _step(engine, tokens):
    result = engine.step()
    assert 0 <= engine.stats().used_blocks <= engine.stats().usable_blocks
    for token in result.tokens:
        tokens.setdefault(token.sequence_id, []).append(token.position)


@pytest.mark.parametrize("seed", range(4))
def test_without_equal_prefixes_everything_is_as_before(seed):
    """Every step takes as long, schedules, admits and preempts the same, and the gauge shows the same."""
    twins = [engine_of(caching=caching, seed=seed, **SMALL) for caching in (True, False)]
    chance = random.Random(seed)
    for number in range(300):
        if chance.random() < 0.3:
            request = asked(chance.randint(1, 30), chance.randint(1, 30), tuple(hash((number, i)) for i in range(15)))
            for twin in twins:
                twin.submit(request)
        results = [twin.step() for twin in twins]
        assert _plain(results[0]) == _plain(results[1]), f"seed {seed}"
        assert twins[0].stats().used_blocks == twins[1].stats().used_blocks, f"seed {seed}"
        if results[0].preempted:
            return
    pytest.fail(f"seed {seed} preempts nothing, so it shows too little")


def _plain(result):
    return result.seconds, result.scheduled_tokens, result.tokens, result.admitted, result.preempted


def test_held_blocks_are_those_of_the_tokens_with_kv():
    """Shared or not, a sequence holds as many blocks as its tokens need."""
    engine = engine_of(**SMALL)
    first, second = engine.submit(asked(9, 12)), engine.submit(asked(9, 12))
    for generated in range(1, 12):
        engine.step()
        assert engine.held_blocks(first) == engine.held_blocks(second) == blocks_for(9 + generated - 1, BLOCK)
