import random

import pytest

from kvguard.simulator.blocks import blocks_for
from kvguard.simulator.config import SimConfig
from kvguard.simulator.engine import FinishReason, SequenceRequest, SimEngine

TINY = {"block_size": 4, "num_gpu_blocks": 5, "max_model_len": 17}


def engine_of(**settings):
    return SimEngine(SimConfig(**settings))


def forced(prompt_tokens, max_tokens):
    return SequenceRequest(prompt_tokens=prompt_tokens, max_tokens=max_tokens, ignore_eos=True)


def run(engine, limit=10_000):
    """Every step until the engine is idle."""
    results = []
    while engine.has_work:
        results.append(engine.step())
        assert len(results) < limit
    return results


def positions(results):
    """Token positions per sequence, in the order they came."""
    found = {}
    for result in results:
        for token in result.tokens:
            found.setdefault(token.sequence_id, []).append(token.position)
    return found


@pytest.mark.parametrize(("prompt_tokens", "blocks"), [(1, 1), (15, 1), (16, 1), (17, 2), (32, 2), (33, 3)])
def test_a_prompt_takes_whole_blocks(prompt_tokens, blocks):
    """After the prefill the prompt is in blocks and the first sampled token is not."""
    engine = engine_of()
    sequence_id = engine.submit(forced(prompt_tokens, 5))
    engine.step()
    assert engine.held_blocks(sequence_id) == blocks
    assert engine.stats().used_blocks == blocks


def test_blocks_come_one_at_a_time_at_the_boundary():
    """KV tokens are prompt + generated - 1, and only crossing a block boundary takes a block."""
    engine = engine_of()
    sequence_id = engine.submit(forced(15, 100))
    held = []
    for _ in range(19):
        engine.step()
        held.append(engine.held_blocks(sequence_id))
    assert held == [1, 1] + [2] * 16 + [3]


def test_the_cap_is_not_reserved():
    """A huge cap holds no more than a small one until tokens are computed."""
    engine = engine_of()
    engine.submit(forced(16, 4000))
    engine.step()
    assert engine.stats().used_blocks == 1


def test_a_sequence_that_ends_in_its_first_step_never_shows():
    """A one-token answer is freed before the step's gauges are taken."""
    engine = engine_of()
    engine.submit(forced(1500, 1))
    result = engine.step()
    assert result.finished == {0: FinishReason.LENGTH}
    stats = engine.stats()
    assert (stats.used_blocks, stats.running, stats.generation_tokens, stats.finished_length) == (0, 0, 1, 1)


def test_the_last_of_the_running_list_is_preempted():
    """When the older needs a block and none is free, the younger loses its blocks and waits before all others."""
    engine = engine_of(**TINY)
    older, younger, newcomer = (engine.submit(forced(7, 6)) for _ in range(3))
    assert engine.step().admitted == (older, younger)
    engine.step()
    result = engine.step()
    assert result.preempted == (younger,)
    assert result.admitted == ()
    assert [token.sequence_id for token in result.tokens] == [older]
    assert (engine.held_blocks(older), engine.held_blocks(younger)) == (3, 0)
    later = run(engine)
    order = [sequence_id for step in later for sequence_id in step.admitted]
    assert order[0] == younger
    assert newcomer in order[1:]


def test_preemption_loses_and_repeats_no_token():
    """Whatever is preempted, every sequence yields each position exactly once and in order."""
    engine = engine_of(block_size=4, num_gpu_blocks=12, max_model_len=40, max_num_batched_tokens=16)
    caps = {engine.submit(forced(5 + index % 7, 10 + index % 9)): 10 + index % 9 for index in range(12)}
    results = run(engine)
    assert sum(len(result.preempted) for result in results) > 0
    assert positions(results) == {sequence_id: list(range(cap)) for sequence_id, cap in caps.items()}
    assert engine.stats().used_blocks == 0


def test_a_sequence_may_preempt_itself():
    """The last of the running list that finds no block gives up its own and the rest of the step goes on."""
    engine = engine_of(**TINY)
    older = engine.submit(forced(8, 6))
    younger = engine.submit(forced(7, 6))
    engine.step()
    engine.step()
    engine.abort(older)
    third = engine.submit(forced(8, 6))
    engine.step()
    result = engine.step()
    assert (result.preempted, engine.stats().running) == ((third,), 1)
    assert younger in {token.sequence_id for token in result.tokens}


