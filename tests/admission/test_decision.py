"""Admit, degrade or refuse: one candidate, one backend, one moment."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvguard.admission.condition import Passage
from kvguard.admission.decision import (
    AdmissionPolicy,
    Admit,
    BlindPolicy,
    Reject,
    blocks_until_open,
    decide,
    over_backlog,
    over_permits,
    passes_blind,
    refuse_any,
    refuse_blind,
)
from kvguard.admission.footprint import Demand, Trait
from kvguard.admission.occupancy import Occupancy, Signal
from kvguard.admission.policy import Degradation, DegradePolicy, SequenceCut, TrimMode, degrade
from kvguard.admission.reasons import RejectReason
from kvguard.admission.tiers import Tier, TierPolicy, TierRule, tier_of
from kvguard.admission.usage import UsageSample
from tests.admission.build import (
    BLOCK,
    RULE,
    answers,
    demand,
    demands,
    engine,
    learned,
    learned_from,
    occupancy,
    sample,
    unscraped,
)
from tests.kit.properties import deterministic

NORMAL, TRIM, RESTRICT, REJECT = Tier
POLICY = AdmissionPolicy(tiers=TierPolicy(), degrade=DegradePolicy())
OPTED_OUT = frozenset({Trait.OPTED_OUT})


def decided(
    asked: Demand, load: Occupancy, base: Tier | None = None, policy: AdmissionPolicy = POLICY, now: float = 0.0
) -> Admit | Reject:
    """The decision with the tier in force that the load itself makes, unless one is given."""
    if base is None:
        ratios = load.ratios(now)
        base = NORMAL if ratios is None else tier_of(ratios, policy.tiers)
    return decide(asked, base, load, policy, now)


def admitted(asked: Demand, load: Occupancy, base: Tier | None = None, policy: AdmissionPolicy = POLICY) -> Admit:
    decision = decided(asked, load, base, policy)
    assert isinstance(decision, Admit)
    return decision


def refused(asked: Demand, load: Occupancy, base: Tier | None = None, policy: AdmissionPolicy = POLICY) -> Reject:
    decision = decided(asked, load, base, policy)
    assert isinstance(decision, Reject)
    return decision


# Tiers


@pytest.mark.parametrize(
    ("foreign", "prompt", "tier", "cap"),
    [
        # One block of prompt and of output each; the tier is that of the prompt held on top of the load.
        (0.0, 16, NORMAL, None),
        (0.68, 16, NORMAL, None),
        (0.69, 16, TRIM, 8),
        (0.70, 16, TRIM, 8),
        (0.83, 16, TRIM, 8),
        (0.84, 16, RESTRICT, 8),
        (0.85, 16, RESTRICT, 8),
        (0.92, 16, RESTRICT, 8),
        # A candidate of its own causes a tier on an empty engine.
        (0.0, 69 * 16, NORMAL, None),
        (0.0, 70 * 16, TRIM, 8),
        (0.0, 84 * 16, TRIM, 8),
        (0.0, 85 * 16, RESTRICT, 8),
    ],
)
def test_the_level_is_that_of_the_load_with_the_candidate(
    foreign: float, prompt: int, tier: Tier, cap: int | None
) -> None:
    """A step below a threshold nothing is taken; at it the tier's degradations apply to this very request."""
    policy = replace(POLICY, degrade=DegradePolicy(floor_tokens=1))
    decision = admitted(demand(prompt, cap=16), occupancy(foreign), policy=policy)
    assert decision.tier is tier
    assert decision.degradation.output_cap == cap
    assert decision.demand.expected_output == (16 if cap is None else cap)


@pytest.mark.parametrize(
    ("base", "tier", "degradation"),
    [
        (NORMAL, NORMAL, Degradation()),
        (TRIM, TRIM, Degradation(output_cap=512)),
        (RESTRICT, RESTRICT, Degradation(output_cap=512, cut=SequenceCut.BEAMS)),
    ],
)
def test_the_tier_in_force_counts_on_an_empty_engine(base: Tier, tier: Tier, degradation: Degradation) -> None:
    """Hysteresis has kept a tier: it applies even where the load alone would not enter it."""
    decision = admitted(demand(16, cap=1024), occupancy(blocks=1000), base)
    assert (decision.tier, decision.degradation) == (tier, degradation)
    assert decision.demand.output_cap == (1024 if base is NORMAL else 512)


