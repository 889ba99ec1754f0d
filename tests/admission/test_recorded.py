"""A recorded decision: what was written down of a moment tells everything a decision looks at."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvguard.admission.blocks import BlockGroup, BlockRule, PoolLayout
from kvguard.admission.condition import Passage
from kvguard.admission.decision import AdmissionPolicy, Admit, BlindPolicy, Decision, decide
from kvguard.admission.footprint import Demand
from kvguard.admission.forecast import Forecast
from kvguard.admission.occupancy import Occupancy
from kvguard.admission.policy import Degradation, DegradePolicy, SequenceCut
from kvguard.admission.prefix import PrefixMatch
from kvguard.admission.recorded import RecordedOccupancy, Standing, Verdict, standing_of, verdict_of
from kvguard.admission.shares import within_share
from kvguard.admission.tiers import Tier, TierPolicy
from tests.admission.build import (
    RULE,
    alike,
    answers,
    block_rules,
    demand,
    demands,
    learned_from,
    marks,
    occupancy,
    sample,
    unscraped,
)
from tests.kit.properties import deterministic

TENANT = "t"
SLIDING = BlockRule(groups=(BlockGroup(block_size=16), BlockGroup(block_size=16, sliding_window=64)), step_tokens=128)


def again(standing: Standing, *, queue_floor_ratio: float = 0.85) -> RecordedOccupancy:
    """What a line of a log makes of it."""
    kept = msgspec.json.decode(msgspec.json.encode(standing), type=Standing)
    assert kept == standing
    return RecordedOccupancy(kept, queue_floor_ratio=queue_floor_ratio)


@st.composite
def backends(draw: st.DrawFn) -> Occupancy:
    """A backend at any load, of any layout, fresh, stale, missing or out of reach, with requests of two tenants."""
    rule, lengths = draw(block_rules(ahead=True) | st.just(RULE)), learned_from(draw(answers))
    policy = {
        "count_shared_once": draw(st.booleans()),
        "share": draw(st.sampled_from((1.0, 0.5))),
        "stale_after_seconds": draw(st.sampled_from((1.5, 5.0))),
        "layout_of": lambda _: PoolLayout(rule=rule),
    }
    held = draw(
        st.lists(st.tuples(demands() | alike(), st.integers(0, 200), st.sampled_from((TENANT, ""))), max_size=6)
    )
    built = unscraped(lengths, **policy)
    scrapes = draw(st.integers(0, 4))
    for number in range(scrapes):
        built.observe(sample(*draw(st.lists(st.floats(0, 1.2), min_size=1, max_size=2)), waiting=number), asked_at=0.0)
    for one, produced, tenant in held:
        built.ledger.progress(built.ledger.reserve(one, now=0.0, tenant=tenant), produced)
    if scrapes and draw(st.booleans()):
        built.observe(sample(draw(st.floats(0, 1))), asked_at=1.0)
    for reached in draw(st.lists(st.booleans(), max_size=3)):
        built.miss(reached=reached)
    built.overcommitted, built.permits = draw(st.booleans()), draw(st.none() | st.integers(0, 20))
    return built


def decided(
    known: Occupancy | RecordedOccupancy, asked: Demand, base: Tier, policy: AdmissionPolicy, passage: Passage
) -> Decision:
    decision = decide(asked, base, known, policy, 2.0, passage)
    if isinstance(decision, Admit):
        return within_share(decision, known, policy, tenant=TENANT, max_share=0.5, now=2.0)
    return decision


@deterministic
@given(
    backends(),
    demands() | alike(),
    st.sampled_from(list(Tier)),
    st.sampled_from(list(Passage)),
    st.sampled_from(list(BlindPolicy)),
    st.none() | st.integers(1, 500),
)
def test_a_recorded_backend_decides_as_the_live_one(
    live: Occupancy, asked: Demand, base: Tier, passage: Passage, blind: BlindPolicy, backlog: int | None
) -> None:
    """Whatever the load, the layout, what was learned and the policy: the same decision, to the last digit."""
    policy = AdmissionPolicy(
        tiers=TierPolicy(), degrade=DegradePolicy(), blind=blind, max_prefill_backlog_tokens=backlog
    )
    recorded = again(standing_of("b", live, 2.0, passage, demand=asked, tenant=TENANT))
    assert decided(recorded, asked, base, policy, passage) == decided(live, asked, base, policy, passage)
    assert (recorded.ratios(9.0), recorded.telemetry(9.0)) == (live.ratios(2.0), live.telemetry(2.0))
    if live.capacity is not None:
        assert recorded.idle(9.0) is live.idle(2.0)


def test_what_comes_afterwards_changes_nothing() -> None:
    """A standing is that of its moment, however the ledger goes on."""
    live = occupancy(0.5, demand(300, cap=400))
    standing = standing_of("b", live, 0.0, Passage.OPEN)
    before = live.ratios(0.0)
    live.ledger.reserve(demand(300, cap=400), now=0.0)
    assert again(standing).ratios(0.0) == before != live.ratios(0.0)


@pytest.mark.parametrize(("waiting", "floor", "projected"), [(1, 0.9, 0.9), (1, 0.2, 0.5), (0, 0.9, 0.5)])
def test_a_queue_counts_as_whoever_looks_says(waiting: int, floor: float, projected: float) -> None:
    """The floor is a policy's, and holds only while requests waited."""
    live = occupancy(0.5, waiting=waiting)
    live.observe(sample(0.5, waiting=waiting), asked_at=0.0)
    recorded = again(standing_of("b", live, 0.0, Passage.OPEN), queue_floor_ratio=floor)
    assert recorded.ratios(0.0).projected == projected


