"""Gauge and ledger fused: capacity, foreign load, telemetry states and every signal."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvguard.admission.blocks import Ahead, BlockGroup, BlockRule, PoolLayout
from kvguard.admission.capacity import Capacity
from kvguard.admission.footprint import Demand
from kvguard.admission.ledger import ReservationState
from kvguard.admission.occupancy import (
    EngineRule,
    Occupancy,
    Ratios,
    Signal,
    TelemetryState,
)
from kvguard.admission.usage import UsageSample
from tests.admission.build import (
    answers,
    demand,
    demands,
    engine,
    learned_from,
    occupancy,
    sample,
    unscraped,
)
from tests.kit.properties import deterministic

FRESH, STALE, MISSING, UNREACHABLE = TelemetryState


def observed(scraped: UsageSample, *, scrapes: int = 1, **policy: object) -> Occupancy:
    built = unscraped(**policy)
    for _ in range(scrapes):
        built.observe(scraped, asked_at=0.0)
    return built


def ratios_at(built: Occupancy, now: float = 0.0, candidate: Demand | None = None) -> Ratios:
    ratios = built.ratios(now, candidate)
    assert ratios is not None
    return ratios


# Capacity


@pytest.mark.parametrize(
    ("scraped", "policy", "capacity"),
    [
        (sample(0.5), {}, (100, 100, 16)),
        (sample(0.5, 0.5), {}, (200, 100, 16)),
        (UsageSample(engines=(engine(0.5, blocks=60), engine(0.5, blocks=40))), {}, (100, 60, 16)),
        (UsageSample(engines=(engine(0.5), replace(engine(0.5, name="1"), block_size=32))), {}, (200, 100, 32)),
        # The operator's word replaces the engine's.
        (sample(0.5), {"capacity_blocks": 50}, (50, 50, 16)),
        (sample(0.5), {"capacity_blocks": 150}, (150, 100, 16)),
        (sample(0.5), {"block_size": 32}, (100, 100, 32)),
        (sample(0.5, blocks=None), {"capacity_blocks": 50, "block_size": 32}, (50, 50, 32)),
        # Half known is unknown.
        (sample(0.5, blocks=None), {}, None),
        (sample(0.5, blocks=None), {"capacity_blocks": 50}, None),
        (sample(0.5, blocks=None), {"block_size": 32}, None),
        (sample(0.5, blocks=0), {"block_size": 32}, None),
        (UsageSample(engines=(engine(0.5), engine(0.5, blocks=None))), {}, None),
        (UsageSample(), {}, None),
    ],
)
def test_capacity(scraped: UsageSample, policy: dict, capacity: tuple[int, int, int] | None) -> None:
    """The sum over engines, each of which must have said it, unless the operator did; the largest bounds a prompt."""
    expected = capacity and Capacity(
        blocks=capacity[0], largest_engine_blocks=capacity[1], layout=PoolLayout.plain(capacity[2])
    )
    assert observed(scraped, **policy).capacity == expected


CACHING = sample(0.5, prefix_caching=True)


@pytest.mark.parametrize(
    ("scraped", "policy", "shares"),
    [
        (CACHING, {}, True),
        (CACHING, {"capacity_blocks": 50, "block_size": 32}, True),
        (CACHING, {"count_shared_once": False}, False),
        (CACHING, {"layout_of": lambda _: PoolLayout(rule=BlockRule(groups=()))}, False),
        (sample(0.5, prefix_caching=False), {}, False),
        (sample(0.5), {}, False),
        # Each of several engines caches for itself, and the server says which of them has which request.
        (sample(0.5, 0.5, prefix_caching=True), {}, False),
        (sample(0.5, blocks=None, prefix_caching=True), {}, False),
    ],
)
def test_prefixes_are_shared_where_it_is_known(scraped: UsageSample, policy: dict, shares: bool) -> None:
    """One engine that says so, a layout for which it is plain, and an operator who has not forbidden it."""
    assert observed(scraped, **policy).shares_prefixes is shares


def test_the_operators_capacity_is_known_before_the_first_scrape() -> None:
    """Both values overridden need no engine; a page without values changes nothing."""
    built = unscraped(capacity_blocks=50, block_size=32)
    assert built.capacity == Capacity(blocks=50, largest_engine_blocks=50, layout=PoolLayout.plain(32))
    assert built.observed_ratio() is None
    assert ratios_at(built) == Ratios(observed=None, projected=0.0, reserved=0.0, peak=0.0)
    built.observe(UsageSample(), asked_at=0.0)
    assert built.capacity == Capacity(blocks=50, largest_engine_blocks=50, layout=PoolLayout.plain(32))


@pytest.mark.parametrize("policy", [{}, {"capacity_blocks": 50}, {"block_size": 32}])
def test_capacity_is_unknown_before_the_first_scrape(policy: dict) -> None:
    """Without both values nothing is known, and there are no ratios."""
    built = unscraped(**policy)
    assert built.capacity is None
    assert built.ratios(0.0) is None
    assert built.observed_ratio() is None


def test_a_page_without_capacity_keeps_the_last_known() -> None:
    """What an engine once said of its size holds until it says otherwise."""
    built = observed(sample(0.5))
    built.observe(sample(0.5, blocks=None), asked_at=1.0)
    assert built.capacity == Capacity(blocks=100, largest_engine_blocks=100, layout=PoolLayout.plain(16))
    assert ratios_at(built, 1.0).observed == 0.5


def test_a_gauge_before_any_capacity_is_fresh_and_yields_no_ratio() -> None:
    """The gauge is there and its share of nothing known is unknown; the capacity makes a number of it."""
    built = observed(sample(0.5, blocks=None))
    assert built.telemetry(0.0) is FRESH
    assert built.ratios(0.0) is None
    assert built.observed_ratio() is None
    built.observe(sample(0.5), asked_at=1.0)
    assert ratios_at(built, 1.0).projected == 0.5


def test_the_ledger_counts_in_the_blocks_of_the_engine_once_they_are_known() -> None:
    """A request entered before the first scrape, in single tokens, holds its blocks after it."""
    built = unscraped()
    built.ledger.reserve(demand(32), now=0.0)
    built.observe(sample(0.0), asked_at=1.0)
    assert built.ledger.held_blocks == 2


# Telemetry


@pytest.mark.parametrize(("now", "state"), [(0.0, FRESH), (4.9, FRESH), (5.0, FRESH), (5.1, STALE), (500.0, STALE)])
def test_a_gauge_grows_stale(now: float, state: TelemetryState) -> None:
    """It is fresh up to its limit, that moment included, and merely old after it if nothing else was heard."""
    built = observed(sample(0.5))
    assert built.age_seconds(now) == now
    assert built.telemetry(now) is state


@pytest.mark.parametrize(
    ("misses", "now", "state"),
    [
        ([], 0.0, UNREACHABLE),
        ([False], 0.0, UNREACHABLE),
        ([True], 0.0, MISSING),
        ([False, True], 0.0, MISSING),
        ([True, False], 0.0, UNREACHABLE),
    ],
)
def test_a_backend_never_scraped(misses: list[bool], now: float, state: TelemetryState) -> None:
    """Nothing is known of its reach until something accepts the connection; then only its gauge is missing."""
    built = unscraped()
    for reached in misses:
        built.miss(reached=reached)
    assert built.age_seconds(now) is None
    assert built.telemetry(now) is state


@pytest.mark.parametrize(
    ("misses", "now", "state"),
    [
        # A fresh gauge outlives failed scrapes, but not a backend that refuses three connections in a row.
        ([False] * 2, 5.0, FRESH),
        ([False] * 3, 5.0, UNREACHABLE),
        ([True] * 9, 5.0, FRESH),
        ([False], 5.1, STALE),
        ([False] * 2, 5.1, STALE),
        ([False] * 3, 5.1, UNREACHABLE),
        ([True] * 3, 5.1, STALE),
        ([False, False, True], 5.1, STALE),
        ([True, True, False], 5.1, UNREACHABLE),
    ],
)
def test_failed_scrapes_after_a_good_one(misses: list[bool], now: float, state: TelemetryState) -> None:
    """One failure changes nothing; three in a row, the last of them refused, make a backend unreachable."""
    built = observed(sample(0.5))
    for reached in misses:
        built.miss(reached=reached)
    assert built.telemetry(now) is state


@pytest.mark.parametrize("page", [UsageSample(), sample(None), sample(0.5, None)])
def test_a_page_without_a_gauge(page: UsageSample) -> None:
    """The last gauge counts until it is stale; then it is missing, not stale, for the engine answers."""
    built = observed(sample(0.5))
    built.observe(page, asked_at=4.0)
    assert built.failures == 0
    assert ratios_at(built, 5.0).observed == 0.5
    assert built.telemetry(5.1) is MISSING
    built.miss(reached=True)
    assert built.telemetry(5.1) is STALE
    built.observe(sample(0.25), asked_at=6.0)
    assert built.telemetry(6.0) is FRESH


def test_an_engine_that_never_had_a_gauge() -> None:
    """Its capacity is taken in, its gauge is missing."""
    built = observed(sample(None))
    assert built.capacity is not None
    assert built.telemetry(0.0) is MISSING
    assert ratios_at(built).observed is None


def test_a_good_scrape_forgets_failures() -> None:
    """Failures count in a row only."""
    built = observed(sample(0.5))
    built.miss(reached=False)
    built.miss(reached=False)
    assert built.failures == 2
    built.observe(sample(0.5), asked_at=1.0)
    assert built.failures == 0


# Signals


@pytest.mark.parametrize(
    ("foreign", "held", "candidate", "expected"),
    [
        (0.0, [], None, (0.0, 0.0, 0.0, 0.0)),
        (0.5, [], None, (0.5, 0.5, 0.5, 0.5)),
        # 10 blocks of prompt and 20 of the whole answer.
        (0.0, [demand(160, cap=160)], None, (0.0, 0.10, 0.20, 0.20)),
        (0.5, [demand(160, cap=160)], None, (0.5, 0.60, 0.70, 0.70)),
        (0.5, [demand(160, cap=160)], demand(160, cap=160), (0.5, 0.70, 0.90, 0.90)),
        (0.5, [], demand(10, 20, 30, cap=20, copies=2), (0.5, 0.60, 0.68, 0.68)),
        # The peak is below the reserved sum when one ends before the other grows: 41 + 1 and 10 + 40.
        (0.0, [demand(640, cap=16)], demand(160, cap=640), (0.0, 0.50, 0.91, 0.52)),
        # Above 1 it is not clipped.
        (1.0, [demand(160, cap=160)], None, (1.0, 1.10, 1.20, 1.20)),
    ],
)
def test_signals(
    foreign: float, held: list[Demand], candidate: Demand | None, expected: tuple[float, float, float, float]
) -> None:
    """Observed is the gauge; projected adds prompts held, reserved whole answers, peak the worst moment to come."""
    ratios = ratios_at(occupancy(foreign, *held), 0.0, candidate)
    assert (ratios.observed, ratios.projected, ratios.reserved, ratios.peak) == pytest.approx(expected)


@pytest.mark.parametrize("signal", Signal)
def test_a_signal_is_read_by_its_name(signal: Signal) -> None:
    """Each signal gives its own number; a gauge that is not there reads 0."""
    ratios = Ratios(observed=0.1, projected=0.2, reserved=0.3, peak=0.4)
    expected = {Signal.OBSERVED: 0.1, Signal.PROJECTED: 0.2, Signal.RESERVED: 0.3, Signal.PEAK: 0.4}
    assert ratios.of(signal) == expected[signal]
    assert Ratios(observed=None, projected=0.2, reserved=0.3, peak=0.4).of(Signal.OBSERVED) == 0.0


def test_a_stale_gauge_leaves_the_ledger_alone() -> None:
    """Once stale, neither foreign load nor the queue counts, and observed is unknown."""
    built = observed(sample(0.5, waiting=3), scrapes=2)
    built.ledger.reserve(demand(160, cap=160), now=1.0)
    assert ratios_at(built, 5.0) == Ratios(observed=0.85, projected=0.85, reserved=0.85, peak=0.85)
    assert ratios_at(built, 5.1) == Ratios(observed=None, projected=0.10, reserved=0.20, peak=0.20)


@pytest.mark.parametrize(
    ("waiting", "for_capacity", "foreign", "floor", "projected"),
    [
        (0, None, 0.5, 0.85, 0.5),
        (1, None, 0.5, 0.85, 0.85),
        (1, None, 0.9, 0.85, 0.9),
        (1, None, 0.5, 0.0, 0.5),
        # What waits for something else than blocks does not count.
        (3, 0, 0.5, 0.85, 0.5),
        (3, 1, 0.5, 0.85, 0.85),
        (None, None, 0.5, 0.85, 0.5),
        (None, 1, 0.5, 0.85, 0.85),
    ],
)
def test_a_queue_for_blocks_lifts_every_signal(
    waiting: int | None, for_capacity: int | None, foreign: float, floor: float, projected: float
) -> None:
    """While a queue for blocks lasts the engine is full, whatever its gauge says."""
    scraped = sample(foreign, waiting=waiting, waiting_for_capacity=for_capacity)
    ratios = ratios_at(observed(scraped, scrapes=2, queue_floor_ratio=floor))
    assert (ratios.observed, ratios.projected, ratios.reserved, ratios.peak) == (projected,) * 4


def test_a_queue_in_any_engine_counts() -> None:
    """One engine of several that waits is enough."""
    scraped = UsageSample(engines=(engine(0.1), engine(0.1, waiting_for_capacity=1, name="1")))
    assert ratios_at(observed(scraped, scrapes=2)).projected == 0.85


def test_a_queue_that_only_one_scrape_shows_does_not_count() -> None:
    """Requests that came a moment ago also wait; only a queue that is still there at the next scrape means full."""
    built = unscraped()
    for now, waiting, projected in ((0.0, 2, 0.5), (1.0, 0, 0.5), (2.0, 1, 0.5), (3.0, 1, 0.85), (4.0, 0, 0.5)):
        built.observe(sample(0.5, waiting=waiting), asked_at=now)
        assert ratios_at(built, now).projected == projected, now


def test_an_overcommitted_engine_counts_as_one_with_a_queue() -> None:
    """While the gauge that says otherwise is fresh."""
    built = observed(sample(0.5))
    built.overcommitted = True
    assert ratios_at(built, 5.0) == Ratios(observed=0.85, projected=0.85, reserved=0.85, peak=0.85)
    assert ratios_at(built, 5.1) == Ratios(observed=None, projected=0.0, reserved=0.0, peak=0.0)


# Foreign load


def after_a_scrape(*, started: float, ended: float | None, asked_at: float, gauge: float = 0.5) -> Occupancy:
    """A backend on which one request of ten blocks came and perhaps went around a scrape."""
    built = unscraped(aftermath_seconds=0.2, capacity_blocks=100, block_size=16)
    reservation = built.ledger.reserve(demand(160), now=started)
    if ended is not None:
        built.ledger.end(reservation, ReservationState.SETTLED, now=ended)
    built.observe(sample(gauge), asked_at=asked_at)
    return built


@pytest.mark.parametrize(
    ("started", "ended", "foreign"),
    [
        # Running at the scrape: part of the gauge.
        (1.0, None, 40.0),
        (9.9, None, 40.0),
        # Begun when or after it was asked for: the gauge cannot have shown it.
        (10.0, None, 50.0),
        (10.1, None, 50.0),
        # Ended since: still in the gauge.
        (1.0, 10.5, 40.0),
        (1.0, 10.0, 40.0),
        # Ended a moment before: the engine may not have counted it out yet.
        (1.0, 9.9, 40.0),
        (1.0, 9.8, 40.0),
        (1.0, 9.7, 50.0),
        # Came and went while the scrape was on its way: never in the gauge.
        (10.0, 10.5, 50.0),
        (10.1, 10.5, 50.0),
    ],
)
def test_foreign_is_what_the_ledger_does_not_explain(started: float, ended: float | None, foreign: float) -> None:
    """Of a gauge of fifty blocks, ten are ours when the scrape can have seen our request."""
    built = after_a_scrape(started=started, ended=ended, asked_at=10.0)
    assert built.foreign_blocks == foreign


def test_foreign_is_never_negative() -> None:
    """A gauge that lags behind what we hold leaves nothing foreign."""
    assert after_a_scrape(started=0.0, ended=None, asked_at=10.0, gauge=0.05).foreign_blocks == 0.0


def test_foreign_load_stays_as_the_last_scrape_left_it() -> None:
    """Between scrapes only the ledger moves the projection."""
    built = occupancy(0.5, now=0.0)
    reservation = built.ledger.reserve(demand(160), now=1.0)
    assert ratios_at(built, 1.0).projected == 0.6
    built.ledger.end(reservation, ReservationState.SETTLED, now=2.0)
    assert ratios_at(built, 2.0).projected == 0.5
    assert built.foreign_blocks == 50.0


# Answers that cannot be watched


@pytest.mark.parametrize(
    ("held", "gauge", "produced", "foreign"),
    [
        # Nothing but its prompt is held.
        ([demand(160, cap=100, streamed=False)], 0.09, [0], 0.0),
        ([demand(160, cap=100, streamed=False)], 0.10, [0], 0.0),
        # A block more is sixteen tokens more.
        ([demand(160, cap=100, streamed=False)], 0.11, [16], 0.0),
        ([demand(160, cap=100, streamed=False)], 0.12, [32], 0.0),
        # No further than is expected of it: the rest is foreign.
        ([demand(160, cap=100, streamed=False)], 0.17, [100], 0.0),
        ([demand(160, cap=100, streamed=False)], 0.27, [100], 10.0),
        # A stream says itself how far it is.
        ([demand(160, cap=100)], 0.12, [0], 2.0),
        ([demand(160, cap=100), demand(160, cap=100, streamed=False)], 0.22, [0, 32], 0.0),
        # All sequences grow at one pace.
        ([demand(160, 160, cap=100, copies=2, streamed=False)], 0.44, [16], 0.0),
        ([demand(160, cap=100, streamed=False)] * 2, 0.24, [32, 32], 0.0),
        ([demand(160, cap=20, streamed=False), demand(160, cap=100, streamed=False)], 0.28, [20, 64], 2.0),
    ],
)
def test_growth_only_the_gauge_shows(held: list[Demand], gauge: float, produced: list[int], foreign: float) -> None:
    """What the gauge shows beyond the ledger is output of answers that are not streamed, as far as they may get."""
    built = occupancy()
    running = [built.ledger.reserve(one, now=1.0) for one in held]
    built.observe(sample(gauge), asked_at=2.0)
    assert [reservation.produced for reservation in running] == produced
    assert built.foreign_blocks == pytest.approx(foreign)


def test_growth_is_not_that_of_a_request_the_scrape_cannot_have_seen() -> None:
    """A request begun after the scrape was asked for has not grown in it."""
    built = occupancy()
    late = built.ledger.reserve(demand(160, cap=100, streamed=False), now=2.0)
    built.observe(sample(0.05), asked_at=2.0)
    assert (late.produced, built.foreign_blocks) == (0, 5.0)


def test_growth_is_not_what_is_being_freed() -> None:
    """Blocks of an answer that has just ended explain the gauge before any growth does."""
    built = occupancy()
    ended = built.ledger.reserve(demand(32), now=1.0)
    running = built.ledger.reserve(demand(160, cap=100, streamed=False), now=1.0)
    built.ledger.end(ended, ReservationState.SETTLED, now=2.0)
    built.observe(sample(0.13), asked_at=2.0)
    assert (running.produced, built.foreign_blocks) == (16, 0.0)


def test_growth_adds_up_over_scrapes() -> None:
    """What one scrape has attributed the next does not attribute again."""
    built = occupancy()
    reservation = built.ledger.reserve(demand(160, cap=100, streamed=False), now=1.0)
    for now, gauge in enumerate((0.11, 0.11, 0.12), 2):
        built.observe(sample(gauge), asked_at=float(now))
    assert (reservation.produced, built.foreign_blocks) == (32, 0.0)


def test_load_that_was_foreign_before_stays_foreign() -> None:
    """Only what the gauge has risen since the last scrape can be the growth of our own answers."""
    built = occupancy(0.5, now=0.0)
    reservation = built.ledger.reserve(demand(160, cap=512, streamed=False), now=1.0)
    built.observe(sample(0.60), asked_at=2.0)
    assert (reservation.produced, built.foreign_blocks) == (0, 50.0)
    built.observe(sample(0.62), asked_at=3.0)
    assert (reservation.produced, built.foreign_blocks) == (32, 50.0)
    built.observe(sample(0.22), asked_at=4.0)
    assert (reservation.produced, built.foreign_blocks) == (32, 10.0)


# Several engines


@pytest.mark.parametrize("order", [(0.96, 0.10), (0.10, 0.96)])
@pytest.mark.parametrize(("rule", "ratio"), [(EngineRule.WORST, 0.96), (EngineRule.MEAN, 0.53)])
def test_several_engines_make_one_number(order: tuple[float, float], rule: EngineRule, ratio: float) -> None:
    """The fullest decides, or the mean, whichever is named first on the page."""
    ratios = ratios_at(observed(sample(*order), engine_rule=rule))
    assert (ratios.observed, ratios.projected, ratios.peak) == (pytest.approx(ratio),) * 3


@pytest.mark.parametrize(
    ("blocks", "policy", "ratio"),
    [
        ((60, 40), {}, 0.6),
        ((60, 40), {"capacity_blocks": 50}, 0.6),
        ((40, 60), {}, 0.4),
        # Without sizes of their own they count alike.
        ((None, None), {"capacity_blocks": 100, "block_size": 16}, 0.5),
        ((60, None), {"capacity_blocks": 100}, 0.5),
    ],
)
def test_the_mean_weighs_engines_by_their_blocks(blocks: tuple, policy: dict, ratio: float) -> None:
    """A full engine beside an empty one fills the pool by its share of the blocks."""
    scraped = UsageSample(engines=(engine(1.0, blocks=blocks[0]), engine(0.0, blocks=blocks[1], name="1")))
    built = observed(scraped, engine_rule=EngineRule.MEAN, **policy)
    assert built.observed_ratio() == pytest.approx(ratio)


def test_the_fullest_engine_keeps_its_lead_while_the_ledger_grows() -> None:
    """Under WORST a new request adds to the pool on top of what the fullest engine stood above it."""
    built = observed(sample(0.9, 0.1))
    built.ledger.reserve(demand(320), now=1.0)
    assert ratios_at(built, 1.0).projected == pytest.approx(1.0)


# Idle


@pytest.mark.parametrize(
    ("foreign", "held", "idle"),
    [(0.0, [], True), (0.009, [], True), (0.01, [], False), (0.5, [], False), (0.0, [demand(16)], False)],
)
def test_idle_means_nothing_runs_there(foreign: float, held: list[Demand], idle: bool) -> None:
    """No request of ours and less than a block of anyone's."""
    assert occupancy(foreign, *held).idle(0.0) is idle


