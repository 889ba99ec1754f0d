import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvguard.simulator.config import SimConfig
from kvguard.simulator.engine import FinishReason, SequenceRequest, SimEngine
from kvguard.simulator.tgi_config import TgiSimConfig
from kvguard.simulator.tgi_engine import TgiEngine, TgiRequest
from tests.kit.properties import deterministic

ENDLESS = 1_000_000
SMALL = {"max_batch_total_tokens": 101, "max_total_tokens": 100, "max_batch_prefill_tokens": 101}


def engine_of(**settings):
    return TgiEngine(TgiSimConfig(**settings))


def wanting(prompt_tokens, max_new_tokens, output_tokens=ENDLESS, named=True):
    return TgiRequest(
        prompt_tokens=prompt_tokens, max_new_tokens=max_new_tokens, output_tokens=output_tokens, named=named
    )


def run(engine, limit=20_000):
    """Every step until the engine is idle."""
    results = []
    while engine.has_work:
        results.append(engine.step())
        assert len(results) < limit
    return results


def admissions(results):
    """Step and sequences of every admission, counting steps from 1."""
    return [(step, result.admitted) for step, result in enumerate(results, 1) if result.admitted]


def outcome(results):
    """Tokens of the only sequence and why it ended."""
    tokens = [token for result in results for token in result.tokens]
    return len(tokens), tokens[-1].finish_reason


@pytest.mark.parametrize(
    ("version", "block_size", "prompt", "cap", "named", "speculate", "blocks"),
    [
        ("3.3.6-dev0", 1, 10, 20, True, 0, 29),
        ("3.3.6-dev0", 1, 10, 2, True, 0, 11),
        ("3.3.6-dev0", 16, 10, 6, True, 0, 1),
        ("3.3.6-dev0", 16, 10, 7, True, 0, 1),
        ("3.3.6-dev0", 16, 10, 8, True, 0, 2),
        ("3.3.6-dev0", 16, 10, 7, True, 1, 2),
        ("3.3.6-dev0", 256, 10, 247, True, 0, 1),
        ("3.3.6-dev0", 256, 10, 248, True, 0, 2),
        ("3.3.6-dev0", 1, 10, 1024, True, 0, 1033),
        ("3.3.6-dev0", 1, 10, 2000, True, 0, 1033),
        ("3.1.1", 1, 10, 2000, True, 0, 1033),
        ("3.1.0", 1, 10, 2000, True, 0, 2009),
        ("3.1.0", 1, 10, 4086, False, 0, 1033),
        ("3.0.0", 1, 10, 4086, False, 0, 1033),
        ("2.4.1", 1, 10, 2000, True, 0, 2009),
        ("2.4.1", 1, 10, 100, False, 0, 109),
        ("2.3.0", 16, 10, 7, True, 0, 1),
        ("2.2.0", 16, 10, 7, True, 0, 2),
        ("2.2.0", 16, 16, 16, True, 0, 2),
        ("2.2.0", 16, 17, 17, True, 0, 4),
        ("2.2.0", 16, 16, 16, True, 2, 3),
        ("1.4.5", 1, 10, 20, True, 0, 30),
    ],
)
def test_what_a_generation_reserves(version, block_size, prompt, cap, named, speculate, blocks):
    """Prompt and cap less one token, or the first piece of it, in whole blocks; older releases round up each."""
    engine = engine_of(version=version, block_size=block_size, speculate=speculate)
    engine.submit(wanting(prompt, cap, named=named))
    engine.step()
    assert engine.stats().reserved_tokens == blocks * block_size


def test_nothing_grows():
    """What is reserved with the first token is what is reserved with the last, and nothing after it."""
    engine = engine_of()
    engine.submit(wanting(10, 5))
    reserved = []
    while engine.has_work:
        engine.step()
        reserved.append(engine.stats().reserved_tokens)
    assert reserved == [14, 14, 14, 14, 0]


@pytest.mark.parametrize(("second", "running"), [(40, 2), (41, 1)])
def test_one_block_is_nobodys(second, running):
    """Of 101 blocks 100 are for requests: the second gets in with 40 after 60, and not with 41."""
    engine = engine_of(**SMALL)
    engine.submit(wanting(50, 11))
    engine.submit(wanting(second, 1))
    engine.step()
    assert running == 1 + (engine.stats().waiting == 0)


def test_the_first_that_does_not_fit_holds_up_the_rest():
    """A small request waits behind a large one though there is room for it."""
    engine = engine_of(**SMALL)
    for request in (wanting(50, 11, 3), wanting(30, 21, 2), wanting(5, 6, 2)):
        engine.submit(request)
    engine.step()
    assert (engine.stats().running, engine.stats().waiting) == (1, 2)
    assert admissions(run(engine)) == [(3, (1, 2))]