def test_preemptions_are_reported_when_the_victim_speaks_again():
    """The exported counter moves with the victim's next token, the event counter at once."""
    engine = engine_of(**TINY)
    engine.submit(forced(7, 6))
    engine.submit(forced(7, 6))
    while not engine.step().preempted:
        pass
    stats = engine.stats()
    assert (stats.preemptions, stats.preemptions_reported) == (1, 0)
    run(engine)
    stats = engine.stats()
    assert stats.preemptions_reported == stats.preemptions


def test_the_prompt_of_a_preempted_sequence_counts_once():
    """Prompt tokens are counted at the first token, not when they are computed again."""
    engine = engine_of(**TINY)
    for _ in range(2):
        engine.submit(forced(7, 6))
    run(engine)
    stats = engine.stats()
    assert stats.preemptions > 0
    assert (stats.prompt_tokens, stats.generation_tokens) == (14, 12)


def test_the_head_of_the_queue_blocks_what_would_fit():
    """A small sequence waits behind a large one although its blocks are free."""
    engine = engine_of(**TINY)
    engine.submit(forced(8, 3))
    engine.step()
    large = engine.submit(forced(12, 1))
    small = engine.submit(forced(1, 2))
    result = engine.step()
    assert result.admitted == ()
    stats = engine.stats()
    assert (stats.running, stats.waiting) == (1, 2)
    assert [s for step in run(engine) for s in step.admitted] == [large, small]


@pytest.mark.parametrize(("prompt_tokens", "admitted"), [(8, True), (9, False)])
def test_admission_needs_every_block_of_the_prompt(prompt_tokens, admitted):
    """With two blocks of four free, eight tokens are admitted and nine are not."""
    engine = engine_of(**TINY)
    engine.submit(forced(5, 9))
    engine.step()
    engine.submit(forced(prompt_tokens, 1))
    assert bool(engine.step().admitted) is admitted
    assert engine.held_blocks(0) == 2


def test_max_num_seqs_bounds_the_running_list():
    """More sequences than slots wait although blocks are free."""
    engine = engine_of(max_num_seqs=2)
    for _ in range(3):
        engine.submit(forced(4, 3))
    assert engine.step().admitted == (0, 1)
    assert (engine.stats().running, engine.stats().waiting) == (2, 1)


def test_a_long_prompt_is_computed_in_chunks():
    """Within the token budget a prompt fills block after block and speaks only when it is complete."""
    engine = engine_of(max_num_batched_tokens=32)
    sequence_id = engine.submit(forced(70, 2))
    seen = []
    for _ in range(3):
        result = engine.step()
        seen.append((result.scheduled_tokens, engine.held_blocks(sequence_id), len(result.tokens)))
    assert seen == [(32, 2, 0), (32, 4, 0), (6, 5, 1)]


def test_decoding_goes_before_prefill_in_the_budget():
    """Running sequences take their token first and the newcomer gets what is left."""
    engine = engine_of(max_num_batched_tokens=10)
    engine.submit(forced(5, 9))
    engine.submit(forced(40, 9))
    assert engine.step().scheduled_tokens == 10
    result = engine.step()
    assert (result.scheduled_tokens, [token.sequence_id for token in result.tokens]) == (10, [0])


def test_a_step_takes_its_base_its_sequences_and_its_prefill():
    """Duration is base + per sequence + per prefill token; decoding costs no prefill time."""
    engine = engine_of(step_base_seconds=1.0, step_seconds_per_sequence=0.1, prefill_seconds_per_token=0.01)
    engine.submit(forced(10, 3))
    engine.submit(forced(20, 3))
    assert engine.step().seconds == pytest.approx(1.0 + 2 * 0.1 + 30 * 0.01)
    assert engine.step().seconds == pytest.approx(1.0 + 2 * 0.1)


def test_an_idle_step_does_nothing_in_no_time():
    """An engine without work neither moves time nor counts."""
    engine = engine_of()
    assert engine.step().seconds == 0
    assert engine.step().tokens == ()


