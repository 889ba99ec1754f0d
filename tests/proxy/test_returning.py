"""When refused clients are told to come back, and whether they find room when they do."""

import heapq
import random
from itertools import pairwise

import pytest

from kvguard.admission.decision import Reject
from kvguard.admission.footprint import Demand
from kvguard.admission.reasons import RejectReason
from kvguard.admission.retry import RetryPolicy
from kvguard.admission.tiers import Tier
from kvguard.admission.waiting import Ticket, WaitingPolicy, WaitingRoom
from kvguard.pool.backend import Backend
from kvguard.proxy.controller import Refusal
from kvguard.proxy.returning import Returning
from kvguard.simulator.config import SimConfig
from kvguard.simulator.engine import SequenceRequest, SimEngine
from tests.admission.build import demand, occupancy
from tests.kit.closed_loop import TICK, Served, World

SEEDS = range(2)


def full(*, waiting_blocks: float = 0.0, **policy: float) -> tuple[Returning, Backend]:
    """A backend on which ten requests of ten blocks each run, one ending every two seconds."""
    backend = Backend(name="b", url="http://b", occupancy=occupancy(now=1000.0))
    for number in range(10):
        reservation = backend.reserve(demand(150 - 10 * number, cap=10 + 20 * (number + 1)), 999.0)
        backend.ledger.progress(reservation, 10)
    room = WaitingRoom(WaitingPolicy(max_requests=9))
    if waiting_blocks:
        room.enter(Ticket(blocks=waiting_blocks))
    return Returning(RetryPolicy(**policy), room, random.Random(1)), backend


def rejected(reason: RejectReason = RejectReason.SATURATED, needed: float = 5.0) -> Reject:
    return Reject(tier=Tier.REJECT, reason=reason, ratios=None, needed_blocks=needed)


def test_each_refused_client_is_told_a_later_time() -> None:
    """They come back one after another, the first when the cache has drained, none after the most."""
    returning, backend = full(spread=0.0)
    first = returning.wait_seconds(backend, rejected(), 1000.0)
    told = [returning.retry_after_seconds(backend, rejected(), 5, 1000.0) or 0.0 for _ in range(40)]
    assert told[0] == pytest.approx(first)
    assert all(earlier < later for earlier, later in pairwise(told[1:]) if later < 30.0)
    assert max(told) == 30.0


def test_those_who_wait_go_first() -> None:
    """What waits for blocks inside is served before anybody comes back."""
    alone, behind = (full(waiting_blocks=blocks) for blocks in (0.0, 40.0))
    assert (alone[0].wait_seconds(alone[1], rejected(), 1000.0) or 0.0) < (
        behind[0].wait_seconds(behind[1], rejected(), 1000.0) or 0.0
    )


def test_what_is_said_lies_within_what_is_explained() -> None:
    """The bounds change nothing, and the time is spread between them."""
    returning, backend = full(spread=0.5)
    bounds = returning.bounds(backend, rejected(), 1000.0)
    assert bounds == returning.bounds(backend, rejected(), 1000.0)
    assert bounds is not None
    told = returning.retry_after_seconds(backend, rejected(), 5, 1000.0)
    assert bounds[0] <= (told or 0.0) <= bounds[1] == 1.5 * bounds[0]


@pytest.mark.parametrize(
    ("reason", "bounds"),
    [
        (RejectReason.TOO_LARGE, None),
        (RejectReason.DRAINING, (1.0, 1.1)),
        (RejectReason.NO_METRICS, (1.0, 1.1)),
        (RejectReason.BACKEND_STALLED, (5.0, 5.5)),
    ],
)
def test_where_nothing_drains_a_fixed_time_is_told(reason: RejectReason, bounds: tuple[float, float] | None) -> None:
    """Never for what can never fit; at once for what may be over at any time; later for an engine that stands still."""
    returning, backend = full()
    assert returning.bounds(backend, rejected(reason), 1000.0) == (None if bounds is None else pytest.approx(bounds))
    assert (returning.retry_after_seconds(backend, rejected(reason), 0, 1000.0) is None) is (bounds is None)


def test_a_tenant_over_its_share_takes_nobodys_time() -> None:
    """Its own answers have to end, so it is told when they do, each time the same; others are told no later."""
    returning, backend = full(spread=0.0)
    own = rejected(RejectReason.TENANT_SHARE)
    assert len({returning.retry_after_seconds(backend, own, 20, 1000.0) for _ in range(5)}) == 1
    assert backend.turn_seconds(0.0, latest_seconds=30.0, now=1000.0) == 0.0


def test_an_empty_backend_promises_nothing() -> None:
    """Where nothing runs nothing is known of the drain."""
    backend = Backend(name="b", url="http://b", occupancy=occupancy(now=1000.0))
    backend.promise(5, at=1001.0, now=1000.0)
    assert backend.turn_seconds(0.0, latest_seconds=30.0, now=1000.0) == 0.0


class Rush(World):
    """An engine that finishes about ten chat requests a second, and clients that obey."""

    def _engine(self) -> SimEngine:
        self._config = SimConfig(
            num_gpu_blocks=400, block_size=16, max_model_len=1024, seed=self.rng.randrange(1 << 30)
        )
        return SimEngine(self._config)

    def request(self) -> Demand:
        prompt, cap = self.rng.randrange(16, 300), self.rng.choice((256, 512))
        return demand(prompt, cap=cap)

    def send(self, asked: Demand) -> Refusal | None:
        outcome = self.controller.refuse_early(self.now) or self.admit(self, asked)
        if isinstance(outcome, Refusal):
            return outcome
        given = outcome.decision.demand
        length = min(int(self.rng.lognormvariate(4.5, 0.6)) + 1, given.output_cap or 1)
        if not self.engine.has_work:
            self._engine_at = self.now
        sequence = self.engine.submit(
            SequenceRequest(prompt_tokens=given.prompts[0], max_tokens=given.output_cap or 1, output_tokens=length)
        )
        served = Served(outcome, {sequence: 0}, {sequence})
        self.live.append(served)
        self._by_sequence[sequence] = served
        return None


@pytest.mark.parametrize("seed", SEEDS)
def test_nine_of_ten_obedient_clients_are_admitted_when_they_come_back(seed: int) -> None:
    """Steady load of four requests a second, then sixty more within two seconds; who is refused waits as told."""
    rush = Rush(seed, lambda world, asked: world.controller.admit(world.controller.call(lambda _: asked), world.now))
    due: list[tuple[float, int, Demand]] = []
    refused = admitted_late = came_back = 0
    for tick in range(1500):
        rush.tick()
        arriving = [rush.request() for _ in range(4) if rush.rng.random() < TICK] + [
            rush.request() for _ in range(2) if 400 <= tick < 430
        ]
        returning = []
        while due and due[0][0] <= rush.now:
            returning.append(heapq.heappop(due)[2])
        for asked in [*arriving, *returning]:
            refusal = rush.send(asked)
            if refusal is not None:
                refused += 1
                heapq.heappush(due, (rush.now + (refusal.retry_after_seconds or 0.0), refused, asked))
        if tick > 300:
            came_back += len(returning)
            admitted_late += len(returning) - sum(asked is late for _, _, late in due for asked in returning)
    print(f"seed {seed}: {admitted_late} of {came_back} admitted, {refused} refusals")
    assert came_back >= 20
    assert admitted_late >= 0.9 * came_back