def test_in_reject_everything_is_refused() -> None:
    """The tier in force is enough, even on an engine that has emptied since."""
    decision = refused(demand(1, cap=1), occupancy(), REJECT)
    assert (decision.tier, decision.reason) == (REJECT, RejectReason.SATURATED)
    # One block of a hundred, far below the threshold: nothing has to come free but the tier.
    assert decision.needed_blocks == 0


def test_what_must_come_free_includes_the_margin_once_reject_is_in_force() -> None:
    """Blocks beyond the threshold, and beyond the margin where the tier has to be left first."""
    asked = demand(16, cap=16)
    at_the_door = refused(asked, occupancy(0.94), RESTRICT)
    inside = refused(asked, occupancy(0.94), REJECT)
    margin = 100 * POLICY.tiers.exit_margin
    assert at_the_door.needed_blocks == pytest.approx(1)
    assert inside.needed_blocks == pytest.approx(1 + margin)
    assert blocks_until_open(occupancy(0.94), POLICY, 0.0) == pytest.approx(100 * (0.94 - 0.95) + margin)
    assert blocks_until_open(occupancy(0.10), POLICY, 0.0) == 0
    assert blocks_until_open(unscraped(), POLICY, 0.0) == 0


# At the edge of REJECT


@pytest.mark.parametrize(
    ("foreign", "asked", "cap"),
    [
        # 94 of 100 blocks is the most that stays below 95 %.
        (0.92, demand(16, cap=16), 16),
        (0.93, demand(16, cap=16), None),
        (0.80, demand(16, cap=208), 208),
        # One block less: the cap is lowered to exactly what fits, down to the floor of 64.
        (0.80, demand(16, cap=209), 208),
        (0.80, demand(16, cap=1000), 208),
        (0.80, demand(1, cap=1000), 223),
        (0.88, demand(16, cap=1000), 80),
        (0.89, demand(16, cap=1000), 64),
        (0.90, demand(16, cap=1000), None),
        # A floor of its own.
        (0.88, demand(16, cap=1000, min_tokens=80), 80),
        (0.88, demand(16, cap=1000, min_tokens=81), None),
        # No cap known: what is expected counts, and what fits becomes the cap.
        (0.80, demand(16, cap=None, expected=512), 208),
        # Every prompt and copy: 2 x (1 + 2) blocks at 16..32 tokens of output.
        (0.80, demand(16, cap=1000, copies=2), 96),
        # It may not be trimmed.
        (0.80, demand(16, cap=209, traits=OPTED_OUT), None),
        (0.80, demand(16, cap=208, traits=OPTED_OUT), 208),
        (0.80, demand(16, cap=209, traits=frozenset({Trait.TOOLS})), None),
    ],
)
def test_the_largest_cap_that_fits(foreign: float, asked: Demand, cap: int | None) -> None:
    """Below REJECT a request passes; at it the cap falls to what fits; where not even the floor fits it is refused."""
    policy = replace(POLICY, degrade=DegradePolicy(trim_factor=1.0, max_output_tokens=100_000))
    decision = decided(asked, occupancy(foreign), NORMAL, policy)
    if cap is None:
        assert isinstance(decision, Reject)
        assert (decision.tier, decision.reason) == (REJECT, RejectReason.SATURATED)
        assert decision.needed_blocks >= 0
    else:
        assert isinstance(decision, Admit)
        assert decision.demand.expected_output == cap
        assert decision.degradation.output_cap == (None if cap == asked.output_cap else cap)


def test_a_request_that_only_fits_below_its_trimmed_cap() -> None:
    """It is given every degradation and admitted as far as it fits; nothing that is admitted is at REJECT."""
    decision = admitted(demand(16, cap=1000, copies=4, beams=True), occupancy(0.88), NORMAL)
    assert decision.tier is RESTRICT
    assert decision.degradation == Degradation(output_cap=80, cut=SequenceCut.BEAMS)
    assert decision.demand == demand(16, cap=80, asked_cap=1000)