@deterministic
@given(
    held=st.lists(demands(), max_size=4),
    more=st.lists(demands(), max_size=3),
    seen=answers,
    candidate=demands(),
    foreign=st.tuples(st.floats(0, 1.2), st.floats(0, 1.2)),
)
def test_more_load_never_lowers_a_signal(
    held: list[Demand],
    more: list[Demand],
    seen: list[tuple[int, int | None]],
    candidate: Demand,
    foreign: tuple[float, float],
) -> None:
    """More foreign load, more reservations or a candidate on top: every signal stays or rises."""
    low, high = sorted(foreign)
    lengths = learned_from(seen)
    less = ratios_at(occupancy(low, *held, lengths=lengths))
    loaded = ratios_at(occupancy(high, *held, *more, lengths=lengths))
    topped = ratios_at(occupancy(high, *held, *more, lengths=lengths), 0.0, candidate)
    for signal in Signal:
        assert less.of(signal) <= loaded.of(signal) + 1e-12
        assert loaded.of(signal) <= topped.of(signal)


@deterministic
@given(held=st.lists(demands(), max_size=4), seen=answers, foreign=st.floats(0, 1.2))
def test_signals_are_ordered(held: list[Demand], seen: list[tuple[int, int | None]], foreign: float) -> None:
    """Projected is foreign and held together, and neither the peak to come nor what is reserved is below it."""
    load = occupancy(foreign, *held, lengths=learned_from(seen))
    ratios = ratios_at(load)
    assert math.isclose(ratios.projected, foreign + load.ledger.held_blocks / 100, abs_tol=1e-9)
    assert ratios.projected <= ratios.peak + 1e-12
    assert ratios.projected <= ratios.reserved + 1e-12


