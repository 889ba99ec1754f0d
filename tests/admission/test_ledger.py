"""Reservations from beginning to end: what they hold, when they end, and what is remembered of them."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvguard.admission.blocks import BlockRule
from kvguard.admission.footprint import Demand
from kvguard.admission.ledger import Ledger, Reservation, ReservationState
from kvguard.admission.prefix import PrefixMark
from tests.admission.build import RULE, demand, demands, learned
from tests.kit.properties import deterministic

SETTLED, RELEASED = ReservationState.SETTLED, ReservationState.RELEASED


def ledger_of(rule: BlockRule = RULE, **fields: float) -> Ledger:
    ledger = Ledger(learned(), **fields)
    ledger.recount(rule)
    return ledger


def reserve(ledger: Ledger, asked: Demand, *, now: float = 0.0) -> Reservation:
    return ledger.reserve(asked, now=now)


def held_by(reservation: Reservation) -> int:
    """The blocks of one reservation, counted from scratch."""
    demand, produced = reservation.demand, reservation.produced
    return demand.copies * sum(-(-(tokens + produced) // RULE.block_size) for tokens in demand.prompts)


def totals(ledger: Ledger) -> tuple[int, int, int, int]:
    return ledger.live, ledger.sequences, ledger.held_blocks, ledger.reserved_blocks


def test_an_empty_ledger_counts_nothing() -> None:
    """Nothing reserved: no requests, sequences or blocks, and nothing freed."""
    ledger = ledger_of()
    assert totals(ledger) == (0, 0, 0, 0)
    assert ledger.profile.peak == 0
    assert ledger.held_before(1e9) == 0
    assert ledger.freed_since(0.0, begun_before=1e9) == 0
    assert ledger.violations == 0


def test_a_reservation_counts_its_prompt_at_once_and_its_output_as_reserved() -> None:
    """Held are the blocks of the prompts, reserved those of whole answers; equal demands are separate entries."""
    ledger = ledger_of()
    reserve(ledger, demand(10, 20, 30, cap=20, copies=2))
    assert totals(ledger) == (1, 6, 10, 18)
    reserve(ledger, demand(16, cap=16))
    reserve(ledger, demand(16, cap=16))
    assert totals(ledger) == (3, 8, 12, 22)


@pytest.mark.parametrize(
    ("produced", "held", "reserved"),
    [(0, 1, 3), (1, 2, 3), (16, 2, 3), (17, 3, 3), (32, 3, 3), (33, 4, 4)],
)
def test_progress_holds_a_block_once_it_is_begun(produced: int, held: int, reserved: int) -> None:
    """A prompt of one block grows with its output; beyond the expectation the reservation grows with it."""
    ledger = ledger_of()
    reservation = reserve(ledger, demand(16, cap=32))
    ledger.progress(reservation, produced)
    assert (ledger.held_blocks, ledger.reserved_blocks) == (held, reserved)
    assert ledger.violations == 0


def test_progress_never_goes_back() -> None:
    """Old news does not free what newer news has shown to be held."""
    ledger = ledger_of()
    reservation = reserve(ledger, demand(16, cap=32))
    ledger.progress(reservation, 17)
    ledger.progress(reservation, 1)
    assert reservation.produced == 17
    assert ledger.held_blocks == 3


def test_answers_are_foreseen_from_where_they_stand() -> None:
    """Two prompts of two copies each grow to what is expected of them; what was learned counts as they grow."""
    lengths = learned()
    ledger = Ledger(lengths)
    ledger.recount(RULE)
    reservation = reserve(ledger, demand(10, 20, cap=20, copies=2))
    assert ledger.profile.peak == 2 * (2 + 3)
    lengths.observe(4, cap=20)
    assert ledger.profile.peak == 2 * (2 + 3)
    ledger.progress(reservation, 1)
    assert ledger.profile.peak == 2 * (1 + 2)
    ledger.progress(reservation, 6)
    assert ledger.profile.peak == 2 * (1 + 2)
    ledger.progress(reservation, 7)
    assert ledger.profile.peak == 2 * (2 + 3)
    assert ledger.course(demand(15, cap=20)).final_blocks == 2


def test_an_answer_without_new_blocks_is_foreseen_anew_all_the_same() -> None:
    """With blocks larger than any answer the rest still shrinks as it is generated, every 32 tokens."""
    ledger = ledger_of(BlockRule.plain(4096))
    reservation = reserve(ledger, demand(10, cap=100))
    for produced, remaining in ((1, 99), (32, 99), (33, 67), (64, 67), (65, 35)):
        ledger.progress(reservation, produced)
        assert reservation.course.remaining == remaining


@pytest.mark.parametrize(("produced", "now", "pace"), [(0, 20.0, None), (30, 20.0, 3.0), (30, 40.0, 1.0)])
def test_the_pace_is_that_of_the_streams_that_run(produced: int, now: float, pace: float | None) -> None:
    """Tokens over age, of streams that have begun to answer; what cannot be watched tells nothing."""
    ledger = ledger_of()
    first = reserve(ledger, demand(16, cap=100), now=10.0)
    ledger.progress(first, produced)
    ledger.progress(reserve(ledger, demand(16, cap=100, streamed=False), now=10.0), 80)
    reserve(ledger, demand(16, cap=100), now=0.0)
    assert ledger.tokens_per_second(now) == pace


def test_the_pace_is_remembered_when_nothing_runs() -> None:
    """That of the stream that ended last counts until another one has begun."""
    ledger = ledger_of()
    first = reserve(ledger, demand(16, cap=100), now=10.0)
    ledger.progress(first, 30)
    ledger.end(first, SETTLED, now=20.0)
    silent = reserve(ledger, demand(16, cap=100), now=20.0)
    assert ledger.tokens_per_second(99.0) == 3.0
    ledger.end(silent, RELEASED, now=30.0)
    assert ledger.tokens_per_second(99.0) == 3.0


@pytest.mark.parametrize("state", [SETTLED, RELEASED])
def test_an_ending_takes_everything_back(state: ReservationState) -> None:
    """After either ending the ledger is empty and the reservation says how it ended."""
    ledger = ledger_of()
    reservation = reserve(ledger, demand(10, 20, 30, cap=20, copies=2))
    ledger.progress(reservation, 9)
    assert ledger.end(reservation, state, now=1.0) is True
    assert reservation.state is state
    assert totals(ledger) == (0, 0, 0, 0)


@pytest.mark.parametrize("second", [SETTLED, RELEASED])
@pytest.mark.parametrize("first", [SETTLED, RELEASED])
def test_a_reservation_ends_once(first: ReservationState, second: ReservationState) -> None:
    """A later ending does nothing, is no violation, and does not free the blocks a second time."""
    ledger = ledger_of()
    other = reserve(ledger, demand(16, cap=16))
    reservation = reserve(ledger, demand(16, cap=16))
    assert ledger.end(reservation, first, now=1.0) is True
    assert ledger.end(reservation, second, now=2.0) is False
    assert reservation.state is first
    assert totals(ledger) == (1, 1, 1, 2)
    assert ledger.freed_blocks == 1
    assert ledger.freed_since(0.0, begun_before=9.0) == 1
    assert ledger.violations == 0
    assert other.state is ReservationState.LIVE


def test_news_of_an_ended_reservation_is_a_violation() -> None:
    """It is counted and changes nothing, neither the live sum nor what was freed."""
    ledger = ledger_of()
    reservation = reserve(ledger, demand(16, cap=32))
    ledger.end(reservation, SETTLED, now=1.0)
    ledger.progress(reservation, 20)
    assert ledger.violations == 1
    assert reservation.produced == 0
    assert totals(ledger) == (0, 0, 0, 0)
    assert ledger.freed_since(0.0, begun_before=9.0) == 1


@pytest.mark.parametrize(("moment", "blocks"), [(9.9, 0), (10.0, 0), (10.1, 1), (11.0, 1), (11.1, 3)])
def test_held_before_counts_what_a_scrape_can_have_seen(moment: float, blocks: int) -> None:
    """A reservation of that very moment is not before it."""
    ledger = ledger_of()
    reserve(ledger, demand(16), now=10.0)
    reserve(ledger, demand(32), now=11.0)
    assert ledger.held_before(moment) == blocks


@pytest.mark.parametrize(("moment", "blocks"), [(10.0, 0), (10.1, 2), (11.1, 2), (12.1, 4)])
def test_those_that_generate_hold_all_their_blocks(moment: float, blocks: int) -> None:
    """A prompt that is still computed may hold anything yet."""
    ledger = ledger_of()
    ledger.progress(reserve(ledger, demand(16), now=10.0), 1)
    reserve(ledger, demand(160), now=11.0)
    ledger.progress(reserve(ledger, demand(16), now=12.0), 1)
    assert ledger.generating_before(moment) == blocks


@pytest.mark.parametrize(
    ("moment", "begun_before", "blocks"),
    [
        (19.9, 99.0, 3),
        (20.0, 99.0, 3),
        (20.1, 99.0, 2),
        (21.0, 99.0, 2),
        (21.1, 99.0, 0),
        (0.0, 10.0, 0),
        (0.0, 10.1, 1),
        (0.0, 11.0, 1),
        (0.0, 11.1, 3),
    ],
)
def test_freed_since_counts_what_a_scrape_may_still_show(moment: float, begun_before: float, blocks: int) -> None:
    """An ending of that very moment counts; a reservation that began too late to be seen does not."""
    ledger = ledger_of()
    first, second = reserve(ledger, demand(16), now=10.0), reserve(ledger, demand(32), now=11.0)
    ledger.end(first, RELEASED, now=20.0)
    ledger.end(second, SETTLED, now=21.0)
    assert ledger.freed_since(moment, begun_before=begun_before) == blocks


@pytest.mark.parametrize(("now", "blocks"), [(39.9, 2), (40.0, 2), (40.1, 1)])
def test_endings_are_forgotten_in_time(now: float, blocks: int) -> None:
    """The next ending drops those older than what is to be remembered, and not one of exactly that age."""
    ledger = ledger_of(remember_seconds=30.0)
    first, second = reserve(ledger, demand(16)), reserve(ledger, demand(16))
    ledger.end(first, SETTLED, now=10.0)
    ledger.end(second, SETTLED, now=now)
    assert ledger.freed_since(0.0, begun_before=99.0) == blocks


@pytest.mark.parametrize(("block_size", "held", "reserved"), [(1, 26, 42), (16, 2, 3), (26, 1, 2), (25, 2, 2)])
def test_a_block_size_learned_later_counts_for_what_is_live(block_size: int, held: int, reserved: int) -> None:
    """What was entered in single tokens is counted in the engine's blocks, with what it has produced by then."""
    ledger = Ledger(learned())
    reservation = ledger.reserve(demand(16, cap=26), now=0.0)
    ledger.progress(reservation, 10)
    ledger.recount(BlockRule.plain(block_size))
    assert (ledger.held_blocks, ledger.reserved_blocks) == (held, reserved)
    ledger.progress(reservation, 10)
    assert ledger.held_blocks == held