def test_fewer_sequences_may_be_enough() -> None:
    """Four beams do not fit, one does: with its trimmed cap, not with less."""
    decision = admitted(demand(160, cap=160, copies=4, beams=True), occupancy(0.5), NORMAL)
    assert decision.degradation == Degradation(output_cap=80, cut=SequenceCut.BEAMS)
    assert decision.demand == demand(160, cap=80, asked_cap=160)


@pytest.mark.parametrize(
    ("foreign", "asked", "cap"),
    [
        # Such answers get to 325 tokens: 22 blocks with the prompt, where 94 are to be had.
        (0.72, demand(16, cap=1000), 1000),
        (0.73, demand(16, cap=1000), 320),
        # One token less than they get to may be what fits.
        (0.73, demand(12, cap=1000), 324),
        (0.72, demand(16, cap=None, expected=256), 1000),
        (0.73, demand(16, cap=None, expected=256), 320),
        (0.88, demand(16, cap=1000), 80),
        (0.89, demand(16, cap=1000), None),
    ],
)
def test_what_was_learned_decides_what_fits(foreign: float, asked: Demand, cap: int | None) -> None:
    """Short answers need no lower cap, and an answer longer than assumed is cut where it no longer fits."""
    policy = replace(POLICY, degrade=DegradePolicy(trim_factor=1.0, max_output_tokens=1000, floor_tokens=80))
    decision = decided(asked, occupancy(foreign, lengths=learned(325)), NORMAL, policy)
    assert (decision.demand.output_cap if isinstance(decision, Admit) else None) == cap


def test_trimming_does_not_borrow_the_lengths_of_smaller_requests() -> None:
    """Requests for 1024 get short answers and those for 512 long ones: trimmed from 1024 it is still a short one."""
    lengths = learned(16, cap=1024)
    lengths.observe(512, cap=512)
    decision = admitted(demand(16, cap=1024), occupancy(0.80, lengths=lengths))
    assert decision.degradation == Degradation(output_cap=512)


def test_a_refusal_says_how_many_blocks_it_lacks() -> None:
    """The blocks above the threshold that the degraded candidate would take."""
    decision = refused(demand(160, cap=160), occupancy(0.9))
    # Ten blocks of prompt and five of the trimmed answer on top of ninety.
    assert decision.needed_blocks == pytest.approx(90 + 15 - 95)
    assert decision.ratios == occupancy(0.9).ratios(0.0)


def test_a_burst_is_stopped_by_the_ledger() -> None:
    """With the gauge frozen at zero, requests of two blocks pass until the next would reach 95 of 100."""
    load = occupancy()
    decisions = []
    for _ in range(60):
        decision = decided(demand(16, cap=16), load)
        decisions.append(isinstance(decision, Admit))
        if isinstance(decision, Admit):
            load.ledger.reserve(decision.demand, now=0.0)
    assert decisions == [True] * 47 + [False] * 13


def test_a_decision_changes_nothing() -> None:
    """Deciding twice gives the same and reserves nothing."""
    load = occupancy(0.5, demand(160, cap=160))
    first = decided(demand(16, cap=1000), load)
    assert decided(demand(16, cap=1000), load) == first
    assert load.ledger.live == 1


# Never and idle


@pytest.mark.parametrize(
    ("asked", "base", "reason"),
    [
        (demand(100 * 16 + 1, cap=1), NORMAL, RejectReason.TOO_LARGE),
        (demand(1, 100 * 16 + 1, cap=1), NORMAL, RejectReason.TOO_LARGE),
        # It will not fit later either: that is said even while everything is refused.
        (demand(100 * 16 + 1, cap=1), REJECT, RejectReason.TOO_LARGE),
        (demand(100 * 16, cap=1), REJECT, RejectReason.SATURATED),
    ],
)
def test_a_prompt_larger_than_the_cache(asked: Demand, base: Tier, reason: RejectReason) -> None:
    """One block more than an empty engine has can never run; the whole of it can."""
    assert refused(asked, occupancy(), base).reason is reason