# Layouts of several groups

# 3 groups that slide over 64 tokens beside a full one; a step computes 320 tokens.
MIXED = BlockRule(
    groups=(BlockGroup(block_size=16), BlockGroup(block_size=16, count=3, sliding_window=64)), step_tokens=320
)


def mixed(foreign_ratio: float = 0.0, *held: Demand, now: float = 0.0) -> Occupancy:
    """A backend of 1000 blocks that serves a model with such layers."""
    built = unscraped(layout_of=lambda _: PoolLayout(rule=MIXED))
    built.observe(sample(foreign_ratio, blocks=1000), asked_at=now)
    for one in held:
        built.ledger.reserve(one, now=now)
    return built


@pytest.mark.parametrize(
    ("asked", "projected", "reserved", "peak"),
    [
        # 160 tokens: 10 blocks of full attention and min(10, 5) in each group that slides; a step takes the prompt
        # whole, so the prefill holds 10 in each: 15 more.
        (demand(160, cap=160), 10 + 15 + 15, 20 + 15, 20 + 15),
        # Two steps: in the second each sliding group holds 40 - (320 - 63) // 16 = 24 blocks, 19 more than settled.
        (demand(640, cap=16), 40 + 15 + 57, 41 + 15, 41 + 15),
        # Four such prompts share a step of 320 tokens: 20 blocks in each group, and a rounded one for each prompt.
        (demand(640, 640, 640, 640, cap=16), 4 * 55 + 3 * (20 + 4), 4 * 56, 4 * 56),
        (demand(16, cap=16), 4, 8, 8),
    ],
)
def test_signals_of_a_model_whose_layers_forget(asked: Demand, projected: int, reserved: int, peak: int) -> None:
    """A prompt counts with the surge of its prefill, its future with what is settled, over all groups."""
    for ratios in (ratios_at(mixed(), candidate=asked), ratios_at(mixed(0.0, asked))):
        assert ratios.projected == pytest.approx(projected / 1000)
        assert ratios.reserved == pytest.approx(reserved / 1000)
        assert ratios.peak == pytest.approx(peak / 1000)


