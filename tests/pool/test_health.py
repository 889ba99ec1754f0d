"""When a backend is left alone, and for how long."""

import pytest

from kvguard.pool.health import Health, HealthPolicy, Standing

POLICY = HealthPolicy(failures=3, eject_seconds=5.0, max_eject_seconds=12.0)


def ejected(at: float = 10.0) -> Health:
    """A backend that has just failed three requests in a row."""
    health = Health(POLICY)
    for _ in range(3):
        health.failed(sent_at=at - 1, now=at)
    return health


def test_so_many_failures_in_a_row_eject() -> None:
    """One less does nothing, and an answer in between begins anew."""
    health = Health(POLICY)
    told = [health.failed(sent_at=0.0, now=1.0) for _ in range(2)]
    assert health.answered(sent_at=0.0) is False
    told += [health.failed(sent_at=0.0, now=1.0) for _ in range(3)]
    assert told == [False, False, False, False, True]
    assert (health.takes(1.0), health.standing(1.0), health.ejections) == (False, Standing.EJECTED, 1)


def test_one_request_finds_out_and_the_next_waits_for_it() -> None:
    """Once the time is over it takes one, and no other before that one has had as long to tell."""
    health = ejected()
    assert [health.takes(now) for now in (14.9, 15.0)] == [False, True]
    assert health.standing(15.0) is Standing.PROBED
    health.sent(15.0)
    assert [health.takes(now) for now in (15.0, 19.9, 20.0)] == [False, False, True]


def test_an_answer_brings_it_back() -> None:
    """With a clean slate: the next ejection is as short as the first."""
    health = ejected()
    health.failed(sent_at=15.0, now=15.5)
    assert health.answered(sent_at=25.5) is True
    assert (health.standing(25.5), health.takes(25.5)) == (Standing.IN, True)
    for _ in range(3):
        health.failed(sent_at=26.0, now=26.0)
    assert health.closed_until == 31.0


def test_each_failed_attempt_doubles_the_time_up_to_a_limit() -> None:
    """5 s, 10 s, then no longer than 12."""
    health, now, times = ejected(), 10.0, []
    for _ in range(3):
        times.append(health.closed_until - now)
        now = health.closed_until
        health.sent(now)
        assert health.failed(sent_at=now, now=now) is True
    assert times == [5.0, 10.0, 12.0]
    assert health.ejections == 4


def test_what_was_sent_before_the_ejection_tells_nothing() -> None:
    """Neither the other requests that died with it nor a long answer that ends well."""
    health = ejected(10.0)
    assert [health.failed(sent_at=9.0, now=11.0), health.answered(sent_at=9.0)] == [False, False]
    assert (health.closed_until, health.ejections, health.standing(11.0)) == (15.0, 1, Standing.EJECTED)


def test_it_may_be_switched_off() -> None:
    """No number of failures ejects then."""
    health = Health(HealthPolicy(failures=None))
    assert not any(health.failed(sent_at=0.0, now=0.0) for _ in range(100))
    assert health.takes(0.0)


@pytest.mark.parametrize(
    ("drained", "leaving", "standing"),
    [(True, False, Standing.DRAINED), (False, True, Standing.LEAVING), (True, True, Standing.LEAVING)],
)
def test_what_nobody_wants_takes_nothing(*, drained: bool, leaving: bool, standing: Standing) -> None:
    """However well it works."""
    health = Health(POLICY)
    health.drained, health.leaving = drained, leaving
    assert (health.wanted, health.takes(0.0), health.standing(0.0)) == (False, False, standing)