def test_a_prompt_must_fit_one_engine_of_several() -> None:
    """Two engines of 100 blocks hold no prompt of 101."""
    load = occupancy()
    load.observe(UsageSample(engines=(engine(0.0), engine(0.0, name="1"))), asked_at=0.0)
    assert refused(demand(100 * 16 + 1, cap=1), load).reason is RejectReason.TOO_LARGE
    assert isinstance(decided(demand(100 * 16, cap=1), load), Admit)


@pytest.mark.parametrize(
    ("asked", "cap", "copies"),
    [
        (demand(100 * 16, cap=1000), 64, 1),
        (demand(100 * 16, cap=None, expected=512), 64, 1),
        (demand(100 * 16, cap=64), 64, 1),
        (demand(100 * 16, cap=1000, traits=OPTED_OUT), 1000, 1),
        (demand(90 * 16, cap=1000, copies=4, beams=True), 64, 1),
        (demand(90 * 16, cap=1000, copies=4), 64, 4),
    ],
)
def test_an_idle_engine_takes_whatever_can_run(asked: Demand, cap: int, copies: int) -> None:
    """What not even its floor brings below REJECT is admitted alone, at its floor if it has one."""
    decision = admitted(asked, occupancy())
    assert (decision.demand.output_cap, decision.demand.copies) == (cap, copies)
    assert decision.degradation.output_cap == (None if cap == asked.output_cap else cap)


@pytest.mark.parametrize("load", [occupancy(0.01), occupancy(0.0, demand(1, cap=1))])
def test_an_engine_that_runs_anything_is_not_idle(load: Occupancy) -> None:
    """A block of foreign load or the smallest reservation, and the same request is refused."""
    assert refused(demand(100 * 16, cap=1000), load).reason is RejectReason.SATURATED


# Blind


def never_scraped() -> Occupancy:
    return unscraped()


def answering_without_a_gauge() -> Occupancy:
    built = never_scraped()
    built.observe(sample(None), asked_at=0.0)
    return built


def gauge_without_capacity() -> Occupancy:
    built = never_scraped()
    built.observe(sample(0.5, blocks=None), asked_at=0.0)
    return built


def stale() -> Occupancy:
    return occupancy(0.5, now=-100.0)


LEDGER, OPEN, CLOSED = BlindPolicy
SATURATED = RejectReason.SATURATED


@pytest.mark.parametrize(
    ("load", "blind", "reason"),
    [
        (occupancy(0.5), LEDGER, None),
        (occupancy(0.5), OPEN, None),
        (occupancy(0.5), CLOSED, None),
        (stale(), LEDGER, None),
        (stale(), OPEN, None),
        (stale(), CLOSED, RejectReason.STALE_METRICS),
        (answering_without_a_gauge(), LEDGER, None),
        (answering_without_a_gauge(), OPEN, None),
        (answering_without_a_gauge(), CLOSED, RejectReason.NO_METRICS),
        (never_scraped(), LEDGER, RejectReason.BACKEND_UNREACHABLE),
        (never_scraped(), OPEN, None),
        (never_scraped(), CLOSED, RejectReason.BACKEND_UNREACHABLE),
        (gauge_without_capacity(), LEDGER, RejectReason.NO_METRICS),
        (gauge_without_capacity(), OPEN, None),
        (gauge_without_capacity(), CLOSED, RejectReason.NO_METRICS),
    ],
)
def test_deciding_blind(load: Occupancy, blind: BlindPolicy, reason: RejectReason | None) -> None:
    """LEDGER needs a capacity, CLOSED a fresh gauge as well, OPEN nothing; the reason says what is not known."""
    policy = replace(POLICY, blind=blind)
    assert refuse_blind(load, policy, 0.0) is reason
    decision = decided(demand(16, cap=16), load, NORMAL, policy)
    if reason is None:
        assert isinstance(decision, Admit)
    else:
        assert decision == Reject(tier=NORMAL, reason=reason, ratios=None)