def test_a_surge_ends_with_the_first_token() -> None:
    """What a prefill held besides is free once the answer has begun, and the sequence grows in full layers alone."""
    built = mixed()
    reservation = built.ledger.reserve(demand(160, cap=160), now=0.0)
    assert ratios_at(built).projected == pytest.approx(0.040)
    built.ledger.progress(reservation, 1)
    assert ratios_at(built).projected == pytest.approx((11 + 15) / 1000)
    built.ledger.progress(reservation, 33)
    assert ratios_at(built).projected == pytest.approx((13 + 15) / 1000)


def test_the_surge_of_an_answer_nobody_watches_ends_with_the_scrape_that_shows_it() -> None:
    """From then on the gauge has it: what is left of it there is foreign, so nothing is lost."""
    built = mixed()
    built.ledger.reserve(demand(160, cap=160, streamed=False), now=1.0)
    assert ratios_at(built, 1.0).projected == pytest.approx(0.040)
    built.observe(sample(0.025, blocks=1000), asked_at=2.0)
    assert built.foreign_blocks == 0
    assert ratios_at(built, 2.0).projected == pytest.approx(0.025)


def test_a_gauge_at_the_height_of_a_prefill_is_no_foreign_load() -> None:
    """40 blocks held by a prefill of ours are ours."""
    built = mixed()
    built.ledger.reserve(demand(160, cap=160), now=1.0)
    built.observe(sample(0.040, blocks=1000), asked_at=2.0)
    assert built.foreign_blocks == 0
    assert ratios_at(built, 2.0).projected == pytest.approx(0.040)


