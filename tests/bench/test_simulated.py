"""The simulated bench: clients, doors and the engine between them, and what a short run comes to."""

import argparse

import pytest

from bench.overload.gates import Gate
from bench.overload.slices import BARE, KVGUARD
from bench.overload.workload import SHAPES, Arrival
from bench.simulated.gates import Door, Kvguard, Verdict
from bench.simulated.run import course, engine, scaled
from bench.simulated.world import World
from kvguard.settings import Settings

CONFIG = engine(1)


def arrival(number: int, at: float = 0.0, *, prompt: int = 64, cap: int = 512, length: int = 32) -> Arrival:
    return Arrival(number=number, at=at, prompt="", prompt_tokens=prompt, cap=cap, length=length)


def chosen(**fields: object) -> argparse.Namespace:
    return argparse.Namespace(**{"scale": 1, "loads": (4.0,), "variant": (), "arms": (BARE, KVGUARD), **fields})


def test_every_client_of_an_idle_engine_gets_its_whole_answer() -> None:
    """First tokens after the first step, the last after as many as the answer has; nothing is left."""
    world = World(CONFIG, Door(Gate()), patience_seconds=10.0)
    outcomes = world.offer([arrival(number, at=0.5 * number) for number in range(5)])
    assert [(o.status, o.tokens, o.complete, o.cut, o.timed_out) for o in outcomes] == [
        (200, 32, True, False, False)
    ] * 5
    assert all(0 < o.first_token < 0.1 < o.ended < 1.0 for o in outcomes)
    assert not world.engine.has_work


@pytest.mark.parametrize(("cap", "tokens", "cut"), [(31, 31, True), (32, 32, True), (33, 32, False)])
def test_an_answer_ends_at_its_length_or_its_cap(cap: int, tokens: int, cut: bool) -> None:
    """Whichever comes first; at both, the engine calls it the cap."""
    (outcome,) = World(CONFIG, Door(Gate()), patience_seconds=10.0).offer([arrival(0, cap=cap)])
    assert (outcome.tokens, outcome.cut, outcome.complete) == (tokens, cut, True)


def test_clients_give_up() -> None:
    """An answer that takes longer than its client waits is aborted in the engine."""
    world = World(CONFIG, Door(Gate()), patience_seconds=0.5)
    (outcome,) = world.offer([arrival(0, length=500)])
    assert (outcome.timed_out, outcome.complete, world.engine.has_work) == (True, False, False)
    assert 0.5 < outcome.ended < 0.6


def test_the_engines_own_limit_refuses() -> None:
    """Beyond it nothing is taken in."""
    limited = argparse.Namespace(**{field: getattr(CONFIG, field) for field in CONFIG.__slots__})
    limited.max_num_queued_reqs = 2
    world = World(type(CONFIG)(**vars(limited)), Door(Gate()), patience_seconds=10.0)
    assert [outcome.status for outcome in world.offer([arrival(n) for n in range(4)])] == [200, 200, 503, 503]


def test_kvguard_refuses_what_does_not_fit_and_forgets_what_has_ended() -> None:
    """Thirty requests at once on an engine for a few: some pass, none is preempted, and a later one passes again."""
    door = Kvguard(Settings(), CONFIG, seed=1)
    world = World(CONFIG, door, patience_seconds=10.0)
    crowd = [arrival(number, prompt=500, length=60) for number in range(30)]
    outcomes = world.offer([*crowd, arrival(30, at=9.0)])
    statuses = [outcome.status for outcome in outcomes]
    assert 1 <= statuses[:30].count(200) < 10
    assert statuses[30] == 200
    assert world.engine.stats().preemptions == 0


def test_those_who_wait_are_sent_in_order_or_refused_in_time() -> None:
    """Two may wait a second each: the first of them is sent once something has ended, a third is refused at once."""
    door = Kvguard(Settings(waiting={"max_requests": 2, "max_seconds": 1.0}), CONFIG, seed=1)
    door.scraped(World(CONFIG, door, patience_seconds=1.0).engine.stats(), 0.0)
    large = [arrival(number, prompt=1700, cap=256) for number in range(6)]
    verdicts = [door.ask(each, 0.0) for each in large]
    assert verdicts == [Verdict.SEND, Verdict.SEND, Verdict.WAIT, Verdict.WAIT, Verdict.REFUSE, Verdict.REFUSE]
    assert list(door.turns(0.5)) == []
    door.ended(large[0], 0.5, tokens=32)
    assert list(door.turns(0.5)) == [(large[2], True)]
    assert list(door.turns(1.0)) == [(large[3], False)]


def test_a_short_run_shows_what_the_bench_is_for() -> None:
    """At four times the load the bare engine serves nearly nobody in time, kvguard what the engine can, every time."""
    each = course(SHAPES["chat"], chosen())
    first, again = each.run(3), each.run(3)
    assert first == again
    bare, guarded = first
    assert (bare.arm, guarded.arm, bare.offered) == (BARE, KVGUARD, guarded.offered)
    assert guarded.goodput > 0.6 > 0.2 > bare.goodput
    assert (guarded.preemptions, guarded.timed_out, guarded.failed) == (0, 0, 0)


def test_a_larger_engine_has_as_many_more_clients() -> None:
    """Everything that counts requests or blocks grows alike."""
    assert engine(4).num_gpu_blocks == 4 * CONFIG.num_gpu_blocks
    grown = scaled(SHAPES["rag"], 4)
    assert (grown.clients, grown.native_limits) == (24, (24, 36))
