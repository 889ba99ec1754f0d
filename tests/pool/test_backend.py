"""A backend: tiers, endings, and what it learns of lengths."""

from dataclasses import replace

import pytest

from kvguard.admission.footprint import Demand
from kvguard.admission.ledger import ReservationState
from kvguard.admission.lengths import LengthPolicy
from kvguard.admission.occupancy import OccupancyPolicy
from kvguard.admission.tiers import TierPolicy
from kvguard.pool.backend import Backend, new_backend

ASKED = Demand(prompts=(16,), output_cap=1024, asked_cap=1024, expected_output=1024)


def backend(lengths: list[int] = (), *, demand: Demand = ASKED) -> Backend:
    made = new_backend("b", "http://b", OccupancyPolicy(), LengthPolicy(quantile=0.5, min_answers=3))
    for length in lengths:
        made.learn(demand, length)
    return made


def forecast(made: Backend, produced: int = 0) -> int | None:
    return made.occupancy.lengths.expected(cap=1024, produced=produced)


def test_an_answer_that_ends_by_itself_counts_as_it_was() -> None:
    """Under the full cap and under a lowered one it did not reach."""
    assert forecast(backend([10, 10, 10])) == 10
    trimmed = ASKED.with_cap(64)
    assert forecast(backend([10, 10, 10], demand=trimmed)) == 10


def test_an_answer_cut_by_a_lowered_cap_counts_with_those_that_got_that_far() -> None:
    """Trimming does not teach that answers are short: what is known of longer ones, else the asked cap, stands in."""
    trimmed = ASKED.with_cap(64)
    made = backend([10] * 4 + [300] * 4)
    for _ in range(20):
        made.learn(trimmed, 64)
    assert forecast(made) == pytest.approx(300, rel=0.13)
    assert forecast(backend([64, 64, 64], demand=trimmed)) == pytest.approx(1024, rel=0.13)


def test_an_answer_cut_by_its_own_cap_counts_as_it_was() -> None:
    """The client asked for no more."""
    own = replace(ASKED, output_cap=64, asked_cap=64, expected_output=64)
    made = backend([64, 64, 64], demand=own)
    assert made.occupancy.lengths.expected(cap=64, produced=0) == 64


def test_the_tier_stays_while_nothing_is_known() -> None:
    """Without a capacity there is no ratio and no change."""
    assert backend().retier(TierPolicy(), 1.0) is None


def test_freed_blocks_count_once() -> None:
    """Ending a reservation again frees nothing more."""
    made = backend()
    reservation = made.reserve(ASKED, 0.0)
    made.end(reservation, ReservationState.SETTLED, 1.0)
    made.end(reservation, ReservationState.RELEASED, 1.0)
    assert made.freed_blocks.value(1.0) == 16