def test_the_layout_starts_from_the_block_size_of_the_pool() -> None:
    """A model with layers of several sizes is laid out from the pool's block size, not from that of its full layers."""
    asked: list[int] = []

    def layout_of(block_size: int) -> PoolLayout:
        asked.append(block_size)
        return PoolLayout(rule=MIXED, block_bytes=1000)

    page = UsageSample(engines=(replace(engine(0.5), block_size=32, pool_block_size=16, capacity_tokens=900),))
    capacity = observed(page, layout_of=layout_of).capacity
    assert asked == [16]
    assert capacity is not None
    assert (capacity.rule, capacity.bytes, capacity.tokens) == (MIXED, 100_000, 900)
    assert observed(sample(0.5)).capacity == Capacity(
        blocks=100, largest_engine_blocks=100, layout=PoolLayout.plain(16)
    )
    assert Capacity(blocks=9, largest_engine_blocks=9, layout=PoolLayout.plain(16)).bytes is None


# Shared prefixes


def sharing(**policy: object) -> Occupancy:
    """Four requests of ten blocks each generate; three scrapes in a row show thirty blocks in all."""
    built = unscraped(capacity_blocks=100, block_size=16, **policy)
    for _ in range(4):
        built.ledger.progress(built.ledger.reserve(demand(150, cap=100), now=0.0), 1)
    for now in (1.0, 2.0, 3.0):
        built.observe(sample(0.3), asked_at=now)
    return built