def test_a_backend_of_unknown_capacity_says_so() -> None:
    """There is nothing to count then, and no ratio."""
    recorded = again(standing_of("b", unscraped(), 0.0, Passage.OPEN, demand=demand()))
    assert (recorded.capacity, recorded.ratios(0.0), recorded.idle(0.0)) == (None, None, True)


def test_what_a_prompt_has_in_common_is_recorded_in_blocks() -> None:
    """So much of it is held by others; which prompts those are is not told."""
    live = occupancy(0.0, demand(160, prefix=marks(0, 0)), demand(160, prefix=marks(0, 1)))
    standing = standing_of("b", live, 0.0, Passage.OPEN, demand=demand(160, prefix=marks(0, 0)))
    assert (standing.shared_blocks, standing.match) == (
        4,
        PrefixMatch(shared=4, matched=8, own=8, owner_remaining=16),
    )


def test_a_tenant_is_given_with_what_it_holds() -> None:
    """What others hold is not counted to it; nobody by its name holds nothing."""
    live = occupancy()
    live.ledger.reserve(demand(16, cap=16), now=0.0, tenant="a")
    live.ledger.reserve(demand(16, cap=48), now=0.0, tenant="b")
    held = [standing_of("b", live, 0.0, Passage.OPEN, tenant=name).tenant_blocks for name in ("a", "b", "c")]
    assert held == [2, 4, 0]


def test_cells_of_another_layout_are_refused() -> None:
    """Sums mean nothing under a rule they were not made by."""
    forecast = Forecast(SLIDING)
    forecast.add(forecast.course(demand(100), produced=0, remaining=16))
    assert Forecast.restored(SLIDING, forecast.cells).profile.peak == forecast.profile.peak
    with pytest.raises(ValueError, match="block rule"):
        Forecast.restored(BlockRule.plain(16), forecast.cells)


def test_a_verdict_has_what_was_given_and_what_would_have_to_come_free() -> None:
    """Output tokens are summed over sequences; a refusal gives none."""
    given = Admit(
        tier=Tier.TRIM,
        demand=demand(1, 2, cap=10, copies=3),
        degradation=Degradation(output_cap=10, cut=SequenceCut.BEAMS),
        ratios=None,
        probe=True,
    )
    assert verdict_of(given) == Verdict(
        tier=Tier.TRIM, output_cap=10, cut=SequenceCut.BEAMS, given_tokens=60, probe=True
    )
    full = decide(
        demand(), Tier.REJECT, occupancy(0.97), AdmissionPolicy(tiers=TierPolicy(), degrade=DegradePolicy()), 0.0
    )
    verdict = verdict_of(full)
    assert (verdict.reason, verdict.needed_blocks, verdict.given_tokens) == (full.reason, full.needed_blocks, 0)