@pytest.mark.parametrize(
    ("load", "blind", "passes"),
    [
        (occupancy(0.5), OPEN, False),
        (stale(), OPEN, True),
        (stale(), LEDGER, False),
        (stale(), CLOSED, False),
        (never_scraped(), OPEN, True),
        (gauge_without_capacity(), OPEN, False),
    ],
)
def test_only_an_open_door_lets_everything_pass(load: Occupancy, blind: BlindPolicy, passes: bool) -> None:
    """Without a fresh gauge and with OPEN, and never otherwise."""
    assert passes_blind(load, replace(POLICY, blind=blind), 0.0) is passes


@pytest.mark.parametrize("blind", [never_scraped, gauge_without_capacity, stale])
def test_an_open_door_changes_nothing(blind: Callable[[], Occupancy]) -> None:
    """Blind and OPEN: the request passes as it came, whatever the tier in force and the ledger say."""
    load = blind()
    load.ledger.reserve(demand(100 * 16, cap=16), now=0.0)
    asked = demand(16, cap=1024, copies=4, beams=True)
    decision = admitted(asked, load, REJECT, replace(POLICY, blind=OPEN))
    assert decision == Admit(tier=NORMAL, demand=asked, degradation=Degradation(), ratios=load.ratios(0.0))


def test_a_stale_gauge_leaves_the_ledger_in_charge() -> None:
    """Under LEDGER what kvguard itself has admitted still fills the cache."""
    load = stale()
    load.ledger.reserve(demand(94 * 16, cap=1, expected=0), now=0.0)
    assert refused(demand(16, cap=16), load).reason is RejectReason.SATURATED


# The engine's condition


STALLED = RejectReason.BACKEND_STALLED


@pytest.mark.parametrize(
    ("asked", "base", "passage", "reason", "probe"),
    [
        (demand(16), NORMAL, Passage.OPEN, None, False),
        (demand(16), NORMAL, Passage.SHUT, STALLED, False),
        (demand(16), REJECT, Passage.SHUT, STALLED, False),
        # A probe is decided on as any request; where it would be refused the stall is why.
        (demand(16), NORMAL, Passage.TRICKLE, None, True),
        (demand(16), REJECT, Passage.TRICKLE, STALLED, False),
        (demand(100 * 16 + 1), NORMAL, Passage.TRICKLE, RejectReason.TOO_LARGE, False),
        # A gauge that is doubted keeps nobody out, but is no reason to call everything a probe.
        (demand(16), NORMAL, Passage.DOUBT, None, False),
        (demand(16), REJECT, Passage.DOUBT, None, True),
        (demand(100 * 16 + 1), REJECT, Passage.DOUBT, RejectReason.TOO_LARGE, False),
        (demand(16), REJECT, Passage.OPEN, SATURATED, False),
    ],
)
def test_the_engines_condition_decides_first(
    asked: Demand, base: Tier, passage: Passage, reason: RejectReason | None, probe: bool
) -> None:
    """Shut for everybody, or for all but a probe."""
    decision = decide(asked, base, occupancy(0.5), POLICY, 0.0, passage)
    if isinstance(decision, Admit):
        assert (reason, decision.probe) == (None, probe)
    else:
        assert decision.reason is reason


def test_a_probe_of_a_doubted_gauge_asks_for_as_little_as_may_be() -> None:
    """As on an idle engine: degraded, at its floor."""
    decision = decide(demand(16, cap=1000, copies=4, beams=True), REJECT, occupancy(0.97), POLICY, 0.0, Passage.DOUBT)
    assert isinstance(decision, Admit)
    assert (decision.tier, decision.demand.output_cap, decision.demand.copies) == (RESTRICT, 64, 1)


def test_without_knowledge_the_condition_is_not_asked() -> None:
    """Why nothing is known comes before what was known."""
    closed = replace(POLICY, blind=CLOSED)
    decision = decide(demand(16), NORMAL, stale(), closed, 0.0, Passage.SHUT)
    assert decision == Reject(tier=NORMAL, reason=RejectReason.STALE_METRICS, ratios=None)