@pytest.mark.parametrize(
    ("counted", "projected", "reserved", "peak"), [(True, 0.3, 0.54, 0.54), (False, 0.4, 0.64, 0.64)]
)
def test_shared_blocks_count_once(counted: bool, projected: float, reserved: float, peak: float) -> None:
    """What the gauge steadily lacks is not held, nor will it be."""
    built = sharing(count_shared_once=counted)
    ratios = ratios_at(built, 3.0)
    assert (ratios.projected, ratios.reserved, ratios.peak) == pytest.approx((projected, reserved, peak))
    assert built.footprint_error_ratio == pytest.approx(1 / 3)


def test_a_preemption_is_not_sharing() -> None:
    """A gauge that falls because the engine took blocks away is no reason to admit more."""
    built = sharing()
    built.observe(sample(0.3, preemptions_total=1.0), asked_at=4.0)
    assert ratios_at(built, 4.0).projected == pytest.approx(0.4)


def test_a_stale_gauge_shares_nothing() -> None:
    """Without a gauge the ledger alone counts, in full."""
    built = sharing()
    assert ratios_at(built, 60.0).projected == pytest.approx(0.4)


# Engines that reserve ahead


AHEAD = Ahead(piece_tokens=1024)


def test_an_engine_that_reserves_ahead_says_how() -> None:
    """The rule of the ledger is the one the page came with, also where the operator sized the pool."""
    for policy in ({}, {"capacity_blocks": 50, "block_size": 32}):
        built = observed(sample(0.0, ahead=AHEAD), **policy)
        assert built.capacity is not None
        assert built.capacity.rule.ahead == built.ledger.rule.ahead == AHEAD


