"""The core in a closed loop with an engine, through bursts, foreign load, restarts, freezes and clients that leave."""

import itertools

import pytest

from kvguard.admission.blocks import NO_SURGE
from kvguard.admission.condition import EngineState, Passage
from kvguard.admission.decision import Admit, Reject, decide
from kvguard.admission.footprint import Demand
from kvguard.admission.ledger import ReservationState
from kvguard.admission.reasons import RejectReason
from kvguard.admission.tiers import Tier
from kvguard.proxy.controller import Admission, Refusal
from tests.kit.closed_loop import SCRAPE_EVERY, STALL_SECONDS, TICK, World

TICKS = 500
RESTARTS = (120, 240, 241)
FREEZE = range(300, 440)


def sums(world: World) -> tuple[float, ...]:
    """Everything an ending changes."""
    ledger = world.backend.ledger
    blocks = ledger.held_blocks, ledger.reserved_blocks, ledger.surge.blocks, ledger.profile.peak
    return (*blocks, ledger.live, ledger.sequences, ledger.prefill_tokens, ledger.awaited_streams)


def adds_up(world: World) -> None:
    """The ledger's sums are those over the requests that are really there."""
    ledger, capacity = world.backend.ledger, world.backend.occupancy.capacity
    live = [served.admission.reservation for served in world.live]
    assert (ledger.live, ledger.violations) == (len(live), 0)
    assert {reservation.state for reservation in live} <= {ReservationState.LIVE}
    assert ledger.sequences == sum(reservation.demand.sequences for reservation in live)
    if capacity is not None:
        held = [r.demand.held_blocks(capacity.rule, produced=r.produced) for r in live]
        full = [r.demand.reserved_blocks(capacity.rule) for r in live]
        assert ledger.held_blocks == sum(held)
        assert ledger.reserved_blocks == sum(map(max, held, full))
    assert ledger.surge == sum((reservation.surge for reservation in live), NO_SURGE)
    begun = [reservation for reservation in live if not reservation.produced]
    assert ledger.awaited_streams == sum(reservation.demand.streamed for reservation in begun)
    assert ledger.prefill_tokens == sum(r.demand.prompt_tokens for r in begun if r.demand.streamed or not r.seen)


def ends_once(world: World) -> None:
    """Whatever has ended stays as it ended, however often it is ended again."""
    before, freed = sums(world), world.backend.freed_blocks.value(world.now)
    for served in world.ended[-5:]:
        state = served.admission.reservation.state
        world.controller.release(served.admission, now=world.now)
        assert served.admission.reservation.state is state is not ReservationState.LIVE
    assert (sums(world), world.backend.freed_blocks.value(world.now)) == (before, freed)


def more_load_admits_no_more(world: World, demand: Demand) -> None:
    """With more foreign load the same request is refused, or given no more than without."""
    backend, policy, occupancy = world.backend, world.controller.policy, world.backend.occupancy
    decisions = []
    foreign = occupancy.foreign_blocks
    for more in (0.0, 0.5, 20.0):
        occupancy.foreign_blocks = foreign + more
        base = backend.tier_at(policy.tiers, world.now).tier
        decisions.append(decide(demand, base, occupancy, policy, world.now, backend.passage(world.now)))
    occupancy.foreign_blocks = foreign
    for lighter, heavier in itertools.pairwise(decisions):
        if isinstance(heavier, Admit) and not heavier.probe:
            assert isinstance(lighter, Admit)
            assert heavier.demand.output_cap <= lighter.demand.output_cap
            assert heavier.demand.copies <= lighter.demand.copies


def admitted(world: World, demand: Demand) -> Admission | Refusal:
    """Decide, and look at what that makes of the ratio."""
    more_load_admits_no_more(world, demand)
    backend, policy, now = world.backend, world.controller.policy, world.now
    occupancy, tier, passage = backend.occupancy, backend.tier_at(policy.tiers, now).tier, backend.passage(now)
    held_off = decide(demand, Tier.REJECT, occupancy, policy, now, passage)
    assert isinstance(held_off, Reject) or held_off.probe
    decision = decide(demand, tier, occupancy, policy, now, passage)
    if isinstance(decision, Admit) and not decision.probe:
        assert (tier is not Tier.REJECT, passage is not Passage.SHUT) == (True, True)
        ratio = policy.tiers.reject.ratio(occupancy.ratios(now, decision.demand))
        assert ratio < policy.tiers.reject.enter or occupancy.idle(now)
    outcome = world.controller.admit(world.controller.call(lambda _: demand), now)
    assert isinstance(outcome, Admission) == isinstance(decision, Admit)
    return outcome


def drive(world: World) -> None:
    """One tick of bursts, bypassing load and clients that leave."""
    rng = world.rng
    for _ in range(rng.choice((0,) * 30 + (1, 1, 1, 2, 20))):
        world.arrive()
    if rng.random() < 0.02:
        world.bypass()
    if rng.random() < 0.05:
        world.leave()
    world.tick()


@pytest.mark.parametrize("seed", range(5))
def test_the_core_keeps_its_promises_in_a_closed_loop(seed: int) -> None:
    """Sums add up, an ending is final, REJECT and a stall admit nothing, more load admits no more, all ends empty."""
    print(f"seed {seed}")
    world = World(seed, admit=admitted)
    stalled = []
    for number in range(TICKS):
        if number in RESTARTS:
            world.restart()
        if number == FREEZE.start:
            world.freeze(len(FREEZE) * TICK)
        drive(world)
        adds_up(world)
        ends_once(world)
        if world.backend.watch.condition.state is EngineState.STALLED:
            stalled.append(world.now)
    assert FREEZE.start * TICK + STALL_SECONDS - SCRAPE_EVERY <= min(stalled) <= FREEZE.stop * TICK
    assert max(stalled) <= FREEZE.stop * TICK + 2 * SCRAPE_EVERY
    assert RejectReason.BACKEND_STALLED in {refusal.reason for refusal in world.refusals}
    assert RejectReason.SATURATED in {refusal.reason for refusal in world.refusals}
    assert world.admitted > 10
    while world.live:
        world.tick()
    adds_up(world)
    ends_once(world)
    assert set(sums(world)) == {0}
