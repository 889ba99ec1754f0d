"""The controller: which backend, which refusal speaks for all, and that reserving is exact."""

import random
from dataclasses import replace
from typing import Any

import pytest

from kvguard.admission.condition import EngineState
from kvguard.admission.decision import AdmissionPolicy, Admit, BlindPolicy, Reject
from kvguard.admission.footprint import Demand
from kvguard.admission.lengths import LengthPolicy, LengthSource
from kvguard.admission.occupancy import OccupancyPolicy, Signal
from kvguard.admission.policies import PolicyRow, PolicyTable, PriorityClass
from kvguard.admission.policy import Degradation, DegradePolicy
from kvguard.admission.reasons import RejectReason
from kvguard.admission.retry import RetryPolicy
from kvguard.admission.shares import TenantPolicy, TenantTable
from kvguard.admission.tiers import Tier, TierPolicy, TierRule
from kvguard.admission.usage import EngineUsage, UsageSample
from kvguard.pool.backend import Backend, TierChange, new_backend
from kvguard.proxy.controller import Admission, Controller, Refusal
from kvguard.proxy.governance import Governance
from kvguard.proxy.identity import Caller

SMALL = Demand(prompts=(16,), output_cap=16, asked_cap=16, expected_output=16)


def backend(name: str, gauge: float | None, *, blocks: int = 100, models: frozenset[str] = frozenset()) -> Backend:
    made = new_backend(name, f"http://{name}", OccupancyPolicy(), LengthPolicy(min_answers=2))
    if gauge is not None:
        engine = EngineUsage(engine="0", capacity_blocks=blocks, block_size=16, used_ratio=gauge)
        made.occupancy.observe(UsageSample(engines=(engine,)), asked_at=0.0)
    made.models = models
    return made


def controller(*backends: Backend, blind: BlindPolicy = BlindPolicy.LEDGER) -> tuple[Controller, list[TierChange]]:
    changes: list[TierChange] = []
    policy = AdmissionPolicy(tiers=TierPolicy(), degrade=DegradePolicy(), blind=blind)
    made = Controller(backends, policy, RetryPolicy(), rng=random.Random(1), on_tier_change=changes.append)
    return made, changes


def test_the_backend_the_request_fills_least_is_chosen() -> None:
    """Of three with room the emptiest gets it, and only its ledger holds it."""
    backends = [backend("a", 0.5), backend("b", 0.2), backend("c", 0.4)]
    made, _ = controller(*backends)
    outcome = made.admit(made.call(lambda _: SMALL), 0.0)
    assert isinstance(outcome, Admission)
    assert outcome.backend.name == "b"
    assert [each.ledger.held_blocks for each in backends] == [0, 1, 0]
    made.release(outcome, now=1.0)
    made.release(outcome, now=1.0)
    assert backends[1].ledger.held_blocks == 0
    assert backends[1].freed_blocks.value(1.0) == 1


def test_a_backend_that_would_not_degrade_is_preferred_to_a_relatively_emptier_one() -> None:
    """The milder tier wins before the lower ratio."""
    made, _ = controller(backend("a", 0.70), backend("b", 0.68))
    outcome = made.admit(made.call(lambda _: SMALL), 0.0)
    assert isinstance(outcome, Admission)
    assert (outcome.backend.name, outcome.decision.tier) == ("b", Tier.NORMAL)


def test_only_backends_that_list_the_model_are_asked_unless_none_does() -> None:
    """A full server of the model refuses although another has room; an unknown model goes to the emptiest."""
    a, b = backend("a", 0.97, models=frozenset({"m"})), backend("b", 0.1, models=frozenset({"other"}))
    made, _ = controller(a, b)
    refused = made.admit(made.call(lambda _: SMALL, model="m"), 0.0)
    assert isinstance(refused, Refusal)
    assert (refused.reason, refused.backend) == (RejectReason.SATURATED, "a")
    unknown = made.admit(made.call(lambda _: SMALL, model="nobody's"), 0.0)
    assert isinstance(unknown, Admission)
    assert unknown.backend is b


def test_a_request_is_refused_only_if_every_backend_would() -> None:
    """The refusal that may pass soonest speaks for all, and the demand is remembered there."""
    full, absent = backend("full", 0.97), backend("absent", None)
    made, _ = controller(absent, full)
    refused = made.admit(made.call(lambda _: SMALL), 0.0)
    assert isinstance(refused, Refusal)
    assert (refused.reason, refused.backend, refused.tier) == (RejectReason.SATURATED, "full", Tier.REJECT)
    assert refused.retry_after_seconds is not None
    assert full.refused_blocks.value(0.0) == 2
    assert full.demand_ratio(0.0) == pytest.approx(0.97 + 0.02)
    assert absent.demand_ratio(0.0) is None