@pytest.mark.parametrize(
    ("load", "tier", "blind", "passage", "reason"),
    [
        (occupancy(0.5), NORMAL, LEDGER, Passage.OPEN, None),
        (occupancy(0.5), REJECT, LEDGER, Passage.OPEN, SATURATED),
        (occupancy(0.5), NORMAL, LEDGER, Passage.SHUT, STALLED),
        (occupancy(0.5), REJECT, LEDGER, Passage.SHUT, STALLED),
        (occupancy(0.5), NORMAL, LEDGER, Passage.TRICKLE, None),
        (occupancy(0.5), REJECT, LEDGER, Passage.TRICKLE, STALLED),
        (occupancy(0.5), REJECT, LEDGER, Passage.DOUBT, None),
        (stale(), REJECT, CLOSED, Passage.SHUT, RejectReason.STALE_METRICS),
        (stale(), REJECT, OPEN, Passage.OPEN, None),
    ],
)
def test_what_any_request_is_refused_for(
    load: Occupancy, tier: Tier, blind: BlindPolicy, passage: Passage, reason: RejectReason | None
) -> None:
    """Before its body is read; None where the request itself decides."""
    assert refuse_any(load, tier, replace(POLICY, blind=blind), 0.0, passage) is reason


@pytest.mark.parametrize(
    ("limit", "waiting", "asked", "over"),
    [
        (None, 100_000, 16, False),
        (100, 80, 20, False),
        (100, 80, 21, True),
        (100, 101, 1, True),
        # Where nothing waits any prompt may.
        (100, 0, 1600, False),
    ],
)
def test_a_prefill_backlog_is_bounded(limit: int | None, waiting: int, asked: int, over: bool) -> None:
    """With the request's own prompt, and only by a limit that was set."""
    load = occupancy(0.0, blocks=10_000)
    if waiting:
        load.ledger.reserve(demand(waiting), now=0.0)
    policy = replace(POLICY, max_prefill_backlog_tokens=limit)
    assert over_backlog(demand(asked), load, policy) is over
    decision = decided(demand(asked), load, policy=policy)
    assert isinstance(decision, Reject) is over
    if isinstance(decision, Reject):
        assert (decision.reason, decision.tier) == (SATURATED, REJECT)


@pytest.mark.parametrize(
    ("left", "sequences", "live", "over"),
    [(None, 9, True, False), (2, 2, True, False), (2, 3, True, True), (0, 1, True, True), (2, 3, False, False)],
)
def test_an_engine_is_not_sent_more_than_it_takes_in(left: int | None, sequences: int, live: bool, over: bool) -> None:
    """What it would answer with a 429 is refused here, in order; an idle one may say so itself."""
    load = occupancy(0.0, *([demand(16)] if live else []))
    load.permits = None if left is None else left + load.ledger.sequences
    asked = demand(16, copies=sequences)
    assert over_permits(asked, load, 0.0) is over
    decision = decided(asked, load)
    assert isinstance(decision, Reject) is over
    if isinstance(decision, Reject):
        assert (decision.reason, decision.tier) == (SATURATED, REJECT)
    assert isinstance(decided(asked, load, policy=replace(POLICY, exempt=True)), Admit)


# Properties

degrade_policies = st.builds(
    DegradePolicy,
    trim_factor=st.floats(0.01, 1),
    max_output_tokens=st.integers(64, 300),
    floor_tokens=st.integers(1, 64),
    collapse_n=st.booleans(),
)
held = st.lists(demands(), max_size=4)


