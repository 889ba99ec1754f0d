"""Who may wait, and who is next."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvguard.admission.waiting import Ticket, WaitingPolicy, WaitingRoom
from tests.kit.properties import deterministic


def room_of(*tickets: Ticket, **policy: float) -> WaitingRoom:
    room = WaitingRoom(WaitingPolicy(**{"max_requests": 100, **policy}))
    for ticket in tickets:
        assert room.enter(ticket)
    return room


def drawn(room: WaitingRoom, most: int = 1000) -> list[str]:
    """Serve one after another; the tenants in the order they were served."""
    served = []
    while len(room) and len(served) < most:
        ticket = next(room.in_order())
        room.serve(ticket)
        served.append(ticket.tenant)
    return served


def tickets(tenant: str, count: int, **fields: float) -> list[Ticket]:
    return [Ticket(tenant=tenant, **fields) for _ in range(count)]


def test_the_room_is_shut_unless_it_is_opened() -> None:
    """By default nobody waits."""
    assert not WaitingRoom(WaitingPolicy()).enter(Ticket())


@pytest.mark.parametrize(("waiting", "room_for_more"), [(0, True), (1, True), (2, False)])
def test_only_so_many_may_wait(waiting: int, room_for_more: bool) -> None:
    """The third is turned away from a room for two."""
    assert room_of(*tickets("a", waiting), max_requests=2).enter(Ticket()) is room_for_more


@pytest.mark.parametrize(("size", "fits"), [(40, True), (41, False)])
def test_only_so_many_bytes_may_wait(size: int, fits: bool) -> None:
    """What is held in memory is bounded; what leaves makes room."""
    first = Ticket(size_bytes=60)
    room = room_of(first, max_bytes=100)
    assert room.enter(Ticket(size_bytes=size)) is fits
    room.leave(first)
    assert room.enter(Ticket(size_bytes=60))


def test_first_come_first_served_within_a_tenant() -> None:
    """Whatever they cost."""
    asked = [Ticket(cost=cost) for cost in (5.0, 1.0, 3.0)]
    assert list(room_of(*asked).in_order()) == asked


def test_tenants_share_by_tokens_not_by_requests() -> None:
    """Of two with equal weight the one with requests ten times as large gets a tenth as many of them."""
    room = room_of(*tickets("large", 10, cost=1000.0), *tickets("small", 80, cost=100.0))
    served = drawn(room, 44)
    assert 3 <= served.count("large") <= 5


def test_a_weight_is_a_share() -> None:
    """Three times the weight, three times the tokens."""
    room = room_of(*tickets("a", 40, weight=3.0), *tickets("b", 40))
    served = drawn(room, 40)
    assert served.count("a") == 30


def test_a_flood_does_not_delay_another_tenant() -> None:
    """Who comes after a hundred requests of somebody else waits for at most one of them."""
    room = room_of(*tickets("flood", 90))
    drawn(room, 20)
    room.enter(Ticket(tenant="late"))
    assert "late" in drawn(room, 2)


def test_silence_is_not_saved_up() -> None:
    """A tenant that was away while others were served gets no more than its share when it is back."""
    room = room_of(*tickets("a", 60))
    drawn(room, 30)
    for ticket in tickets("b", 30):
        room.enter(ticket)
    assert 9 <= drawn(room, 20).count("b") <= 11


def test_what_was_given_is_remembered_while_others_wait() -> None:
    """Leaving an empty line and coming back at once does not reset a tenant's counter."""
    room = room_of(Ticket(tenant="a", cost=100.0), *tickets("b", 50))
    assert drawn(room, 1) == ["a"]
    room.enter(Ticket(tenant="a"))
    assert drawn(room, 40) == ["b"] * 40


def test_a_higher_priority_goes_first_whatever_it_was_given() -> None:
    """Ranks are strict; within one, tenants share."""
    room = room_of(*tickets("low", 2, rank=2), *tickets("a", 2, rank=1), *tickets("b", 2, rank=1))
    assert drawn(room) == ["a", "b", "a", "b", "low", "low"]


def test_an_empty_room_has_forgotten_everything() -> None:
    """Once nobody waits nothing is kept of anybody."""
    room = room_of(*(Ticket(tenant=str(n), cost=1e6, blocks=0.1, size_bytes=5) for n in range(50)))
    drawn(room)
    assert (len(room), room.size_bytes, room.blocks, list(room.in_order())) == (0, 0, 0.0, [])
    room.enter(Ticket(tenant="new"))
    room.enter(Ticket(tenant="0"))
    assert drawn(room) == ["new", "0"]


def test_tenants_are_forgotten_once_others_have_had_as_much() -> None:
    """A room that is never empty does not remember every tenant that ever waited."""
    room = room_of(*tickets("always", 1))
    for number in range(1000):
        room.enter(Ticket(tenant=str(number)))
        room.serve(next(t for t in room.in_order() if t.tenant == str(number)))
        room.enter(Ticket(tenant="always"))
        room.serve(next(t for t in room.in_order() if t.tenant == "always"))
    assert len(room._lines) < 20


@deterministic
@given(
    plan=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.floats(0.1, 1e4)), max_size=30),
    seed=st.integers(0, 2**32),
)
def test_everybody_who_waits_is_served_once(plan: list[tuple[str, int, float]], seed: int) -> None:
    """In whatever order they come, leave and are served, the room's sums are those of who is in it."""
    rng, room = random.Random(seed), WaitingRoom(WaitingPolicy(max_requests=30))
    inside: list[Ticket] = []
    for tenant, rank, cost in plan:
        ticket = Ticket(tenant=tenant, rank=rank, cost=cost, size_bytes=rng.randint(0, 9))
        assert room.enter(ticket)
        inside.append(ticket)
        if rng.random() < 0.4:
            gone = rng.choice(inside)
            inside.remove(gone)
            rng.choice((room.leave, room.serve))(gone)
        ordered = list(room.in_order())
        assert sorted(map(id, ordered)) == sorted(map(id, inside))
        assert [t.rank for t in ordered] == sorted(t.rank for t in inside)
        assert (len(room), room.size_bytes) == (len(inside), sum(t.size_bytes for t in inside))