def test_abort_frees_a_running_and_forgets_a_waiting_sequence():
    """Blocks are free at once, a second abort finds nothing and no counter counts either."""
    engine = engine_of(max_num_seqs=1)
    first, second = engine.submit(forced(40, 9)), engine.submit(forced(40, 9))
    engine.step()
    assert (engine.abort(second), engine.abort(first), engine.abort(first)) == (True, True, False)
    stats = engine.stats()
    assert (stats.used_blocks, stats.running, stats.waiting) == (0, 0, 0)
    assert (stats.finished_stop, stats.finished_length) == (0, 0)
    assert not engine.has_work


@pytest.mark.parametrize(
    ("request_", "tokens", "reason"),
    [
        (SequenceRequest(prompt_tokens=4, max_tokens=9, output_tokens=8), 8, FinishReason.STOP),
        (SequenceRequest(prompt_tokens=4, max_tokens=9, output_tokens=9), 9, FinishReason.LENGTH),
        (SequenceRequest(prompt_tokens=4, max_tokens=9, output_tokens=10), 9, FinishReason.LENGTH),
        (SequenceRequest(prompt_tokens=4, max_tokens=9, output_tokens=2, min_tokens=7), 7, FinishReason.STOP),
        (SequenceRequest(prompt_tokens=4, max_tokens=9, output_tokens=2, min_tokens=9), 9, FinishReason.LENGTH),
        (SequenceRequest(prompt_tokens=4, max_tokens=9, output_tokens=2, ignore_eos=True), 9, FinishReason.LENGTH),
        (SequenceRequest(prompt_tokens=4, max_tokens=9, output_tokens=0), 1, FinishReason.STOP),
    ],
)
def test_where_an_output_ends(request_, tokens, reason):
    """It stops by itself below the cap and not before min_tokens; otherwise the cap ends it."""
    engine = engine_of()
    engine.submit(request_)
    results = run(engine)
    assert positions(results) == {0: list(range(tokens))}
    assert results[-1].finished == {0: reason}


@pytest.mark.parametrize(("prompt_tokens", "max_tokens"), [(0, 5), (5, 0), (10, 8)])
def test_what_the_engine_cannot_hold_is_refused(prompt_tokens, max_tokens):
    """An empty prompt, an empty cap and more than the context raise instead of running."""
    with pytest.raises(ValueError, match=r"token|max_model_len"):
        engine_of(**TINY).submit(forced(prompt_tokens, max_tokens))


@pytest.mark.parametrize("seed", range(8))
def test_random_traffic_keeps_the_books(seed):
    """Under arrivals, aborts and preemption held blocks match KV tokens in every step and end at zero."""
    chance = random.Random(seed)
    engine = engine_of(block_size=4, num_gpu_blocks=20, max_model_len=60, max_num_batched_tokens=24, seed=seed)
    prompts, generated, live = {}, {}, set()
    for _ in range(300):
        if chance.random() < 0.3:
            prompt = chance.randint(1, 30)
            sequence_id = engine.submit(SequenceRequest(prompt_tokens=prompt, max_tokens=chance.randint(1, 30)))
            prompts[sequence_id], generated[sequence_id] = prompt, 0
            live.add(sequence_id)
        if live and chance.random() < 0.05:
            victim = chance.choice(sorted(live))
            live.discard(victim)
            assert engine.abort(victim), f"seed {seed}"
        result = engine.step()
        for token in result.tokens:
            assert token.position == generated[token.sequence_id], f"seed {seed}"
            generated[token.sequence_id] += 1
        live -= result.finished.keys()
        for token in result.tokens:
            if token.finish_reason is None:
                kv_tokens = prompts[token.sequence_id] + generated[token.sequence_id] - 1
                assert engine.held_blocks(token.sequence_id) == blocks_for(kv_tokens, 4), f"seed {seed}"
        stats = engine.stats()
        assert stats.used_blocks == sum(engine.held_blocks(sequence_id) for sequence_id in live), f"seed {seed}"
        assert 0 <= stats.usage_ratio <= 1, f"seed {seed}"
    run(engine)
    assert engine.stats().used_blocks == 0, f"seed {seed}"
