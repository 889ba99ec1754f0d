"""The routing bench: engines side by side in time, who chooses among them, and what a short run comes to."""

from dataclasses import replace

import pytest

from bench.overload.client import REFUSED
from bench.routing.report import report
from bench.routing.results import ARMS, GUARDED_ROUND_ROBIN, KVGUARD, ROUND_ROBIN, Routed
from bench.routing.routers import Kvguard, Router, Sent, demand_of, hints_of, least_requests, round_robin
from bench.routing.run import Course
from bench.routing.traffic import BLOCK_SIZE, ENGINE, RAG, Turn
from bench.routing.world import Watched, World
from tests.bench.build import visited

PLAIN = replace(ENGINE, step_base_seconds=0.1, step_seconds_per_sequence=0.0, prefill_seconds_per_token=0.0)


def turn(number, at=0.0, *, prompt=64, length=4, **fields):
    prefix = fields.pop("prefix", tuple(hash((number, i)) for i in range((prompt + length) // BLOCK_SIZE)))
    known = {"prompt": "", "prompt_tokens": prompt, "cap": 512, "length": length, "prefix": prefix, **fields}
    return Turn(number=number, at=at, **known)


def world(engines=2, router=None, *, patience=10.0, span=(0.0, 1.0)):
    return World(PLAIN, engines, router or Router(engines, round_robin()), patience_seconds=patience, span=span)


class Nobody(Router):
    """Refuses everything."""

    def send(self, turn, now):
        return None


def test_each_engine_steps_at_its_own_pace():
    """A request begins a step on an idle engine at once, whatever the others are doing."""
    outcomes = world().offer([turn(0), turn(1, at=0.05), turn(2, at=0.06)])
    assert [round(o.first_token, 6) for o in outcomes] == [0.1, 0.1, 0.14]
    assert [round(o.ended, 6) for o in outcomes] == [0.4, 0.4, 0.44]
    assert all(o.complete and not o.cut for o in outcomes)


def test_who_follows_comes_after_the_answer_and_some_thinking():
    """At its own time when the answer is there by then, and later when it is not."""
    seen = []

    class Noting(Router):
        def send(self, turn, now):
            seen.append((turn.number, round(now, 6)))
            return super().send(turn, now)

    schedule = [
        turn(0),
        turn(1, at=0.2, follows=0, think_seconds=0.3),
        turn(2, at=3.0, follows=1, think_seconds=0.3),
    ]
    world(router=Noting(2, round_robin())).offer(schedule)
    assert seen == [(0, 0.0), (1, 0.7), (2, 3.0)]


def test_who_was_refused_goes_on_all_the_same():
    """The whole conversation is offered, and every turn of it refused."""
    outcomes = world(router=Nobody(2, round_robin())).offer([turn(0), turn(1, at=0.2, follows=0)])
    assert [outcome.status for outcome in outcomes] == [REFUSED, REFUSED]


def test_who_gives_up_leaves_the_engine():
    """The sequence is aborted, its token of the running step goes nowhere, and the next turn comes."""
    busy = world(1, patience=0.35)
    outcomes = busy.offer([turn(0, length=50), turn(1, at=0.0, length=2, follows=0)])
    assert [(o.timed_out, o.complete, o.tokens) for o in outcomes] == [(True, False, 3), (False, True, 2)]
    assert not busy.servers[0].engine.has_work


def test_what_the_engines_do_in_the_span_is_watched():
    """Blocks over time, and prompt tokens looked up and found, of the span alone."""
    same = tuple(range(10))
    watching = world(span=(1.95, 2.95))
    schedule = [turn(n, at=float(n), prefix=same, length=1 + n) for n in range(4)]
    watching.offer(schedule)
    seen = watching.watched()
    assert (seen.queried_tokens, seen.hit_tokens) == (64, 32)
    assert seen.held_blocks == pytest.approx((0.5, 0.0))
    assert (seen.imbalance, seen.hit_rate) == (2.0, 0.5)


def test_nothing_watched_is_even():
    """No division by nothing."""
    assert (Watched((0.0, 0.0), 0, 0).imbalance, Watched((0.0, 0.0), 0, 0).hit_rate) == (1.0, 0.0)


def test_the_usual_rules():
    """In turn, or where the fewest are; of several the next in turn."""
    in_turn, fewest = round_robin(), least_requests()
    assert [in_turn([5, 0, 0]) for _ in range(4)] == [0, 1, 2, 0]
    assert [fewest([0, 0, 0]) for _ in range(4)] == [0, 1, 2, 0]
    assert [fewest([1, 0, 2]) for _ in range(4)] == [1] * 4


def test_requests_that_ended_count_no_longer():
    """The engine whose request is over is the emptiest again."""
    router = Router(2, least_requests())
    first, second = turn(0), turn(1)
    assert [router.send(first, 0.0), router.send(second, 0.0)] == [Sent(0, 512), Sent(1, 512)]
    router.ended(second, 0.1, tokens=4)
    assert router.send(turn(2), 0.2) == Sent(1, 512)


def test_marks_are_known_to_be_less_far_into_the_prompt_than_they_are():
    """They grow along the prompt, and hints and demand have the same."""
    asked = turn(0, prompt=400, length=4)
    marks = demand_of(asked).prefix
    assert [mark.hash for mark in marks] == list(asked.prefix[1:12:2]) == list(hints_of(asked).trail.parts)
    assert all(0 < mark.tokens < 2 * BLOCK_SIZE * (index + 1) for index, mark in enumerate(marks))


def filled(router, engines):
    """The router sees empty engines."""
    idle = World(ENGINE, engines, router, patience_seconds=1.0, span=(0.0, 1.0))
    for server in idle.servers:
        router.scraped(server.number, server.shown, 0.0)
    return router


@pytest.mark.parametrize(("pick", "most"), [(lambda live: 0, 8), (None, 16)])
def test_a_pick_is_final_and_kvguard_looks_everywhere(pick, most):
    """Behind a pick only its engine is filled before the rest is refused; kvguard fills both and then refuses."""
    router = filled(Kvguard(2, pick, (), seed=1), 2)
    sent = [router.send(turn(n, prompt=1000, length=4), 0.0) for n in range(20)]
    taken = [each for each in sent if each is not None]
    assert most / 2 <= len(taken) <= most
    assert {each.engine for each in taken} == ({0} if pick else {0, 1})
    for number in range(len(taken)):
        router.ended(turn(number), 1.0, tokens=4)
    assert router.send(turn(30, prompt=1000), 1.0) is not None


def test_a_short_run_shows_what_the_bench_is_for():
    """On documents kvguard finds more in the caches than round robin, serves more, and the run can be repeated."""
    course = Course(traffic=RAG, engines=2, able=8.5, seconds=2.0)
    arms = (ROUND_ROBIN, GUARDED_ROUND_ROBIN, KVGUARD)
    first, again = course.run(4.0, 3, arms), course.run(4.0, 3, arms)
    assert first == again
    bare, guarded, ours = first
    assert bare.seen.offered == guarded.seen.offered == ours.seen.offered
    assert ours.seen.good >= guarded.seen.good > bare.seen.good
    assert ours.watched.hit_rate > guarded.watched.hit_rate


def routed(arm, good, **fields):
    watched = Watched((2.0, 1.0), 100, 40)
    return Routed(engines=4, seen=visited(arm, good=good, **fields), watched=watched)


def test_the_report_has_every_figure():
    """Ratios over each rival, and a row for each load and arm."""
    results = [routed(arm, 12 if arm == KVGUARD else 8 if arm != ROUND_ROBIN else 1) for arm in ARMS]
    text = report(results)
    assert "| chat | 4 | 4x | over 10, over 10 | 1.50, 1.50 | 1.50, 1.50 | 1.50, 1.50 |" in text
    assert "| 4x | kvguard | 1.20 | 30% | 1.20 | 0% | 1.20 | 0% | 0% | 0.30 | 0.0% | 40% | 1.33 |" in text
    assert text.count("\n| 4x | ") == len(ARMS)