def test_what_was_freed_is_counted_in_the_blocks_learned_later() -> None:
    """Sixty-four tokens that ended before the block size was known were four blocks."""
    ledger = Ledger(learned())
    ledger.end(reserve(ledger, demand(64)), SETTLED, now=1.0)
    ledger.recount(RULE)
    assert ledger.freed_since(0.0, begun_before=9.0) == 4


def test_twenty_thousand_endings_cost_no_more_each_than_the_first() -> None:
    """What is remembered is dropped from one end, one by one, and stays within the time it is remembered for."""
    ledger = ledger_of(remember_seconds=1.0)
    for number in range(20_000):
        now = number / 2_000
        ledger.end(reserve(ledger, demand(16), now=now), SETTLED, now=now)
    assert ledger.freed_since(0.0, begun_before=99.0) == 2_001


@deterministic
@given(asked=st.lists(demands(), min_size=1, max_size=8), seed=st.integers(0, 2**32))
def test_all_ended_is_an_empty_ledger(asked: list[Demand], seed: int) -> None:
    """Whatever the order of progress and endings, sums equal those of the live ones, and all ended means nothing."""
    rng = random.Random(seed)
    ledger = ledger_of()
    live = [reserve(ledger, one, now=float(now)) for now, one in enumerate(asked)]
    while live:
        chosen = rng.choice(live)
        ledger.progress(chosen, rng.randrange(500))
        if rng.random() < 0.5:
            assert ledger.end(chosen, rng.choice([SETTLED, RELEASED]), now=100.0)
            live.remove(chosen)
        assert ledger.live == len(live)
        assert ledger.sequences == sum(one.demand.sequences for one in live)
        assert ledger.held_blocks == sum(held_by(one) for one in live)
        assert ledger.reserved_blocks >= ledger.held_blocks
    assert totals(ledger) == (0, 0, 0, 0)
    assert ledger.violations == 0


