"""Who may be asked about a request."""

import pytest

from kvguard.admission.footprint import Demand
from kvguard.pool.affinity import Trail
from kvguard.pool.backend import Backend
from kvguard.pool.pool import NO_HINTS, Pool, RoutingHints, RoutingPolicy, shortlist
from tests.kit.explaining import backend_at

NOW = 0.0


def backend(name: str, used: float = 0.5, *models: str, prompts: range | None = None) -> Backend:
    made = backend_at(name, used)
    made.models = frozenset(models or ("m",))
    made.prompts = prompts or made.prompts
    return made


def asked(pool: Pool, model: str | None = "m", hints: RoutingHints = NO_HINTS) -> list[str]:
    return [each.name for each in pool.asked(model, NOW, hints)]


def test_those_that_list_the_model_are_asked() -> None:
    """All are where none does."""
    pool = Pool((backend("a", 0.6), backend("b", 0.2), backend("c", 0.1, "other")))
    assert asked(pool) == ["a", "b"]
    assert asked(pool, "nobody's") == asked(pool, None) == ["a", "b", "c"]


def test_a_model_that_nobody_lists_may_be_one_of_those_that_keep_their_list_to_themselves() -> None:
    """A server whose list takes a key is asked before one that is known to have other models."""
    hidden = backend("hidden", 0.9)
    hidden.models = frozenset()
    pool = Pool((backend("a", 0.1), hidden))
    assert (asked(pool, "m"), asked(pool, "nobody's"), asked(pool, None)) == (["a"], ["hidden"], ["a", "hidden"])


def test_who_answers_is_everybody_but_those_that_leave_or_cannot_be_reached() -> None:
    """Unless nobody can be reached; one that is drained still answers."""
    a, b, c = [backend(name) for name in "abc"]
    pool = Pool((a, b, c))
    a.health.leaving, b.health.drained = True, True
    assert pool.answering(NOW) == (b, c)
    for _ in range(3):
        c.occupancy.miss(reached=False)
    assert pool.answering(NOW) == (b,)
    for _ in range(3):
        b.occupancy.miss(reached=False)
    assert pool.answering(NOW) == (b, c)


def test_those_that_come_and_go() -> None:
    """Who joins is asked, who is removed is not, and a pool may be empty."""
    pool, a = Pool(), backend("a")
    assert asked(pool) == []
    pool.add(a)
    assert (asked(pool), pool.named("a"), pool.named("b")) == (["a"], a, None)
    pool.remove(a)
    assert asked(pool) == []


def test_long_prompts_are_kept_to_their_backends() -> None:
    """And short ones to theirs; a length that nobody takes goes anywhere."""
    pool = Pool((backend("short", 0.1, prompts=range(1001)), backend("long", 0.9, prompts=range(500, 9001))))
    lengths = {0: ["short"], 499: ["short"], 500: ["short", "long"], 1000: ["short", "long"], 1001: ["long"]}
    lengths |= {9000: ["long"], 9001: ["short", "long"]}
    for tokens, names in lengths.items():
        assert asked(pool, hints=RoutingHints(prompt_tokens=tokens)) == names, tokens


@pytest.mark.parametrize("what", ["unreachable", "ejected"])
def test_one_that_fails_is_left_out_unless_all_do(what: str) -> None:
    """Alone it is asked all the same: the attempt tells."""
    a, b = backend("a", 0.1), backend("b", 0.9)
    pool = Pool((a, b))
    for each, names in ((a, ["b"]), (b, ["a", "b"])):
        for _ in range(5):
            if what == "unreachable":
                each.occupancy.miss(reached=False)
            else:
                each.health.failed(sent_at=NOW, now=NOW)
        assert asked(pool) == names


def test_one_that_is_drained_or_leaves_is_left_out_even_if_nobody_else_serves_the_model() -> None:
    """Another model's server would only say that it does not know it."""
    a, b, other = backend("a"), backend("b"), backend("other", 0.5, "x")
    pool = Pool((a, b, other))
    a.health.drained = True
    assert asked(pool) == ["b"]
    b.health.leaving = True
    assert asked(pool) == []
    assert asked(pool, "x") == ["other"]


def test_one_that_was_tried_is_not_asked_again() -> None:
    """Not even if it is the only one."""
    a, b = backend("a"), backend("b")
    assert asked(Pool((a, b)), hints=RoutingHints(without=frozenset({a}))) == ["b"]
    assert asked(Pool((a,)), hints=RoutingHints(without=frozenset({a}))) == []


def test_what_is_remembered_of_prompts() -> None:
    """Where one went is preferred as long as it is there; nothing is without a trail, or switched off."""
    a, b = backend("a"), backend("b")
    pool, trail = Pool((a, b)), Trail(parts=(1,))
    pool.sent(a, trail, NOW)
    assert (pool.preferred(trail), pool.preferred(Trail())) == (a, None)
    pool.remove(a)
    assert pool.preferred(trail) is b
    off = Pool((a, b), RoutingPolicy(affinity_margin=0.0))
    off.sent(a, trail, NOW)
    assert off.preferred(trail) is None


def test_of_many_those_that_promised_least_come_first_and_the_preferred_one() -> None:
    """Promised is what gauge and ledger come to; an unknown capacity counts by its requests. None twice, and none that
    may not be asked; a few are all looked at.
    """
    many = [backend(str(number), number / 10) for number in range(8, 0, -1)]
    unknown = backend_at("unknown", None)
    unknown.reserve(Demand(prompts=(16,), output_cap=1, asked_cap=1, expected_output=1), NOW)
    for preferred, names in ((None, "1"), (many[0], "18"), (many[-1], "1"), (backend("gone"), "1")):
        assert [each.name for each in shortlist([*many, unknown], preferred)] == list(names)
    assert shortlist(many[:4], many[0]) == many[:4]