def test_what_can_never_fit_is_never_to_be_retried() -> None:
    """A prompt larger than the cache has no time to come back."""
    made, _ = controller(backend("a", 0.0, blocks=10))
    refused = made.admit(made.call(lambda _: Demand(prompts=(161,), output_cap=1, asked_cap=1, expected_output=1)), 0.0)
    assert isinstance(refused, Refusal)
    assert (refused.reason, refused.retry_after_seconds) == (RejectReason.TOO_LARGE, None)


@pytest.mark.parametrize(
    ("gauges", "reason"),
    [
        ((0.97, 0.98), RejectReason.SATURATED),
        ((0.97, 0.5), None),
        ((0.97, None), RejectReason.SATURATED),
        ((None, None), RejectReason.BACKEND_UNREACHABLE),
    ],
)
def test_a_refusal_that_holds_for_everybody_comes_before_the_body(
    gauges: tuple[float | None, ...], reason: RejectReason | None
) -> None:
    """It takes every backend to be full or unknown."""
    made, _ = controller(*(backend(str(number), gauge) for number, gauge in enumerate(gauges)))
    refused = made.refuse_early(0.0)
    assert (refused.reason if refused else None) is reason


def test_draining_refuses_everything() -> None:
    """The reason is draining, however much room there is."""
    made, _ = controller(backend("a", 0.0))
    made.draining = True
    refused = made.refuse_early(0.0)
    assert refused is not None
    assert (refused.reason, refused.backend) == (RejectReason.DRAINING, "")


def test_every_change_of_a_tier_is_reported_once() -> None:
    """The change names backend, old and new tier."""
    made, changes = controller(backend("a", 0.9))
    made.retier(0.0)
    made.retier(1.0)
    assert changes == [TierChange(backend="a", before=Tier.NORMAL, after=Tier.RESTRICT)]
    assert made.tier is Tier.RESTRICT


def test_lengths_are_learned_from_answers_that_end_by_themselves() -> None:
    """Tokens are divided over the sequences; an answer of fixed length teaches nothing."""
    a = backend("a", 0.0)
    made, _ = controller(a)
    for fixed in (True, True, False, False):
        demand = Demand(prompts=(16,), copies=2, output_cap=100, asked_cap=100, expected_output=100, fixed_length=fixed)
        outcome = made.admit(made.call(lambda _, demand=demand: demand), 0.0)
        assert isinstance(outcome, Admission)
        made.settle(outcome, completion_tokens=20 if not fixed else 200, now=1.0)
    assert a.occupancy.lengths.expected(cap=100, produced=0) == 10
    assert a.ledger.live == 0


def test_the_forecast_is_the_one_made_at_admission() -> None:
    """What is learned meanwhile does not change what the answer is held against."""
    a = backend("a", 0.0)
    made, _ = controller(a)
    demand = Demand(prompts=(16,), output_cap=100, asked_cap=100, expected_output=100)
    admissions = [made.admit(made.call(lambda _: demand), 0.0) for _ in range(2)]
    for length in (10, 10):
        a.learn(demand, length)
    admissions.append(made.admit(made.call(lambda _: demand), 0.0))
    for outcome in admissions:
        assert isinstance(outcome, Admission)
        made.settle(outcome, completion_tokens=11, now=1.0)
    assert a.calibration.answers == {LengthSource.CAP: 2, LengthSource.LEARNED: 1}
    assert a.calibration.exceeded.total() == a.calibration.exceeded[LengthSource.LEARNED] == 1


def test_reads_go_to_a_backend_that_answers() -> None:
    """An unreachable backend gets no reads while another answers."""
    made, _ = controller(backend("gone", None), backend("here", 0.9))
    assert made.reachable(None, 0.0).name == "here"


def test_reads_go_to_a_backend_of_the_model() -> None:
    """Counting for a model asks a server that has it."""
    made, _ = controller(backend("a", 0.0, models=frozenset({"m"})), backend("b", 0.0, models=frozenset({"n"})))
    assert [made.reachable(model, 0.0).name for model in ("m", "n")] == ["a", "b"]


def test_a_dead_backend_is_passed_over_while_another_answers() -> None:
    """However empty the ledger of the dead one says it is; alone it is tried all the same."""
    dead, alive = backend("dead", 0.0), backend("alive", 0.8)
    for _ in range(3):
        dead.occupancy.miss(reached=False)
    made, _ = controller(dead, alive)
    outcome = made.admit(made.call(lambda _: SMALL), 0.0)
    assert isinstance(outcome, Admission)
    assert outcome.backend is alive
    alone, _ = controller(dead)
    assert isinstance(alone.admit(alone.call(lambda _: SMALL), 0.0), Admission)