def test_what_the_gauge_shows_of_reservations_is_no_growth() -> None:
    """A request seen by a scrape holds what it reserved; more than that on the gauge is somebody else's."""
    built = observed(sample(0.0, ahead=AHEAD))
    built.ledger.reserve(demand(100, cap=61, streamed=False), now=0.0)
    assert ratios_at(built).projected == ratios_at(built).peak == 0.1
    built.observe(sample(0.3, ahead=AHEAD), asked_at=1.0)
    assert built.foreign_blocks == 20
    assert [one.produced for one in built.ledger._live.values()] == [0]
    assert ratios_at(built, 1.0).projected == ratios_at(built, 1.0).peak == 0.3


def test_a_gauge_of_reservations_shows_no_shared_prefixes() -> None:
    """However long it stays below the ledger: what the ledger holds is what counts."""
    built = observed(sample(0.0, ahead=AHEAD))
    built.ledger.progress(built.ledger.reserve(demand(800, cap=801), now=0.0), 1)
    for at in range(1, 20):
        built.observe(sample(0.5, ahead=AHEAD), asked_at=float(at))
    assert ratios_at(built, 19.0).projected == 1.0


# Several proxies


@pytest.mark.parametrize(("share", "projected", "reserved", "peak"), [(1.0, 0.31, 0.33, 0.33), (0.5, 0.32, 0.36, 0.36)])
def test_what_no_gauge_has_shown_counts_for_the_others_too(
    share: float, projected: float, reserved: float, peak: float
) -> None:
    """One block of prompt and two of output, over 30 that others hold; the candidate is claimed like the rest."""
    built = occupancy(0.3, share=share)
    candidate = ratios_at(built, candidate=demand(16, cap=32))
    built.ledger.reserve(demand(16, cap=32), now=0.0)
    for found in (candidate, ratios_at(built)):
        assert (found.projected, found.reserved, found.peak) == pytest.approx((projected, reserved, peak))


