"""Thresholds, and the hysteresis between tiers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvguard.admission.occupancy import Ratios, Signal
from kvguard.admission.tiers import Tier, TierPolicy, TierRule, TierState, next_tier, pressure_of, tier_of
from tests.kit.properties import deterministic

NORMAL, TRIM, RESTRICT, REJECT = Tier
ENTER = {TRIM: 0.70, RESTRICT: 0.85, REJECT: 0.95}


def ratios(
    projected: float = 0.0, *, observed: float | None = None, reserved: float = 0.0, peak: float = 0.0
) -> Ratios:
    return Ratios(observed=observed, projected=projected, reserved=reserved, peak=peak)


@pytest.mark.parametrize(
    ("projected", "tier"),
    [
        (0.0, NORMAL),
        (0.69, NORMAL),
        (0.70, TRIM),
        (0.71, TRIM),
        (0.84, TRIM),
        (0.85, RESTRICT),
        (0.86, RESTRICT),
        (0.94, RESTRICT),
        (0.95, REJECT),
        (0.96, REJECT),
        (3.0, REJECT),
    ],
)
def test_a_tier_is_entered_at_its_threshold(projected: float, tier: Tier) -> None:
    """At the threshold is in, a step below is not, and above 1 is still the highest."""
    assert tier_of(ratios(projected), TierPolicy()) is tier


@pytest.mark.parametrize(
    ("blocks", "capacity", "tier"),
    [(21, 30, TRIM), (700, 1000, TRIM), (17, 20, RESTRICT), (19, 20, REJECT), (57, 60, REJECT), (3, 20, NORMAL)],
)
def test_a_share_of_blocks_at_the_threshold_is_at_the_threshold(blocks: int, capacity: int, tier: Tier) -> None:
    """Dividing whole blocks loses nothing against the threshold as written."""
    assert tier_of(ratios(blocks / capacity), TierPolicy()) is tier


@pytest.mark.parametrize(
    ("seen", "tier"),
    [
        (ratios(peak=0.94), NORMAL),
        (ratios(peak=0.95), REJECT),
        (ratios(0.94, peak=0.5), RESTRICT),
        (ratios(0.95, peak=0.5), REJECT),
        (ratios(observed=1.0, reserved=2.0), NORMAL),
    ],
)
def test_by_default_only_reject_looks_at_the_peak(seen: Ratios, tier: Tier) -> None:
    """REJECT takes the larger of projected and peak; nothing looks at observed or reserved."""
    assert tier_of(seen, TierPolicy()) is tier


@pytest.mark.parametrize(
    ("signals", "ratio"),
    [
        ((Signal.OBSERVED,), 0.4),
        ((Signal.PROJECTED,), 0.1),
        ((Signal.RESERVED,), 0.2),
        ((Signal.PEAK,), 0.3),
        ((Signal.PROJECTED, Signal.PEAK), 0.3),
        ((Signal.OBSERVED, Signal.PEAK), 0.4),
    ],
)
def test_a_tier_looks_at_the_largest_of_its_signals(signals: tuple[Signal, ...], ratio: float) -> None:
    """Each signal is read by its name and the largest counts."""
    seen = ratios(0.1, observed=0.4, reserved=0.2, peak=0.3)
    assert TierRule(enter=0.5, signals=signals).ratio(seen) == ratio


def test_a_gauge_that_is_not_there_is_no_reason_to_act() -> None:
    """A tier that looks at the gauge alone stays out while there is none."""
    rule = TierRule(enter=0.5, signals=(Signal.OBSERVED,))
    assert rule.ratio(ratios(1.0)) == 0.0


@pytest.mark.parametrize(
    ("tier", "ratio", "age_seconds", "after"),
    [
        # Up: at once, however young the tier is, and over several at a time.
        (NORMAL, 0.69, 0.0, NORMAL),
        (NORMAL, 0.70, 0.0, TRIM),
        (NORMAL, 0.95, 0.0, REJECT),
        (TRIM, 0.85, 0.0, RESTRICT),
        (RESTRICT, 0.95, 0.0, REJECT),
        # Between the margin and the threshold: kept for ever.
        (TRIM, 0.69, 99.0, TRIM),
        (TRIM, 0.65, 99.0, TRIM),
        (TRIM, 0.64, 99.0, NORMAL),
        (RESTRICT, 0.80, 99.0, RESTRICT),
        (RESTRICT, 0.79, 99.0, TRIM),
        (REJECT, 0.90, 99.0, REJECT),
        (REJECT, 0.89, 99.0, RESTRICT),
        # Below the margin: not before the dwell time, then down to the highest that still holds.
        (REJECT, 0.0, 0.9, REJECT),
        (REJECT, 0.0, 1.0, NORMAL),
        (REJECT, 0.0, 1.1, NORMAL),
        (REJECT, 0.64, 99.0, NORMAL),
        (REJECT, 0.65, 99.0, TRIM),
        (REJECT, 0.80, 99.0, RESTRICT),
        (RESTRICT, 0.64, 0.9, RESTRICT),
        (RESTRICT, 0.64, 1.0, NORMAL),
    ],
)
def test_how_a_tier_is_left(tier: Tier, ratio: float, age_seconds: float, after: Tier) -> None:
    """A higher tier is entered at once; one is left only below threshold minus margin and after its dwell time."""
    state = TierState(tier, 10.0)
    now = 10.0 + age_seconds
    expected = state if after is tier else TierState(after, now)
    assert next_tier(state, ratios(ratio), TierPolicy(exit_margin=0.05, min_dwell_seconds=1.0), now) == expected


def test_a_ratio_around_a_threshold_changes_the_tier_once() -> None:
    """Twenty samples of 0.84 and 0.86 enter RESTRICT once; 0.79 leaves it."""
    policy, state, tiers = TierPolicy(exit_margin=0.05), TierState(NORMAL, 0.0), []
    for second in range(1, 21):
        state = next_tier(state, ratios(0.86 if second % 2 == 0 else 0.84), policy, float(second))
        tiers.append(state.tier)
    assert tiers == [TRIM] + [RESTRICT] * 19
    assert state.since == 2.0
    assert next_tier(state, ratios(0.79), policy, 21.0) == TierState(TRIM, 21.0)


def test_tiers_are_numbered() -> None:
    """The numbers are public: they are in headers and metrics."""
    assert [int(tier) for tier in (NORMAL, TRIM, RESTRICT, REJECT)] == [0, 1, 2, 3]


def test_rules_come_highest_first() -> None:
    """The order is what makes the first match the highest tier."""
    assert [tier for tier, _ in TierPolicy().rules()] == [REJECT, RESTRICT, TRIM]


@deterministic
@given(
    seen=st.lists(st.tuples(st.floats(0, 1.2), st.floats(0, 1.5)), min_size=1, max_size=40),
    margin=st.floats(0, 0.3),
    dwell=st.floats(0, 5),
)
def test_no_tier_is_left_early(seen: list[tuple[float, float]], margin: float, dwell: float) -> None:
    """On any walk: never below what the ratio enters; left only below threshold - margin and after the dwell time."""
    policy = TierPolicy(exit_margin=margin, min_dwell_seconds=dwell)
    state, now = TierState(NORMAL, 0.0), 0.0
    for ratio, seconds in seen:
        now += seconds
        before, state = state, next_tier(state, ratios(ratio), policy, now)
        assert state.tier >= tier_of(ratios(ratio), policy)
        if state.tier == before.tier:
            assert state is before
        else:
            assert state.since == now
        if state.tier < before.tier:
            assert now - before.since >= dwell
            assert all(ratio < enter - margin for tier, enter in ENTER.items() if state.tier < tier <= before.tier)


@pytest.mark.parametrize(
    ("ratio", "pressure"),
    [(0.0, 0.0), (0.69, 0.0), (0.70, 0.0), (0.775, 0.5), (0.84, 0.9333), (0.85, 1.0), (2.0, 1.0)],
)
def test_pressure_is_how_far_trim_is_on_its_way(ratio: float, pressure: float) -> None:
    """Nothing up to its threshold, all from that of RESTRICT on."""
    assert pressure_of(ratios(ratio), TierPolicy()) == pytest.approx(pressure, abs=1e-4)


@pytest.mark.parametrize(("projected", "peak", "pressure"), [(0.75, 0.90, 1.0), (0.10, 0.84, 0.0), (0.90, 0.10, 1.0)])
def test_pressure_goes_by_the_signals_of_each_tier(projected: float, peak: float, pressure: float) -> None:
    """RESTRICT reached by a signal of its own is all the way; past it by TRIM's own signal too."""
    policy = TierPolicy(restrict=TierRule(enter=0.85, signals=(Signal.PEAK,)))
    assert pressure_of(ratios(projected, peak=peak), policy) == pressure