def test_a_better_count_corrects_what_is_live() -> None:
    """A prompt counted exactly later is held as it is; what has ended stays ended."""
    ledger = ledger_of()
    reservation = ledger.reserve(demand(160, cap=16, slack_tokens=40, estimated=True), now=0.0)
    exact = demand(100, cap=999, prefix=(PrefixMark(1, 50),))
    ledger.amend(reservation, reservation.demand.with_prompts_of(exact))
    assert (reservation.demand, ledger.held_blocks, ledger.reserved_blocks) == (
        demand(100, cap=16, prefix=exact.prefix),
        7,
        8,
    )
    ledger.end(reservation, ReservationState.SETTLED, now=1.0)
    ledger.amend(reservation, demand(1600))
    assert (ledger.held_blocks, ledger.live) == (0, 0)


@deterministic
@given(asked=st.lists(st.tuples(demands(), st.sampled_from("ab")), max_size=6), seed=st.integers(0, 10))
def test_a_tenants_tally_is_the_sum_over_its_reservations(asked: list[tuple[Demand, str]], seed: int) -> None:
    """Through progress, better counts, other block rules and endings; who has none left is forgotten."""
    rng, ledger = random.Random(seed), Ledger(learned())
    live = [ledger.reserve(one, now=0.0, tenant=tenant) for one, tenant in asked]
    while live:
        chosen = rng.choice(live)
        ledger.progress(chosen, rng.randrange(500))
        ledger.amend(chosen, chosen.demand.with_prompts_of(demand(rng.randrange(500))))
        ledger.recount(BlockRule.plain(rng.choice((8, 16))))
        if rng.random() < 0.5:
            ledger.end(chosen, SETTLED, now=1.0)
            live.remove(chosen)
        sums = {
            tenant: (len(own), sum(one.reserved_blocks for one in own))
            for tenant in "ab"
            if (own := [one for one in live if one.tenant == tenant])
        }
        assert {name: (tally.live, tally.reserved_blocks) for name, tally in ledger.tenants.items()} == sums
    assert ledger.tenants == {}


