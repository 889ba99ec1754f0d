"""Which thresholds can be reached, and whether the block rule is the engine's."""

from dataclasses import replace

import pytest

from kvguard.admission.blocks import BlockGroup, BlockRule, PoolLayout
from kvguard.admission.capacity import Capacity
from kvguard.admission.footprint import Demand
from kvguard.admission.reachability import (
    ENOUGH,
    REMEMBERED,
    Basis,
    SeenSizes,
    ThresholdState,
    ThresholdVerdict,
    rule_fit,
    threshold_verdicts,
)
from kvguard.admission.tiers import Tier, TierPolicy
from tests.admission.build import demand

PLAIN = BlockRule.plain(16)
WINDOWED = BlockRule(groups=(BlockGroup(block_size=16, sliding_window=32),), step_tokens=64)


def capacity(
    blocks: int = 1000, *, rule: BlockRule = PLAIN, engines: int = 1, published: int | None = None
) -> Capacity:
    layout = PoolLayout(rule=rule)
    return Capacity(blocks=blocks, largest_engine_blocks=blocks // engines, layout=layout, published_tokens=published)


def seen(*demands: Demand, rule: BlockRule = PLAIN) -> SeenSizes:
    """Enough requests, these among them."""
    sizes = SeenSizes()
    for number in range(ENOUGH):
        sizes.add(demands[number % len(demands)], rule)
    return sizes


def verdicts(
    of: Capacity, sizes: SeenSizes | None = None, *, seqs: int | None = None, context: int | None = None
) -> tuple[ThresholdVerdict, ...]:
    return threshold_verdicts(of, TierPolicy(), sizes or SeenSizes(), max_num_seqs=seqs, context_tokens=context)


def states(*arguments: object, **named: object) -> list[tuple[str, str | None]]:
    return [(v.state.value, v.basis and v.basis.value) for v in verdicts(*arguments, **named)]


def test_every_threshold_has_a_verdict_mildest_first() -> None:
    """TRIM, RESTRICT, REJECT."""
    assert [verdict.tier for verdict in verdicts(capacity())] == [Tier.TRIM, Tier.RESTRICT, Tier.REJECT]


TENTH = demand(16 * 99, cap=16)  # 100 blocks
UNKNOWN = ("unknown", None)


@pytest.mark.parametrize(
    ("sizes", "seqs", "context", "expected"),
    [
        # 10 sequences of 70, 85 or 95 blocks are exactly a threshold of 1000 blocks.
        (None, 10, 16 * 70 - 16, [("unreachable", "context")] * 3),
        (None, 10, 16 * 70, [("reachable", "context")] + [("unreachable", "context")] * 2),
        (None, 10, 16 * 85, [("reachable", "context")] * 2 + [("unreachable", "context")]),
        (None, 10, 16 * 95, [("reachable", "context")] * 3),
        # One request alone.
        (None, 10, 16 * 700, [("single_request", "context")] + [("reachable", "context")] * 2),
        (None, None, 16 * 850, [("single_request", "context")] * 2 + [UNKNOWN]),
        # Nothing to go by.
        (None, None, 16 * 10, [UNKNOWN] * 3),
        (None, None, None, [UNKNOWN] * 3),
        (None, 10, None, [UNKNOWN] * 3),
        # Traffic as seen: sequences of 100 blocks, or a request of seven such.
        ((TENTH,), 10, None, [("reachable", "seen")] * 3),
        ((TENTH,), 9, 16 * 1000, [("reachable", "seen")] * 2 + [("unreachable", "seen")]),
        ((TENTH,), None, None, [UNKNOWN] * 3),
        ((replace(TENTH, copies=7),), 10, None, [("single_request", "seen")] + [("reachable", "seen")] * 2),
        # What traffic does alone comes before what the context rules out; the largest counts.
        (
            (demand(16), replace(TENTH, copies=9)), 9, 16 * 100,
            [("single_request", "seen")] * 2 + [("unreachable", "context")],
        ),
    ],
)  # fmt: skip
def test_a_verdict_rests_on_traffic_or_on_the_context(
    sizes: tuple[Demand, ...] | None, seqs: int | None, context: int | None, expected: list[tuple[str, str | None]]
) -> None:
    """At the threshold it is reached, a block below it is not."""
    assert states(capacity(), seen(*sizes) if sizes else None, seqs=seqs, context=context) == expected


def test_few_requests_say_nothing() -> None:
    """One short of enough is not enough."""
    sizes = SeenSizes()
    for _ in range(ENOUGH - 1):
        sizes.add(TENTH, PLAIN)
    assert states(capacity(), sizes, seqs=10) == [UNKNOWN] * 3
    sizes.add(TENTH, PLAIN)
    assert states(capacity(), sizes, seqs=10) == [("reachable", "seen")] * 3


def test_every_engine_has_sequences_of_its_own() -> None:
    """Two engines of 500 blocks are filled by five sequences of 100 each; one request still has one pool to fill."""
    assert states(capacity(engines=2), seqs=5, context=1600) == [("reachable", "context")] * 3
    assert states(capacity(), seqs=5, context=1600) == [("unreachable", "context")] * 3


def test_prefills_of_windowed_layers_count_with_what_a_step_can_hold() -> None:
    """Settled, ten sequences hold 30 blocks; their prefills share a step's tokens and add some."""
    of = capacity(100, rule=WINDOWED)
    settled = 10 * WINDOWED.reached_blocks(1600)
    assert settled < 70 <= settled + WINDOWED.surge(1600).times(10).shared(WINDOWED) + 30
    first, *_ = verdicts(of, seqs=10, context=1600)
    together = settled + WINDOWED.surge(1600).times(10).shared(WINDOWED)
    assert f"hold {together} of 100 blocks" in first.why
    sizes = seen(demand(1500, cap=100), rule=WINDOWED)
    first, *_ = verdicts(of, sizes, seqs=10)
    assert f"hold {together} of 100 blocks" in first.why


def test_the_words_have_the_numbers() -> None:
    """Sequences, blocks, share, threshold and setting; or what is missing."""
    one = verdicts(capacity(), seqs=8, context=1600)[0]
    assert one.why == (
        "8 sequences (max_num_seqs) of the full context of 1600 tokens hold 800 of 1000 blocks (0.800), at or above "
        "0.7 (tiers.trim_at)"
    )
    assert verdicts(capacity(), seqs=8, context=1600)[1].why == (
        "8 sequences (max_num_seqs) of the full context of 1600 tokens hold 800 of 1000 blocks (0.800), below 0.85 "
        "(tiers.restrict_at): the engine's queue fills before its cache does"
    )
    assert verdicts(capacity(), seen(TENTH, demand(16)), seqs=6)[2].why == (
        "6 sequences (max_num_seqs) like the largest in the last 30 requests (100 blocks; mean 51.0) hold 600 of 1000 "
        "blocks (0.600), below 0.95 (tiers.reject_at): the engine's queue fills before its cache does"
    )
    assert verdicts(capacity(), seen(replace(TENTH, copies=8)))[0].why == (
        "one request like the largest of the last 30 requests holds 800 of 1000 blocks (0.800) alone at its fullest, "
        "at or above 0.7 (tiers.trim_at)"
    )
    assert verdicts(capacity())[0].why == "backends[].engine.max_num_seqs is not set"
    assert verdicts(capacity(), seqs=8)[0].why == "neither the context length nor enough traffic is known"


def test_a_verdict_is_another_one_when_its_state_or_basis_is() -> None:
    """Numbers alone are no news."""
    small, large = verdicts(capacity(), seqs=8, context=16)[0], verdicts(capacity(), seqs=9, context=16)[0]
    assert small != large
    assert small.key == large.key == (Tier.TRIM, ThresholdState.UNREACHABLE, Basis.CONTEXT)


def test_sizes_are_bounded_and_of_one_rule() -> None:
    """Old requests are forgotten, and all of them when the rule changes."""
    sizes = SeenSizes()
    assert (sizes.largest_sequence, sizes.mean_sequence, sizes.largest_request, sizes.largest_surge) == (0, 0.0, 0, 0)
    sizes.add(replace(TENTH, copies=3), PLAIN)
    assert (sizes.largest_sequence, sizes.largest_request, sizes.largest_surge) == (100, 300, 0)
    for _ in range(REMEMBERED):
        sizes.add(demand(16), PLAIN)
    assert (len(sizes), sizes.largest_sequence, sizes.mean_sequence) == (REMEMBERED, 2, 2.0)
    sizes.add(demand(160, cap=1), WINDOWED)
    assert (len(sizes), sizes.largest_surge) == (1, WINDOWED.surge(160).blocks)
    assert sizes.largest_request == WINDOWED.prefill_blocks(160)


@pytest.mark.parametrize(
    ("published", "context", "ratio"),
    [
        (16_000, 1600, 1.0),
        (8000, 1600, 0.5),
        (32_000, 1600, 2.0),
        (15_600, 1600, 0.975),
        (None, 1600, None),
        (16_000, None, None),
    ],
)
def test_the_rule_is_held_against_what_the_engine_publishes(
    published: int | None, context: int | None, ratio: float | None
) -> None:
    """The ratio of predicted blocks to the engine's; none where the engine or the context is silent."""
    fit = rule_fit(capacity(published=published), context)
    assert (fit and fit.ratio) == ratio
    assert fit is None or fit.fits is (abs(fit.ratio - 1) <= 0.03)


def test_a_windowed_rule_may_be_published_anywhere_up_to_its_fullest_prefill() -> None:
    """Between settled and two batches in flight it fits exactly; beyond either end it does not."""
    least = WINDOWED.reached_blocks(1600)
    most = least + 2 * WINDOWED.surge_limit(1)
    assert least < WINDOWED.prefill_blocks(1600) < most
    for engine, ratio in ((least, 1.0), (most, 1.0), (2 * most, 0.5), (least / 2, 2.0)):
        published = round(1000 * 1600 / engine)
        fit = rule_fit(capacity(rule=WINDOWED, published=published), 1600)
        assert fit is not None
        assert fit.ratio == pytest.approx(ratio, abs=1e-3)
        assert fit.fits is (ratio == 1.0)