@deterministic
@given(
    asked=demands(largest=1000),
    common=held,
    more=held,
    seen=answers,
    foreign=st.tuples(st.floats(0, 1.1), st.floats(0, 1.1)),
    bases=st.tuples(st.sampled_from(Tier), st.sampled_from(Tier)),
    degrade_policy=degrade_policies,
)
def test_more_load_never_admits_more(
    asked: Demand,
    common: list[Demand],
    more: list[Demand],
    seen: list[tuple[int, int | None]],
    foreign: tuple[float, float],
    bases: tuple[Tier, Tier],
    degrade_policy: DegradePolicy,
) -> None:
    """Refused at a load is refused at any higher; admitted at both, the higher load takes at least as much from it."""
    policy = replace(POLICY, degrade=degrade_policy)
    low, high = (
        decide(asked, base, occupancy(ratio, *running, lengths=learned_from(seen)), policy, 0.0)
        for base, ratio, running in zip(sorted(bases), sorted(foreign), (common, common + more), strict=True)
    )
    if isinstance(low, Reject):
        assert isinstance(high, Reject)
    elif isinstance(high, Admit):
        assert low.tier <= high.tier
        assert low.demand.sequences >= high.demand.sequences
        assert low.demand.expected_output >= high.demand.expected_output
        caps = [decision.degradation.output_cap for decision in (low, high)]
        assert caps[0] is None or (caps[1] is not None and caps[0] >= caps[1])


@deterministic
@given(
    asked=demands(largest=1000),
    running=held,
    seen=answers,
    foreign=st.floats(0, 1.1),
    base=st.sampled_from(Tier),
    degrade_policy=degrade_policies,
)
def test_what_is_admitted_fits(
    asked: Demand,
    running: list[Demand],
    seen: list[tuple[int, int | None]],
    foreign: float,
    base: Tier,
    degrade_policy: DegradePolicy,
) -> None:
    """Below REJECT with the candidate as degraded, or alone on an idle engine; never under REJECT; never enlarged."""
    policy = replace(POLICY, degrade=degrade_policy)
    load = occupancy(foreign, *running, lengths=learned_from(seen))
    decision = decide(asked, base, load, policy, 0.0)
    if isinstance(decision, Reject):
        return
    ratios = load.ratios(0.0, decision.demand)
    assert ratios is not None
    assert REJECT not in (base, decision.tier)
    assert load.idle(0.0) or policy.tiers.reject.ratio(ratios) < policy.tiers.reject.enter
    assert decision.tier >= base
    assert decision.demand.prompts == asked.prompts
    assert decision.demand.reserved_blocks(RULE) <= asked.reserved_blocks(RULE)
    cap = decision.degradation.output_cap
    assert decision.demand.output_cap == (asked.output_cap if cap is None else cap)
    assert cap is None or cap >= max(asked.min_tokens, degrade_policy.floor_tokens)


@deterministic
@given(
    asked=demands(largest=1000).map(lambda asked: replace(asked, traits=frozenset(), min_tokens=0)),
    held_blocks=st.integers(0, 94),
    length=st.none() | st.integers(1, 1000),
)
def test_no_larger_cap_would_fit(asked: Demand, held_blocks: int, length: int | None) -> None:
    """A cap lowered below its trimmed value is the largest that stays below REJECT."""
    policy = replace(POLICY, degrade=DegradePolicy(trim_factor=1.0, floor_tokens=1))
    lengths = learned() if length is None else learned(length)
    load = occupancy(0.0, demand(held_blocks * BLOCK, cap=1, expected=0), lengths=lengths)
    decision = decide(asked, NORMAL, load, policy, 0.0)
    trimmed, _ = degrade(asked, RESTRICT, policy.degrade)
    cap = decision.degradation.output_cap if isinstance(decision, Admit) else None
    if cap is None or cap == trimmed.output_cap:
        return
    ratios = load.ratios(0.0, trimmed.with_cap(cap + 1))
    assert ratios is not None
    assert policy.tiers.reject.ratio(ratios) >= policy.tiers.reject.enter


# Exempt requests, proportional trims


@pytest.mark.parametrize("base", Tier)
def test_what_is_exempt_passes_unchanged(base: Tier) -> None:
    """However full the cache is and whatever tier is in force; only what can never run is refused."""
    policy, asked = replace(POLICY, exempt=True), demand(160, cap=1000)
    decision = admitted(asked, occupancy(0.99), base, policy)
    assert (decision.demand, decision.degradation, decision.tier) == (asked, Degradation(), NORMAL)
    assert refused(demand(1601), occupancy(0.99), base, policy).reason is RejectReason.TOO_LARGE
    late = occupancy(0.5)
    late.ledger.reserve(demand(80), now=0.0)
    assert admitted(asked, late, base, replace(policy, max_prefill_backlog_tokens=100)).demand == asked


