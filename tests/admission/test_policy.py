"""What each tier takes from a request."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvguard.admission.blocks import BlockRule
from kvguard.admission.footprint import Demand, Trait
from kvguard.admission.policy import (
    Degradation,
    DegradePolicy,
    SequenceCut,
    TrimMode,
    degrade,
    floor_cap,
    trimmed_cap,
)
from kvguard.admission.tiers import Tier
from tests.admission.build import RULE, block_rules, demand, demands
from tests.kit.properties import deterministic

NORMAL, TRIM, RESTRICT, REJECT = Tier

policies = st.builds(
    DegradePolicy,
    trim_factor=st.floats(0.01, 1),
    max_output_tokens=st.integers(64, 300),
    floor_tokens=st.integers(1, 64),
    collapse_n=st.booleans(),
)


@pytest.mark.parametrize(
    ("cap", "min_tokens", "trimmed", "floor"),
    [
        # Half of it, at most 512, at least 64.
        (2048, 0, 512, 64),
        (1026, 0, 512, 64),
        (1024, 0, 512, 64),
        (1023, 0, 511, 64),
        (1022, 0, 511, 64),
        (130, 0, 65, 64),
        (129, 0, 64, 64),
        (128, 0, 64, 64),
        (127, 0, 64, 64),
        (65, 0, 64, 64),
        # Already as short as can be.
        (64, 0, None, None),
        (63, 0, None, None),
        (1, 0, None, None),
        # No cap known: there is nothing to halve.
        (None, 0, 512, 64),
        (None, 600, 600, 600),
        # Never below what the client wants at least.
        (1024, 511, 512, 511),
        (1024, 512, 512, 512),
        (1024, 513, 513, 513),
        (1024, 1023, 1023, 1023),
        (1024, 1024, None, None),
        (100, 63, 64, 64),
        (100, 65, 65, 65),
    ],
)
def test_how_far_a_cap_is_lowered(cap: int | None, min_tokens: int, trimmed: int | None, floor: int | None) -> None:
    """TRIM gives half within 64..512; the floor is the least; neither goes below `min_tokens` or raises a cap."""
    asked = demand(16, cap=cap, min_tokens=min_tokens)
    assert trimmed_cap(asked, DegradePolicy()) == trimmed
    assert floor_cap(asked, DegradePolicy()) == floor


@pytest.mark.parametrize(("requested", "given"), [(100, None), (256, None), (257, 256), (1024, 256), (None, 256)])
def test_a_fixed_target(requested: int | None, given: int | None) -> None:
    """With factor 1 only the absolute cap counts."""
    policy = DegradePolicy(trim_factor=1.0, max_output_tokens=256)
    assert trimmed_cap(demand(16, cap=requested), policy) == given


@pytest.mark.parametrize(
    ("trait", "untrimmed", "kept"),
    [
        (Trait.TOOLS, {Trait.TOOLS}, True),
        (Trait.TOOLS, {Trait.REASONING}, False),
        (Trait.STRUCTURED_OUTPUT, {Trait.STRUCTURED_OUTPUT}, True),
        (Trait.STRUCTURED_OUTPUT, set(), False),
        (Trait.REASONING, {Trait.REASONING}, True),
        (Trait.REASONING, set(), False),
        (Trait.OPTED_OUT, set(), True),
    ],
)
def test_which_requests_keep_their_cap(trait: Trait, untrimmed: set[Trait], kept: bool) -> None:
    """A trait listed as untrimmed keeps the cap and one that is not does not; opting out always does."""
    policy = DegradePolicy(untrimmed=frozenset(untrimmed))
    asked = demand(16, cap=1024, traits=frozenset({trait}))
    assert (trimmed_cap(asked, policy), floor_cap(asked, policy)) == ((None, None) if kept else (512, 64))


PLAIN = demand(16, cap=1024, copies=4)
BEAMS = demand(16, cap=1024, copies=4, beams=True)
SHORT = demand(16, cap=64, copies=4, beams=True)
TOOLS = demand(16, cap=1024, copies=4, beams=True, traits=frozenset({Trait.TOOLS}))
OPTED_OUT = demand(16, cap=1024, copies=4, beams=True, traits=frozenset({Trait.OPTED_OUT}))


@pytest.mark.parametrize(
    ("asked", "tier", "collapse_n", "cap", "copies", "cut"),
    [
        (BEAMS, NORMAL, True, None, 4, SequenceCut.NONE),
        (BEAMS, TRIM, True, 512, 4, SequenceCut.NONE),
        (BEAMS, RESTRICT, False, 512, 1, SequenceCut.BEAMS),
        (BEAMS, RESTRICT, True, 512, 1, SequenceCut.ALL),
        (BEAMS, REJECT, False, 512, 1, SequenceCut.BEAMS),
        (PLAIN, TRIM, False, 512, 4, SequenceCut.NONE),
        (PLAIN, RESTRICT, False, 512, 4, SequenceCut.BEAMS),
        (PLAIN, RESTRICT, True, 512, 1, SequenceCut.ALL),
        (SHORT, TRIM, False, None, 4, SequenceCut.NONE),
        (SHORT, RESTRICT, False, None, 1, SequenceCut.BEAMS),
        (TOOLS, RESTRICT, False, None, 1, SequenceCut.BEAMS),
        (OPTED_OUT, TRIM, True, None, 4, SequenceCut.NONE),
        (OPTED_OUT, RESTRICT, True, None, 4, SequenceCut.NONE),
        (OPTED_OUT, REJECT, True, None, 4, SequenceCut.NONE),
    ],
)
def test_what_a_tier_takes(
    asked: Demand, tier: Tier, collapse_n: bool, cap: int | None, copies: int, cut: SequenceCut
) -> None:
    """TRIM lowers the cap; RESTRICT also cuts beams, and plain copies if told to; the demand is what is left."""
    lighter, degradation = degrade(asked, tier, DegradePolicy(collapse_n=collapse_n))
    assert degradation == Degradation(output_cap=cap, cut=cut)
    assert lighter.copies == copies
    assert lighter.output_cap == (asked.output_cap if cap is None else cap)
    assert lighter.beams == (asked.beams and copies > 1)


@deterministic
@given(asked=demands(), tier=st.sampled_from(Tier), policy=policies, rule=block_rules())
def test_degrading_never_enlarges(asked: Demand, tier: Tier, policy: DegradePolicy, rule: BlockRule) -> None:
    """Neither cap, expectation, sequences nor blocks grow, prompts stay, and `min_tokens` still fits under the cap."""
    lighter, degradation = degrade(asked, tier, policy)
    assert lighter.prompts == asked.prompts
    assert lighter.sequences <= asked.sequences
    assert lighter.expected_output <= asked.expected_output
    assert lighter.prompt_blocks(rule) <= asked.prompt_blocks(rule)
    assert lighter.reserved_blocks(rule) <= asked.reserved_blocks(rule)
    cap = degradation.output_cap
    if cap is None:
        assert lighter.output_cap == asked.output_cap
    else:
        assert lighter.output_cap == cap
        assert cap >= max(policy.floor_tokens, asked.min_tokens)
        assert asked.output_cap is None or cap < asked.output_cap


@deterministic
@given(asked=demands(), tiers=st.tuples(st.sampled_from(Tier), st.sampled_from(Tier)), policy=policies)
def test_a_higher_tier_takes_at_least_as_much(asked: Demand, tiers: tuple[Tier, Tier], policy: DegradePolicy) -> None:
    """Tiers include those below them: the higher leaves no more tokens and no more sequences."""
    lower, higher = (degrade(asked, tier, policy)[0] for tier in sorted(tiers))
    assert higher.reserved_blocks(RULE) <= lower.reserved_blocks(RULE)
    assert higher.sequences <= lower.sequences


@deterministic
@given(asked=demands(), tier=st.sampled_from(Tier), policy=policies)
def test_the_floor_is_the_least_there_is(asked: Demand, tier: Tier, policy: DegradePolicy) -> None:
    """No tier lowers a cap below the floor, and a demand that has no floor is never trimmed."""
    floor, cap = floor_cap(asked, policy), degrade(asked, tier, policy)[1].output_cap
    assert cap is None or (floor is not None and cap >= floor)


PROPORTIONAL = DegradePolicy(mode=TrimMode.PROPORTIONAL)


@pytest.mark.parametrize(
    ("cap", "pressure", "trimmed"),
    [
        # A part of what a whole trim takes: 512 of 1024, 3584 of 4096.
        (1024, 0.0, None),
        (1024, 0.001, None),
        (1024, 0.002, 1023),
        (1024, 0.25, 896),
        (1024, 0.5, 768),
        (1024, 1.0, 512),
        (4096, 0.01, 4061),
        (4096, 1.0, 512),
        # The floor is the end of the way.
        (100, 0.5, 82),
        (100, 1.0, 64),
        (64, 1.0, None),
        # A cap that is not known has no part to keep.
        (None, 0.0, None),
        (None, 0.001, 512),
        (None, 1.0, 512),
    ],
)
def test_a_proportional_trim_takes_a_part(cap: int | None, pressure: float, trimmed: int | None) -> None:
    """Next to nothing at its threshold, all of it at the next; a step trim takes all at once."""
    assert trimmed_cap(demand(16, cap=cap), PROPORTIONAL, pressure) == trimmed
    assert trimmed_cap(demand(16, cap=cap), DegradePolicy(), pressure) == trimmed_cap(demand(16, cap=cap), PROPORTIONAL)


@deterministic
@given(asked=demands(), pressures=st.tuples(st.floats(0, 1), st.floats(0, 1)), policy=policies)
def test_more_pressure_never_leaves_more(asked: Demand, pressures: tuple[float, float], policy: DegradePolicy) -> None:
    """Nor does any pressure enlarge a cap, or take more than a step would."""
    policy = replace(policy, mode=TrimMode.PROPORTIONAL)
    mild, hard = (degrade(asked, TRIM, policy, pressure)[0] for pressure in sorted(pressures))
    step, _ = degrade(asked, TRIM, replace(policy, mode=TrimMode.STEP))
    caps = [float("inf") if one.output_cap is None else one.output_cap for one in (asked, mild, hard, step)]
    assert caps == sorted(caps, reverse=True)
    assert degrade(asked, TRIM, policy, 1.0)[0] == step