def test_a_full_backend_refuses_early_although_a_dead_one_looks_empty() -> None:
    """A backend that cannot be reached is no reason to read a body."""
    dead = backend("dead", 0.0)
    for _ in range(3):
        dead.occupancy.miss(reached=False)
    made, _ = controller(dead, backend("full", 0.99))
    refused = made.refuse_early(0.0)
    assert refused is not None
    assert (refused.reason, refused.backend) == (RejectReason.SATURATED, "full")


def test_retry_after_is_when_enough_of_our_answers_will_have_ended() -> None:
    """At ten tokens a second a stream with fifty to go frees its blocks in five seconds."""
    a = backend("a", 0.0)
    made, _ = controller(a)
    demand = Demand(prompts=(1000,), output_cap=100, asked_cap=100, expected_output=100)
    running = made.admit(made.call(lambda _: demand), 0.0)
    assert isinstance(running, Admission)
    a.ledger.progress(running.reservation, 50)
    big = Demand(prompts=(600,), output_cap=16, asked_cap=16, expected_output=16)
    refused = made.admit(made.call(lambda _: big), 5.0)
    assert isinstance(refused, Refusal)
    assert refused.retry_after_seconds is not None
    assert 5.0 <= refused.retry_after_seconds <= 7.5


PLAIN = AdmissionPolicy(tiers=TierPolicy(), degrade=DegradePolicy())
LOW = replace(PLAIN, tiers=TierPolicy(reject=TierRule(enter=0.50, signals=(Signal.PROJECTED,))))
LENIENT = replace(PLAIN, tiers=TierPolicy(reject=TierRule(enter=0.99, signals=(Signal.PROJECTED,))))


def governed(*backends: Backend, **governance: Any) -> Controller:
    """A low class, and models `big-*` that are refused later than others."""
    made, _ = controller(*backends)
    rows = (
        PolicyRow(by_class={"normal": LENIENT, "low": LOW}, models="big-*"),
        PolicyRow(by_class={"normal": PLAIN, "low": LOW}),
    )
    classes = (PriorityClass(), PriorityClass(name="low", shadow=governance.pop("low_in_shadow", False)))
    made.governance = Governance(table=PolicyTable(rows, classes), **governance)
    made.retier(0.0)
    return made


@pytest.mark.parametrize(
    ("gauge", "priority", "early", "admitted"),
    [
        (0.40, "low", False, True),
        (0.60, "low", True, False),
        (0.60, "normal", False, True),
        # Refused by the plain policy, but the body may name a model that is refused later.
        (0.97, "normal", False, False),
        (0.995, "normal", True, False),
    ],
)
def test_an_early_refusal_takes_every_policy_that_may_apply(
    gauge: float, priority: str, early: bool, admitted: bool
) -> None:
    """Before the body is read the model is not known; its class is."""
    made, caller = governed(backend("a", gauge)), Caller(priority=priority)
    possible = made.governance.possible("/r", caller)
    assert (made.refuse_early(0.0, possible) is not None) is early
    terms = made.governance.terms("/r", "small", caller)
    assert isinstance(made.admit(made.call(lambda _: SMALL, model="small", terms=terms), 0.0), Admission) is admitted


def test_an_override_for_a_model_decides_on_it() -> None:
    """At 0.97 the model that is refused later still passes."""
    made = governed(backend("a", 0.97))
    for model, kind in (("big-1", Admission), ("small", Refusal)):
        assert isinstance(
            made.admit(made.call(lambda _: SMALL, model=model, terms=made.governance.terms("/r", model)), 0.0), kind
        )


def test_a_share_is_refused_with_a_time_and_is_no_demand() -> None:
    """The tenant's own blocks have to come free; more capacity is not what it lacks."""
    a = backend("a", 0.0)
    made = governed(a, tenants=TenantTable(unlisted=TenantPolicy(max_share=0.02)))
    terms = made.governance.terms("/r", None, Caller(tenant="t"))
    assert isinstance(made.admit(made.call(lambda _: SMALL, terms=terms), 0.0), Admission)
    refused = made.admit(made.call(lambda _: SMALL, terms=terms), 0.0)
    assert isinstance(refused, Refusal)
    assert (refused.reason, refused.predicted_blocks) == (RejectReason.TENANT_SHARE, 2)
    assert refused.retry_after_seconds is not None
    assert a.refused_blocks.value(0.0) == 0
    assert isinstance(made.admit(made.call(lambda _: SMALL, terms=made.governance.terms()), 0.0), Admission)