def test_a_prefill_has_a_budget_of_prompt_tokens():
    """Prompts of 40 and 20 go together under 60, one of 21 waits for the next step."""
    settings = {**SMALL, "max_batch_prefill_tokens": 60, "max_input_tokens": 60}
    for second, expected in ((20, [(1, (0, 1))]), (21, [(1, (0,)), (2, (1,))])):
        engine = engine_of(**settings)
        engine.submit(wanting(40, 5))
        engine.submit(wanting(second, 5))
        assert admissions(run(engine)) == expected


@pytest.mark.parametrize(
    ("version", "prompt", "cap", "named", "output", "ends", "pieces"),
    [
        ("3.3.6-dev0", 100, 1024, True, ENDLESS, (1024, FinishReason.LENGTH), 1),
        ("3.3.6-dev0", 100, 1025, True, ENDLESS, (2048, FinishReason.LENGTH), 2),
        ("3.3.6-dev0", 100, 1500, True, ENDLESS, (2048, FinishReason.LENGTH), 2),
        ("3.3.6-dev0", 100, 1500, True, 1100, (1100, FinishReason.STOP), 2),
        ("3.3.6-dev0", 100, 1500, True, 1024, (1024, FinishReason.STOP), 1),
        ("3.3.6-dev0", 2000, 100_000, True, ENDLESS, (2048, FinishReason.LENGTH), 2),
        ("3.3.6-dev0", 2049, 1500, True, ENDLESS, (1024, FinishReason.LENGTH), 1),
        ("3.3.6-dev0", 1000, 3096, False, ENDLESS, (3096, FinishReason.LENGTH), 4),
        ("3.1.0", 100, 1500, True, ENDLESS, (1500, FinishReason.LENGTH), 1),
        ("3.1.0", 1000, 3096, False, ENDLESS, (3096, FinishReason.LENGTH), 4),
        ("2.4.1", 100, 1500, True, ENDLESS, (1500, FinishReason.LENGTH), 1),
    ],
)
def test_long_answers_come_in_pieces(version, prompt, cap, named, output, ends, pieces):
    """A cap goes up to the next 1024 unless the answer or the context of 4096 ends before."""
    engine = engine_of(version=version)
    engine.submit(wanting(prompt, cap, output, named))
    results = run(engine)
    assert outcome(results) == ends
    assert len(admissions(results)) == pieces
    assert engine.stats().input_lengths.total() == pieces


def test_a_grown_prompt_too_long_to_read_ends_the_answer():
    """The limit of prompts counts again with every piece."""
    engine = engine_of(max_input_tokens=1123)
    engine.submit(wanting(100, 1500))
    assert outcome(run(engine)) == (1024, FinishReason.LENGTH)


def test_a_piece_goes_to_the_back_of_the_queue():
    """Who has waited gets in between two pieces, and what was generated is prompt of the second."""
    engine = engine_of(max_batch_total_tokens=2601, max_total_tokens=2600, max_batch_prefill_tokens=2600)
    engine.submit(wanting(1, 2048))
    engine.submit(wanting(1500, 100, 5))
    results = run(engine)
    assert admissions(results) == [(1, (0,)), (1025, (1,)), (1030, (0,))]
    assert engine.stats().input_lengths == {1: 1, 1500: 1, 1025: 1}
    assert engine.stats().max_new_tokens == {1024: 2, 100: 1}
    assert engine.stats().generated == {2048: 1, 5: 1}


def test_a_client_that_leaves_a_running_request_frees_it_with_the_next_token():
    """Its blocks are held until then, no token comes, and it is counted as dropped."""
    engine = engine_of()
    engine.submit(wanting(10, 5))
    engine.step()
    assert engine.abort(0)
    assert not engine.abort(0)
    assert engine.stats().reserved_tokens == 14
    assert engine.step().tokens == ()
    assert (engine.stats().reserved_tokens, engine.stats().dropped, engine.unfinished) == (0, 1, 0)


def test_a_client_that_leaves_the_queue_is_counted_until_it_is_looked_at():
    """Behind one that does not fit it goes on waiting."""
    engine = engine_of(**SMALL)
    for request in (wanting(50, 11, 2), wanting(90, 2, 1), wanting(5, 5)):
        engine.submit(request)
    assert engine.abort(2)
    engine.step()
    assert engine.stats().waiting == 2
    run(engine)
    assert (engine.stats().waiting, engine.stats().dropped, engine.stats().finished) == (0, 1, 2)


