"""Requests that begin alike in the ledger, and the candidate that would be one more of them."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvguard.admission.blocks import BlockRule
from kvguard.admission.decision import AdmissionPolicy, Admit, decide
from kvguard.admission.footprint import Demand
from kvguard.admission.forecast import Forecast
from kvguard.admission.ledger import Claims, Ledger, Reservation, ReservationState
from kvguard.admission.occupancy import Ratios
from kvguard.admission.policy import DegradePolicy
from kvguard.admission.tiers import Tier, TierPolicy
from tests.admission.build import RULE, alike, demand, learned, marks, occupancy, sample
from tests.kit.properties import deterministic

SETTLED = ReservationState.SETTLED
BLOCK = RULE.block_size
# A prompt of ten blocks, of which the first eight may be another's.
PROMPT, PREFIX = 160, marks(0, 0)


def ledger_of(*asked: Demand, rule: BlockRule = RULE) -> tuple[Ledger, list[Reservation]]:
    """Reservations a second apart from each other."""
    ledger = Ledger(learned())
    ledger.recount(rule)
    return ledger, [ledger.reserve(one, now=float(second)) for second, one in enumerate(asked)]


def sharing(**fields: object) -> Demand:
    return demand(PROMPT, **{"cap": 32, "prefix": PREFIX, **fields})


def sums(ledger: Ledger) -> tuple[int, int, int, int]:
    return ledger.shared_blocks, ledger.held_blocks, ledger.reserved_blocks, ledger.profile.peak


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ([sharing()], (0, 10, 12, 12)),
        ([sharing(), sharing()], (8, 12, 16, 16)),
        ([sharing(), sharing(prefix=marks(0, 1))], (4, 16, 20, 20)),
        ([sharing(), sharing(prefix=marks(1, 1))], (0, 20, 24, 24)),
        ([sharing(), sharing(prefix=())], (0, 20, 24, 24)),
        ([sharing(copies=4)], (8, 16, 24, 24)),
        ([sharing(copies=4), sharing()], (8, 18, 28, 28)),
        # Answers that end at different times: three tokens before the end of the short one.
        ([sharing(), sharing(cap=16)], (8, 12, 15, 14)),
    ],
)
def test_what_is_shared_counts_once(asked: list[Demand], expected: tuple[int, int, int, int]) -> None:
    """In what is held, at full length and at the peak."""
    assert sums(ledger_of(*asked)[0]) == expected


def test_what_ends_frees_what_it_alone_held() -> None:
    """The last but one leaves the shared blocks to the last, which frees all that is left."""
    ledger, live = ledger_of(sharing(), sharing(), sharing())
    ledger.progress(live[1], 17)
    freed = [ledger.freed_blocks]
    for reservation in (live[0], live[1], live[2]):
        ledger.end(reservation, SETTLED, now=9.0)
        freed.append(ledger.freed_blocks)
    assert freed == [0, 2, 6, 16]
    assert ledger.freed_since(9.0, begun_before=1.5) == 6
    assert sums(ledger) == (0, 0, 0, 0)


def test_copies_free_what_they_shared_among_themselves() -> None:
    """Their one prompt ends with them."""
    ledger, [alone] = ledger_of(sharing(copies=4))
    ledger.end(alone, SETTLED, now=9.0)
    assert (ledger.freed_blocks, sums(ledger)) == (16, (0, 0, 0, 0))


def test_a_tenant_counts_as_if_nothing_were_shared() -> None:
    """Whoever has the same prompt as another is due no more for it, however often they come and go."""
    ledger, live = ledger_of(sharing(), sharing(copies=2))
    assert ledger.tenants[""].reserved_blocks == 36
    ledger.end(live[0], SETTLED, now=9.0)
    assert ledger.tenants[""].reserved_blocks == 24


@pytest.mark.parametrize(
    ("moment", "held", "fresh"),
    [
        (0.0, 0, Claims(22, 28, 28)),
        (0.5, 10, Claims(12, 16, 16)),
        (1.5, 12, Claims(10, 12, 12)),
        (2.5, 22, Claims()),
    ],
)
def test_what_a_scrape_has_seen_of_shared_blocks(moment: float, held: int, fresh: Claims) -> None:
    """They were there from the first on, so that who comes later adds its own only."""
    ledger, _ = ledger_of(sharing(), sharing(), sharing(prefix=marks(1)))
    ledger.mark(moment)
    assert (ledger.held_before(moment), ledger.fresh) == (held, fresh)


@pytest.mark.parametrize(("generating", "blocks"), [([], 0), ([0], 11), ([0, 1], 14), ([2], 11), ([0, 1, 2], 25)])
def test_the_gauge_shows_shared_blocks_of_those_that_generate(generating: list[int], blocks: int) -> None:
    """One of them that generates holds all; of those that still compute nothing is sure."""
    ledger, live = ledger_of(sharing(), sharing(), sharing(prefix=marks(1)))
    for number in generating:
        ledger.progress(live[number], 1)
    # A prompt of whole blocks begins another with its first token.
    assert ledger.generating_before(9.0) == blocks


def test_another_rule_shares_in_its_own_blocks() -> None:
    """Twice as large, half as many; and none where sharing is not known."""
    ledger, live = ledger_of(sharing(), sharing())
    ledger.recount(BlockRule.plain(2 * BLOCK))
    assert sums(ledger) == (4, 6, 8, 8)
    ledger.recount(replace(RULE, groups=RULE.groups * 2))
    assert sums(ledger)[:2] == (0, 40)
    for reservation in live:
        ledger.end(reservation, SETTLED, now=9.0)
    assert sums(ledger) == (0, 0, 0, 0)


def test_a_better_count_shares_what_is_left_of_it() -> None:
    """A prompt that turns out shorter goes through fewer segments, one of another beginning through none."""
    ledger, live = ledger_of(sharing(), sharing())
    ledger.amend(live[1], live[1].demand.with_prompts_of(demand(100, prefix=PREFIX)))
    assert sums(ledger)[:2] == (4, 10 + 7 - 4)
    ledger.amend(live[1], live[1].demand.with_prompts_of(demand(100)))
    assert sums(ledger)[:2] == (0, 17)


# The sums against a recount


class Recount:
    """The same reservations counted from scratch; kept are the way of each through the segments, and their sizes."""

    def __init__(self) -> None:
        self.ends: dict[int, int] = {}
        self.paths: dict[Reservation, list[int]] = {}

    def enter(self, reservation: Reservation, asked: Demand) -> None:
        path: list[int] = []
        for mark in asked.prefix:
            before = self.ends[path[-1]] if path else 0
            end = self.ends.get(mark.hash, max(before, mark.tokens // BLOCK))
            if end * BLOCK >= asked.prompt_tokens:
                break
            self.ends[mark.hash] = end
            path.append(mark.hash)
        self.paths[reservation] = path

    def leave(self, reservation: Reservation) -> None:
        del self.paths[reservation]
        self.ends = {mark: end for mark, end in self.ends.items() if any(mark in path for path in self.paths.values())}

    def blocks(self, path: list[int], mark: int) -> int:
        place = path.index(mark)
        return self.ends[mark] - (self.ends[path[place - 1]] if place else 0)

    def sums(self) -> tuple[int, int, int, int]:
        """Shared, held, reserved and peak."""
        sequences = Counter(mark for one, path in self.paths.items() for mark in path * one.demand.copies)
        shared = {mark for mark, count in sequences.items() if count > 1}
        once = {mark: self.blocks(path, mark) for path in self.paths.values() for mark in path if mark in shared}
        held = reserved = sum(once.values())
        forecast = Forecast(RULE)
        for one, path in self.paths.items():
            asked, leading = one.demand, max((self.ends[mark] for mark in path if mark in shared), default=0)
            own = asked.held_blocks(RULE, produced=one.produced) - asked.copies * leading
            full = asked.reserved_blocks(RULE) - asked.copies * leading
            held, reserved = held + own, reserved + max(own, full)
            rest = asked.without_leading(leading * BLOCK)
            forecast.add(forecast.course(rest, produced=one.produced, remaining=one.course.remaining))
        return sum(once.values()), held, reserved, sum(once.values()) + forecast.profile.peak


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), alike()),
        st.tuples(st.just("progress"), st.integers(0, 10), st.integers(1, 150)),
        st.tuples(st.just("amend"), st.integers(0, 10), alike()),
        st.tuples(st.just("end"), st.integers(0, 10)),
    ),
    max_size=30,
)


@deterministic
@given(STEPS)
def test_the_sums_are_those_of_a_recount(steps: list[tuple]) -> None:
    """Through reservations, progress, better counts and endings in any order; with nothing live nothing is left."""
    ledger, recount, moment = Ledger(learned()), Recount(), 0.0
    ledger.recount(RULE)
    for what, *how in steps:
        moment += 1.0
        live = list(recount.paths)
        if what == "reserve":
            recount.enter(ledger.reserve(how[0], now=moment), how[0])
        elif live:
            take(ledger, recount, live[how[0] % len(live)], what, how[1:])
        assert sums(ledger) == recount.sums()
        assert ledger.tenant_blocks("") == sum(
            max(one.demand.held_blocks(RULE, produced=one.produced), one.demand.reserved_blocks(RULE))
            for one in recount.paths
        )
        ledger.mark(moment - 3.0)
        assert ledger.held_before(moment - 3.0) + ledger.fresh.held == ledger.held_blocks
    for chosen in recount.paths:
        ledger.end(chosen, SETTLED, now=moment)
    assert sums(ledger) == (0, 0, 0, 0)
    assert ledger.fresh == Claims()
    assert (ledger._prefixes._segments, ledger._prefixes._paths, ledger.violations) == ({}, {}, 0)


def take(ledger: Ledger, recount: Recount, chosen: Reservation, what: str, how: list) -> None:
    """One step of a live reservation in both."""
    if what == "progress":
        ledger.progress(chosen, how[0])
        return
    recount.leave(chosen)
    if what == "amend":
        better = chosen.demand.with_prompts_of(how[0])
        recount.enter(chosen, better)
        ledger.amend(chosen, better)
        return
    before = ledger.held_blocks + ledger.freed_blocks
    ledger.end(chosen, SETTLED, now=99.0)
    assert ledger.held_blocks + ledger.freed_blocks == before


@deterministic
@given(st.lists(alike(), max_size=8), st.integers(8, 40))
def test_another_rule_counts_as_if_it_had_been_known(asked: list[Demand], size: int) -> None:
    """What was entered under one block size is what it were under the other from the start."""
    rule = BlockRule.plain(size)
    changed, _ = ledger_of(*asked)
    changed.recount(rule)
    assert sums(changed) == sums(ledger_of(*asked, rule=rule)[0])


# A candidate


def ratios_with(held: list[Demand], candidate: Demand) -> Ratios:
    ratios = occupancy(0.0, *held).ratios(0.0, candidate)
    assert ratios is not None
    return ratios


@pytest.mark.parametrize(
    ("held", "candidate", "projected", "reserved", "peak"),
    [
        ([sharing()], sharing(), 12, 16, 16),
        ([sharing()], sharing(prefix=()), 20, 24, 24),
        ([sharing()], sharing(prefix=marks(0, 1)), 16, 20, 20),
        ([], sharing(), 10, 12, 12),
        ([], sharing(copies=4), 16, 24, 24),
        ([sharing()], sharing(copies=4), 18, 28, 28),
        ([sharing(), sharing()], sharing(), 14, 20, 20),
        # A lone owner that ends first leaves its blocks to the candidate, which then holds them itself.
        ([sharing(cap=16)], sharing(cap=17), 12, 15, 14),
        ([sharing(cap=16)], sharing(cap=200), 12, 26, 23),
        ([sharing(cap=16)], sharing(cap=200, copies=2), 14, 41, 38),
        ([sharing(cap=200)], sharing(cap=16), 12, 26, 23),
        ([sharing(cap=16), sharing(cap=16)], sharing(cap=200), 14, 29, 23),
        # Others may end meanwhile, after the lone owner.
        ([sharing(cap=10), *[sharing(cap=30, prefix=())] * 3], sharing(cap=200), 42, 62, 48),
    ],
)
def test_a_candidate_counts_without_what_others_hold(
    held: list[Demand], candidate: Demand, projected: int, reserved: int, peak: int
) -> None:
    """Now and at full length all of it; at the peak for as long as they hold it."""
    ratios = ratios_with(held, candidate)
    assert [round(100 * share) for share in (ratios.projected, ratios.reserved, ratios.peak)] == [
        projected,
        reserved,
        peak,
    ]


POLICY = AdmissionPolicy(tiers=TierPolicy(), degrade=DegradePolicy())


def test_too_large_is_about_the_whole_prompt() -> None:
    """Nobody can run a prompt that an empty engine has no room for, however much of it is there."""
    large = demand(1700, cap=16, prefix=marks(*[0] * 20))
    decision = decide(large, Tier.NORMAL, occupancy(0.0, large), POLICY, 0.0)
    assert decision.reason.value == "too_large"


def test_more_fit_where_they_begin_alike() -> None:
    """Of prompts of ten blocks, eight of them in common, an engine of a hundred takes many times as many."""

    def admitted(prefix: bool) -> int:
        known, count = occupancy(0.0), 0
        while count < 100:
            asked = sharing(prefix=PREFIX if prefix else (), min_tokens=32)
            decision = decide(asked, Tier.NORMAL, known, POLICY, 0.0)
            if not isinstance(decision, Admit):
                break
            known.ledger.reserve(decision.demand, now=0.0)
            count += 1
        return count

    assert (admitted(prefix=False), admitted(prefix=True)) == (7, 21)


@deterministic
@given(st.lists(st.tuples(alike(longest=31), st.integers(0, 31)), max_size=6), alike(longest=31))
def test_what_is_admitted_then_counts_as_foreseen(live: list[tuple[Demand, int]], asked: Demand) -> None:
    """Held and reserved to the block; the peak is never above what the decision saw, but for what one held alone.

    That counts as held for as long as anything lives, where the decision saw it end. Answers are of few tokens, for
    which the forecast is exact.
    """
    known = occupancy(0.0)
    for one, produced in live:
        known.ledger.progress(known.ledger.reserve(one, now=0.0), produced)
    foreseen, match = known.ratios(0.0, asked), known.ledger.match(asked)
    known.ledger.reserve(asked, now=0.0)
    after = known.ratios(0.0)
    assert (after.projected, after.reserved) == (foreseen.projected, foreseen.reserved)
    kept = match.matched - match.shared
    assert after.peak <= foreseen.peak + kept / 100 + 1e-9
    assert match.shared <= match.matched <= match.own or not asked.prefix


@deterministic
@given(st.lists(alike(agreed=True), max_size=5), alike(agreed=True), alike(agreed=True))
def test_more_load_never_makes_room(live: list[Demand], more: Demand, asked: Demand) -> None:
    """With another request in the ledger, be it of the same beginning, a candidate finds no lower ratio.

    As long as they agree on the tokens before a mark: with more of them, as the first has it, a candidate saves more.
    """
    before, after = occupancy(0.0, *live).ratios(0.0, asked), occupancy(0.0, *live, more).ratios(0.0, asked)
    assert after.projected >= before.projected
    assert after.reserved >= before.reserved
    assert after.peak >= before.peak


@deterministic
@given(st.lists(alike(), max_size=5), alike(), st.integers(1, 100))
def test_degrading_never_enlarges(live: list[Demand], asked: Demand, cap: int) -> None:
    """A lower cap and a single sequence leave every ratio where it was or lower."""
    known = occupancy(0.0, *live)
    whole = known.ratios(0.0, asked)
    for lighter in (asked.with_cap(min(cap, asked.output_cap)), asked.with_one_sequence()):
        ratios = known.ratios(0.0, lighter)
        assert ratios.projected <= whole.projected
        assert ratios.reserved <= whole.reserved
        assert ratios.peak <= whole.peak


# Beside the gauge


def test_the_gauge_corrects_only_what_the_ledger_does_not_know() -> None:
    """Of two pairs that share, one by its marks, three scrapes leave out what the other shares, once."""
    known = occupancy(0.0)
    for asked in (sharing(), sharing(), sharing(prefix=()), sharing(prefix=())):
        known.ledger.progress(known.ledger.reserve(asked, now=0.0), 1)
    assert known.ratios(0.0).projected == pytest.approx(0.36)
    for now in (1.0, 2.0, 3.0):
        known.observe(sample(0.28), asked_at=now)
    assert known.ratios(3.0).projected == pytest.approx(0.28)
    assert known.foreign_blocks == 0
    assert known.footprint_error_ratio == pytest.approx(8 / 28)