def test_what_a_gauge_has_shown_is_ones_own_again() -> None:
    """What began before it was asked for counts once, what begins later for every proxy."""
    built = occupancy(0.0, demand(16, cap=16), share=0.25)
    assert ratios_at(built).projected == pytest.approx(0.04)
    built.observe(sample(0.01), asked_at=1.0)
    assert ratios_at(built, 1.0).projected == pytest.approx(0.01)
    fresh = built.ledger.reserve(demand(16, cap=16), now=1.0)
    assert ratios_at(built, 1.0).projected == pytest.approx(0.05)
    built.ledger.end(fresh, ReservationState.RELEASED, now=1.0)
    assert ratios_at(built, 1.0).projected == pytest.approx(0.01)


def test_without_a_gauge_a_share_is_one_of_the_whole_cache() -> None:
    """Everything in the ledger counts for every proxy then."""
    built = occupancy(0.0, demand(16, cap=16), share=0.5)
    built.observe(sample(0.01), asked_at=1.0)
    assert (ratios_at(built, 1.0).projected, ratios_at(built, 99.0).projected) == pytest.approx((0.01, 0.02))


# Permits


@pytest.mark.parametrize(
    ("permits", "running", "waiting", "seen", "left"),
    [
        (None, 5, 0, 0, None),
        (8, 5, 1, 0, 2),
        (8, None, 1, 0, 8),
        # Two of the six are kvguard's own.
        (8, 5, 1, 2, 2),
        (8, 0, 0, 2, 6),
        (8, 9, 9, 0, -10),
    ],
)
def test_sequences_an_engine_still_takes_in(
    permits: int | None, running: int | None, waiting: int, seen: int, left: int | None
) -> None:
    """Its permits less what runs and waits there, of whoever it is."""
    built = unscraped()
    built.permits = permits
    for _ in range(seen):
        built.ledger.reserve(demand(), now=0.0)
    built.observe(sample(0.5, running=running, waiting=waiting), asked_at=1.0)
    assert built.sequences_left == left


def test_several_engines_add_their_sequences_up() -> None:
    """Where each says how many it has."""
    both = UsageSample(engines=(engine(0.5, running=1, waiting=2), engine(0.5, name="1", running=4, waiting=0)))
    assert both.unfinished == 7
    assert UsageSample(engines=(*both.engines, engine(0.5))).unfinished is None
    assert UsageSample().unfinished is None