def test_abort_of_one_that_has_ended():
    """It changes nothing."""
    engine = engine_of()
    engine.submit(wanting(1, 1))
    engine.step()
    assert not engine.abort(0)
    assert engine.stats().dropped == 0


def test_a_prefill_beyond_the_memory_ends_everything():
    """Running and waiting alike, for as long as a restart takes; then the next request is served."""
    engine = engine_of(**SMALL, prefill_limit_tokens=50, restart_seconds=7.0)
    engine.submit(wanting(20, 5))
    engine.step()
    for prompt in (25, 26, 90):
        engine.submit(wanting(prompt, 2))
    result = engine.step()
    assert (result.failed, result.tokens, result.seconds) == ((0, 1, 2, 3), (), 7.0)
    stats = engine.stats()
    assert (stats.crashes, stats.failed, stats.reserved_tokens, engine.unfinished) == (1, 4, 0, 0)
    engine.submit(wanting(50, 1))
    assert engine.step().finished == {4: FinishReason.LENGTH}


def test_a_prefill_at_the_limit_survives():
    """Two prompts of 25 tokens are not more than 50."""
    engine = engine_of(**SMALL, prefill_limit_tokens=50)
    engine.submit(wanting(25, 1))
    engine.submit(wanting(25, 1))
    assert len(engine.step().finished) == 2


def test_a_step_costs_sequences_and_prompt_tokens():
    """A prefill of 100 tokens, then a decode; an idle engine takes no time."""
    engine = engine_of(step_base_seconds=1.0, step_seconds_per_sequence=0.5, prefill_seconds_per_token=0.01)
    engine.submit(wanting(100, 2))
    assert [result.seconds for result in run(engine)] == [2.5, 1.5]
    assert engine.step().seconds == 0.0
    assert (engine.stats().prefills, engine.stats().decodes) == (1, 1)


def test_drawn_lengths_are_those_of_the_other_twin():
    """The same seed means the same answers, whatever serves them."""
    vllm = SimEngine(SimConfig(seed=5))
    tgi = engine_of(seed=5)
    for _ in range(10):
        vllm.submit(SequenceRequest(prompt_tokens=1, max_tokens=1000))
        tgi.submit(TgiRequest(prompt_tokens=1, max_new_tokens=1000))
    assert {k: v for r in run(tgi) for k, v in r.finished.items()} == {
        k: v for r in run(vllm) for k, v in r.finished.items()
    }
    assert tgi.stats().generated.total() == 10
    assert sum(k * n for k, n in tgi.stats().generated.items()) == vllm.stats().generation_tokens


@pytest.mark.parametrize(
    ("prompt", "cap", "message"), [(0, 1, "at least one"), (1, 0, "at least one"), (90, 12, "never fits")]
)
def test_what_the_router_would_not_let_in(prompt, cap, message):
    """Nothing of it is left behind."""
    engine = engine_of(**SMALL)
    with pytest.raises(ValueError, match=message):
        engine.submit(wanting(prompt, cap))
    assert not engine.has_work


REQUESTS = st.lists(
    st.tuples(st.integers(1, 1500), st.integers(1, 1500), st.integers(1, 2500), st.booleans(), st.integers(0, 40)),
    min_size=1,
    max_size=12,
)


@deterministic
@given(
    requests=REQUESTS,
    version=st.sampled_from(["1.4.5", "2.2.0", "2.4.1", "3.0.0", "3.3.6-dev0"]),
    block_size=st.sampled_from([1, 16, 256]),
    limit=st.sampled_from([0, 1800]),
)
def test_every_generation_ends_and_leaves_nothing(requests, version, block_size, limit):
    """Whatever comes and leaves, no more is reserved than there is, and in the end all blocks are free."""
    config = TgiSimConfig(version=version, block_size=block_size, prefill_limit_tokens=limit)
    engine = TgiEngine(config)
    leaving = {}
    for prompt, cap, output, named, leaves in requests:
        leaving.setdefault(leaves, []).append(engine.submit(wanting(prompt, cap, output, named)))
    ended, positions, step = [], {}, 0
    while engine.has_work:
        step += 1
        for sequence_id in leaving.get(step, ()):
            engine.abort(sequence_id)
        result = engine.step()
        assert engine.stats().reserved_tokens <= config.usable_blocks * block_size
        ended += [*result.finished, *result.failed]
        for token in result.tokens:
            assert positions.get(token.sequence_id, -1) + 1 == token.position
            positions[token.sequence_id] = token.position
    stats = engine.stats()
    assert len(ended) == len(set(ended))
    assert stats.finished + stats.failed + stats.dropped == len(requests)
    assert len(ended) == stats.finished + stats.failed
    assert (stats.reserved_tokens, stats.running, stats.waiting) == (0, 0, 0)
