"""Which backend a request goes to."""

import random

import pytest

from kvguard.admission.decision import Admit
from kvguard.admission.footprint import Demand
from kvguard.admission.ledger import ReservationState
from kvguard.admission.reasons import RejectReason
from kvguard.pool.affinity import Trail
from kvguard.pool.backend import Backend
from kvguard.pool.pool import RoutingHints, RoutingPolicy
from kvguard.proxy.controller import Admission, Controller, Refusal
from kvguard.proxy.placement import weigh
from tests.proxy.test_controller import SMALL, backend, controller

TRAIL = RoutingHints(trail=Trail(parts=(1, 2)))


class Asked:
    """A request that remembers whom it was put to."""

    def __init__(self, demand: Demand = SMALL) -> None:
        self.demand = demand
        self.names: list[str] = []

    def __call__(self, of: Backend) -> Demand:
        self.names.append(of.name)
        return self.demand


def went_to(made: Controller, hints: RoutingHints, demand: Demand = SMALL) -> str:
    outcome = made.admit(made.call(lambda _: demand, hints=hints), 0.0)
    assert isinstance(outcome, Admission)
    return outcome.backend.name


def test_in_a_near_tie_the_beginning_of_the_prompt_decides() -> None:
    """Up to the margin; beyond it the emptiest is chosen, and from then on that one has seen it."""
    a, b = backend("a", 0.40), backend("b", 0.31)
    made, _ = controller(a, b)
    made.pool.policy = RoutingPolicy(affinity_margin=0.1)
    made.pool.sent(a, TRAIL.trail, 0.0)
    assert went_to(made, TRAIL) == "a"
    assert went_to(made, TRAIL) == "b"
    assert went_to(made, TRAIL) == "b"


@pytest.mark.parametrize(("a", "b", "chosen"), [(0.65, 0.60, "a"), (0.70, 0.65, "b"), (0.69, 0.69, "b")])
def test_no_request_is_degraded_for_the_sake_of_its_beginning(a: float, b: float, chosen: str) -> None:
    """Where the one that has seen it would have to trim and the other would not, the other is chosen."""
    full, empty = backend("a", a), backend("b", b - 0.01)
    made, _ = controller(full, empty)
    made.pool.sent(full, TRAIL.trail, 0.0)
    assert went_to(made, TRAIL) == chosen


def test_a_session_is_kept_together() -> None:
    """Whatever its prompts are."""
    made, _ = controller(*[backend(name, 0.3) for name in "abc"])
    first = went_to(made, RoutingHints(trail=Trail(session=9, parts=(1,))))
    assert {went_to(made, RoutingHints(trail=Trail(session=9, parts=(part,)))) for part in range(5)} == {first}


def test_of_many_only_a_few_are_weighed() -> None:
    """The one that promised least, and the one that has seen the beginning."""
    backends = [backend(f"b{number}", 0.05 * number) for number in range(1, 13)]
    made, _ = controller(*backends)
    made.pool.sent(backends[3], TRAIL.trail, 0.0)
    asked = Asked()
    made.admit(made.call(asked, hints=TRAIL), 0.0)
    assert sorted(asked.names) == ["b1", "b4"]


def test_of_many_all_are_asked_before_a_request_is_refused() -> None:
    """The one with room gets it though it promised most: its cache is larger."""
    full = [backend(f"b{number}", 0.9) for number in range(8)]
    roomy = backend("roomy", 0.91, blocks=10_000)
    made, _ = controller(*full, roomy)
    large = Demand(prompts=(160,), output_cap=16, asked_cap=16, expected_output=16)
    assert went_to(made, RoutingHints(), large) == "roomy"


def test_what_many_have_refused_is_not_weighed_again_until_there_may_be_room() -> None:
    """A second refusal only asks the one it always asks; an answer that ends lets its backend be asked again."""
    backends = [backend(f"b{number:02}", 0.94) for number in range(12)]
    held = backends[7].reserve(SMALL, 0.0)
    made, _ = controller(*backends)
    for asks in (12, 2, 2):
        asked = Asked()
        refused = made.admit(made.call(asked), 0.0)
        assert isinstance(refused, Refusal)
        assert (refused.reason, len(asked.names)) == (RejectReason.SATURATED, asks)
        assert refused.retry_after_seconds is not None
    backends[7].end(held, ReservationState.RELEASED, 0.0)
    asked = Asked()
    made.admit(made.call(asked), 0.0)
    assert "b07" in asked.names


@pytest.mark.parametrize("seed", range(20))
def test_a_request_is_refused_only_if_every_backend_would_refuse_it(seed: int) -> None:
    """However many there are and whatever was refused before: each decision is what asking all of them comes to."""
    rng = random.Random(seed)
    backends = [backend(f"b{number}", rng.uniform(0.85, 0.97), blocks=rng.randint(50, 400)) for number in range(10)]
    made, _ = controller(*backends)
    live: list[Admission] = []
    outcomes = set()
    for step in range(150):
        now = step / 10
        for each in rng.sample(backends, 3):  # gauges are read all the time, so that none grows old
            assert each.occupancy.sample is not None
            each.occupancy.observe(each.occupancy.sample, asked_at=now)
        tokens, cap = rng.randint(1, 400), rng.choice((16, 256, 1024))
        demand = Demand(prompts=(tokens,), output_cap=cap, asked_cap=cap, expected_output=cap)
        call = made.call(lambda _, demand=demand: demand)
        made.retier(now)
        takes = {
            each.name
            for each in backends
            if isinstance(weigh(each, call, lambda of, policy: of.tier_under(policy).tier, now).decision, Admit)
        }
        outcome = made.refuse_early(now) or made.admit(call, now)
        outcomes.add(type(outcome))
        if isinstance(outcome, Refusal):
            assert takes == set()
            if live:
                made.release(live.pop(rng.randrange(len(live))), now=now)
        else:
            assert outcome.backend.name in takes
            live.append(outcome)
    assert outcomes == {Admission, Refusal}