def test_a_class_in_shadow_is_never_refused_early_and_reserved_unchanged() -> None:
    """The verdict is kept beside the admission."""
    made, caller = governed(backend("a", 0.60), low_in_shadow=True), Caller(priority="low")
    assert made.refuse_early(0.0, made.governance.possible("/r", caller)) is None
    outcome = made.admit(made.call(lambda _: SMALL, terms=made.governance.terms("/r", None, caller)), 0.0)
    assert isinstance(outcome, Admission)
    assert isinstance(outcome.verdict, Reject)
    assert (outcome.decision.demand, outcome.decision.tier) == (SMALL, Tier.NORMAL)
    assert outcome.decision.degradation == Degradation()
    assert outcome.reservation.demand == SMALL


def standing(name: str, *, stalled: bool, gauge: float = 0.5, now: float = 100.0) -> Backend:
    """A backend scraped at `now` that has work, and has or has not made a token in the last thirty seconds."""
    made = new_backend(name, f"http://{name}", OccupancyPolicy(), LengthPolicy())
    for at, tokens in ((now - 30, 0), (now, 0 if stalled else 1)):
        engine = EngineUsage(
            engine="0",
            capacity_blocks=100,
            block_size=16,
            used_ratio=gauge,
            running=1,
            prompt_tokens_total=0,
            generation_tokens_total=tokens,
        )
        made.observe(UsageSample(engines=(engine,)), asked_at=at)
    return made


def test_a_stalled_backend_is_passed_over_while_another_works() -> None:
    """However full the other is, and although a probe is due."""
    stalled, works = standing("stalled", stalled=True), standing("works", stalled=False, gauge=0.8)
    made, _ = controller(stalled, works)
    for now in (100.0, 110.0):
        for each in (stalled, works):
            each.observe(each.occupancy.sample, asked_at=now)
        outcome = made.admit(made.call(lambda _: SMALL), now)
        assert isinstance(outcome, Admission)
        assert outcome.backend is works
    assert stalled.watch.probes.total() == 0


def test_a_stall_refuses_everybody_but_a_probe_where_no_other_takes_it() -> None:
    """503 with the wait for what is not known, early and late; one request passes when it is due, and no second."""
    stalled = standing("stalled", stalled=True, now=100)
    full = backend("full", 0.99)
    full.occupancy.observe(full.occupancy.sample, asked_at=100.0)
    made, _ = controller(stalled)
    for refused in (made.refuse_early(100.0), made.admit(made.call(lambda _: SMALL), 100.0)):
        assert isinstance(refused, Refusal)
        assert (refused.reason, refused.tier, refused.backend) == (
            RejectReason.BACKEND_STALLED,
            Tier.NORMAL,
            "stalled",
        )
        assert 5.0 <= refused.retry_after_seconds <= 7.5
    # Rescraped, still standing, when the probe is due; the other is full.
    stalled.observe(stalled.occupancy.sample, asked_at=110.0)
    full.occupancy.observe(full.occupancy.sample, asked_at=110.0)
    made, _ = controller(stalled, full)
    assert made.refuse_early(110.0) is None
    probe = made.admit(made.call(lambda _: SMALL), 110.0)
    assert isinstance(probe, Admission)
    assert (probe.backend, probe.decision.probe) == (stalled, True)
    second = made.admit(made.call(lambda _: SMALL), 110.0)
    assert isinstance(second, Refusal)
    # What may pass soonest speaks for both.
    assert (second.reason, second.backend) == (RejectReason.SATURATED, "full")
    assert stalled.watch.probes == {EngineState.STALLED: 1}


def test_a_probe_in_shadow_is_counted_and_passes_unchanged() -> None:
    """The next one is only due later; what would be refused meanwhile passes too, early and late."""
    stalled = standing("stalled", stalled=True, gauge=0.8)
    made = governed(stalled, shadowed=frozenset({"stalled"}))
    stalled.observe(stalled.occupancy.sample, asked_at=110.0)
    for verdict in (Admit, Reject):
        assert made.refuse_early(110.0) is None
        outcome = made.admit(made.call(lambda _: SMALL), 110.0)
        assert isinstance(outcome, Admission)
        assert isinstance(outcome.verdict, verdict)
        assert (outcome.decision.demand, outcome.decision.probe) == (SMALL, False)
    assert stalled.watch.probes == {EngineState.STALLED: 1}


def test_which_name_belongs_to_which_model() -> None:
    """Over all backends: an adapter to its parent, any other to itself."""
    one = backend("a", 0.0, models=frozenset({"m", "ad-1"}))
    one.parents = {"ad-1": "m"}
    made, _ = controller(one, backend("b", 0.0, models=frozenset({"n"})))
    assert made.parents() == {"m": "m", "ad-1": "m", "n": "n"}