def test_a_request_prefills_until_its_first_token() -> None:
    """A stream shows it; another answer is taken to be past it once a scrape that began after it is in."""
    ledger = ledger_of()
    copies, short, hidden, later = (
        reserve(ledger, asked, now=now)
        for asked, now in (
            (demand(10, 20, copies=3), 0.0),
            (demand(5), 0.0),
            (demand(100, streamed=False), 0.0),
            (demand(1000, streamed=False), 2.0),
        )
    )
    assert (ledger.prefill_tokens, ledger.awaited_streams) == (1135, 2)
    ledger.progress(copies, 1)
    assert (ledger.prefill_tokens, ledger.awaited_streams) == (1105, 1)
    ledger.grow_unstreamed(0.0, begun_before=2.0)
    assert (ledger.prefill_tokens, ledger.awaited_streams) == (1005, 1)
    ledger.amend(short, demand(7))
    assert ledger.prefill_tokens == 1007
    for reservation in (copies, short, hidden, later):
        ledger.end(reservation, RELEASED, now=3.0)
    assert (ledger.prefill_tokens, ledger.awaited_streams) == (0, 0)


def test_what_generates_nothing_holds_its_prompts_to_its_end() -> None:
    """Held, reserved and foreseen are the same, and its end, with a usage of no tokens, frees all."""
    ledger = ledger_of()
    entry = reserve(ledger, demand(10, 20, cap=0, fixed_length=True))
    assert totals(ledger) == (1, 2, 3, 3)
    assert ledger.profile.peak == 3
    ledger.progress(entry, 0)
    assert ledger.end(entry, SETTLED, now=1.0)
    assert totals(ledger) == (0, 0, 0, 0)
    assert ledger.profile.peak == 0
    assert ledger.violations == 0


def test_those_in_flight_are_listed_oldest_first() -> None:
    """An ended one is not among them."""
    ledger = ledger_of()
    first, second, third = (reserve(ledger, demand(16, cap=16), now=float(number)) for number in range(3))
    ledger.end(second, ReservationState.RELEASED, now=3.0)
    assert list(ledger.reservations) == [first, third]
