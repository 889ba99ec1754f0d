"""When a refused client should come back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvguard.admission.retry import Appointments, FadingSum, RetryPolicy, retry_after_seconds
from tests.kit.properties import deterministic


@pytest.mark.parametrize(
    ("seconds", "left"), [(0.0, 8.0), (10.0, 4.0), (20.0, 2.0), (30.0, 1.0), (5.0, 8.0 / 2**0.5), (1000.0, 0.0)]
)
def test_half_is_left_after_each_half_life(seconds: float, left: float) -> None:
    """A single amount halves every half-life."""
    total = FadingSum(half_life_seconds=10.0)
    total.add(8.0, now=100.0)
    assert total.value(100.0 + seconds) == pytest.approx(left)


def test_amounts_of_different_ages_add_up() -> None:
    """What is added joins what is left of before, and reading changes nothing."""
    total = FadingSum(half_life_seconds=10.0)
    total.add(8.0, now=0.0)
    assert total.value(5.0) == total.value(5.0)
    total.add(1.0, now=10.0)
    assert total.value(10.0) == pytest.approx(5.0)
    assert total.value(20.0) == pytest.approx(2.5)


def test_nothing_added_is_nothing_at_any_time() -> None:
    """An empty sum is zero however late it is read, and so is its rate."""
    assert FadingSum().value(1e12) == 0.0
    assert FadingSum().per_second(1e12) == 0.0


@pytest.mark.parametrize("per_second", [0.5, 10.0, 300.0])
def test_a_steady_stream_gives_its_own_rate(per_second: float) -> None:
    """After ten half-lives the rate is that of the stream, within a hundredth."""
    total = FadingSum(half_life_seconds=10.0)
    for step in range(1000):
        total.add(per_second / 10, now=step / 10)
    assert total.per_second(100.0) == pytest.approx(per_second, rel=0.01)


@pytest.mark.parametrize(
    ("expected", "share", "seconds"),
    [
        (2.0, 0.0, 2.0),
        (2.0, 0.5, 2.5),
        (2.0, 1.0, 3.0),
        # At least a second.
        (1.01, 0.0, 1.01),
        (1.0, 0.0, 1.0),
        (0.99, 0.0, 1.0),
        (0.0, 0.0, 1.0),
        (-50.0, 0.0, 1.0),
        # At most thirty before the spread.
        (29.9, 0.0, 29.9),
        (30.0, 0.0, 30.0),
        (30.1, 0.0, 30.0),
        (30.1, 1.0, 45.0),
        (float("inf"), 0.0, 30.0),
        # Nothing is known.
        (None, 0.0, 5.0),
        (None, 1.0, 7.5),
    ],
)
def test_how_long_to_wait(expected: float | None, share: float, seconds: float) -> None:
    """The expected wait, or five seconds without one, within 1..30 seconds, stretched by up to half."""
    least, most = retry_after_seconds(expected, RetryPolicy(spread=0.5))
    assert least + share * (most - least) == pytest.approx(seconds)


@deterministic
@given(
    expected=st.none() | st.floats(-1e6, 1e9),
    least=st.floats(0.001, 75),
    extra=st.floats(0, 75),
    spread=st.floats(0, 1),
)
def test_a_wait_is_within_its_bounds(expected: float | None, least: float, extra: float, spread: float) -> None:
    """Never below the least, never above the most plus its spread."""
    policy = RetryPolicy(min_seconds=least, max_seconds=least + extra, spread=spread)
    shortest, longest = retry_after_seconds(expected, policy)
    assert policy.min_seconds <= shortest <= longest <= policy.max_seconds * (1 + spread)


def promised(*earliest: float, blocks: float = 10.0, latest: float = 1000.0) -> list[float]:
    """Appointments of refusals that could come back at these times, while four blocks a second come free."""
    appointments, given = Appointments(), []
    for each in earliest:
        given.append(appointments.next(earliest=each, latest=each + latest))
        appointments.take(given[-1], blocks=blocks, blocks_per_second=4.0)
    return given


def test_clients_come_back_one_after_another() -> None:
    """Each is given the time that half of what drains needs for those before it; a pause is not made up for."""
    assert promised(100.0, 100.0, 101.0, 200.0, 200.0) == [100.0, 105.0, 110.0, 200.0, 205.0]


def test_no_appointment_is_later_than_a_client_would_wait() -> None:
    """What does not fit before is told the latest time there is."""
    assert promised(0.0, 0.0, 0.0, 0.0, blocks=40.0, latest=30.0) == [0.0, 20.0, 30.0, 30.0]