@pytest.mark.parametrize(
    ("passage", "early", "late"),
    [
        (Passage.OPEN, None, False),
        (Passage.DOUBT, None, False),
        (Passage.TRICKLE, None, True),
        (Passage.SHUT, STALLED, STALLED),
    ],
)
def test_what_is_exempt_waits_for_an_engine_that_stands_like_all(
    passage: Passage, early: RejectReason | None, late: RejectReason | bool
) -> None:
    """Where it passes although the cache is full it is a probe of a stall only: nothing else would refuse it."""
    policy, load = replace(POLICY, exempt=True), occupancy(0.99)
    assert refuse_any(load, REJECT, policy, 0.0, passage) is early
    decision = decide(demand(16), REJECT, load, policy, 0.0, passage)
    assert (decision.probe if isinstance(decision, Admit) else decision.reason) is late


@pytest.mark.parametrize(
    ("foreign", "cap"),
    [(0.68, None), (0.69, None), (0.70, 967), (0.75, 800), (0.765, 750), (0.83, 534), (0.84, 500), (0.90, 500)],
)
def test_a_proportional_trim_follows_the_load(foreign: float, cap: int | None) -> None:
    """The load with the request: hardly anything just above TRIM, everything from RESTRICT on."""
    tiers = TierPolicy(reject=TierRule(enter=0.95, signals=(Signal.PROJECTED,)))
    policy = AdmissionPolicy(tiers=tiers, degrade=DegradePolicy(mode=TrimMode.PROPORTIONAL))
    found = admitted(demand(16, cap=1000), occupancy(foreign), policy=policy).degradation.output_cap
    assert found == (cap and pytest.approx(cap, abs=1))


# What generates nothing


def prefill(*prompts: int) -> Demand:
    return demand(*prompts, cap=0, fixed_length=True, streamed=False)


@pytest.mark.parametrize(
    ("foreign", "prompts", "tier"),
    [
        (0.68, (16,), NORMAL),
        (0.69, (16,), TRIM),
        (0.84, (16,), RESTRICT),
        (0.93, (16,), RESTRICT),
        (0.94, (16,), None),
        (0.90, (16,) * 4, RESTRICT),
        (0.90, (16,) * 5, None),
    ],
)
def test_a_demand_that_generates_nothing_is_weighed_by_its_prompts(
    foreign: float, prompts: tuple[int, ...], tier: Tier | None
) -> None:
    """Its course is over with its prefill; no tier finds anything to lower, and what does not fit is refused."""
    decision = decided(prefill(*prompts), occupancy(foreign))
    if tier is None:
        assert isinstance(decision, Reject)
        assert (decision.reason, decision.needed_blocks) == (RejectReason.SATURATED, pytest.approx(0, abs=1e-9))
        return
    assert isinstance(decision, Admit)
    assert (decision.tier, decision.degradation.output_cap) == (tier, None)
    assert decision.demand == prefill(*prompts)


def test_an_idle_engine_computes_whatever_fits_it() -> None:
    """More prompts than the cache holds at once run one after the other; one larger than the cache never does."""
    assert admitted(prefill(*(160,) * 20), occupancy(0.0)).degradation.output_cap is None
    assert refused(prefill(1601), occupancy(0.0)).reason is RejectReason.TOO_LARGE


@pytest.mark.parametrize("policy", [POLICY, replace(POLICY, degrade=DegradePolicy(floor_tokens=1, collapse_n=True))])
@deterministic
@given(st.floats(0, 1), st.lists(st.integers(0, 400), min_size=1, max_size=5))
def test_a_demand_that_generates_nothing_never_changes(
    policy: AdmissionPolicy, foreign: float, prompts: list[int]
) -> None:
    """Whatever the load and the floor, it is admitted as it came or refused."""
    decision = decided(prefill(*prompts), occupancy(foreign), policy=policy)
    if isinstance(decision, Admit):
        assert (decision.demand, decision.degradation.output_cap) == (prefill(*prompts), None)
