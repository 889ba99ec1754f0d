"""Shares of tenants: the exact bound, and who is never held to it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvguard.admission.decision import AdmissionPolicy, Admit, BlindPolicy, Reject
from kvguard.admission.footprint import Demand
from kvguard.admission.occupancy import Occupancy
from kvguard.admission.policy import Degradation, DegradePolicy
from kvguard.admission.reasons import RejectReason
from kvguard.admission.shares import TenantPolicy, TenantTable, within_share
from kvguard.admission.tiers import Tier, TierPolicy
from tests.admission.build import demand, demands, occupancy, unscraped
from tests.kit.properties import deterministic

POLICY = AdmissionPolicy(tiers=TierPolicy(), degrade=DegradePolicy())


def holding(blocks: int, others: int = 0, *, foreign: float = 0.0) -> Occupancy:
    """A hundred blocks, of which tenant `a` and tenant `b` have reserved so many."""
    load = occupancy(foreign)
    for tenant, number in (("a", blocks), ("b", others)):
        for _ in range(number):
            load.ledger.reserve(demand(8, cap=8), now=0.0, tenant=tenant)
    return load


def judged(
    load: Occupancy, asked: Demand, max_share: float | None, policy: AdmissionPolicy = POLICY, now: float = 0.0
) -> Admit | Reject:
    admit = Admit(tier=Tier.TRIM, demand=asked, degradation=Degradation(), ratios=load.ratios(now))
    return within_share(admit, load, policy, tenant="a", max_share=max_share, now=now)


@pytest.mark.parametrize(
    ("held", "max_share", "admitted"),
    [
        (47, 0.5, True),
        (48, 0.5, True),
        (49, 0.5, False),
        (60, 0.5, False),
        (27, 0.29, True),
        (28, 0.29, False),
        (95, 1.0, True),
        (99, None, True),
    ],
)
def test_a_tenant_may_come_to_its_share_and_no_further(held: int, max_share: float | None, admitted: bool) -> None:
    """With two blocks more; rounding of the share is not held against it."""
    assert isinstance(judged(holding(held), demand(16, cap=16), max_share), Admit) is admitted


def test_what_others_hold_is_no_matter() -> None:
    """Foreign load and other tenants leave the share as it is."""
    assert isinstance(judged(holding(10, 40, foreign=0.4), demand(16, cap=16), 0.12), Admit)


def test_a_refusal_says_what_must_come_free() -> None:
    """Of what everybody holds, in proportion to the tenant's part; all of it when the request alone is too large."""
    decision = judged(holding(10, 30), demand(16, cap=16), 0.10)
    assert isinstance(decision, Reject)
    assert (decision.reason, decision.tier) == (RejectReason.TENANT_SHARE, Tier.TRIM)
    assert decision.needed_blocks == pytest.approx(2 / 10 * 40)
    alone = judged(holding(0, 30), demand(160, cap=16), 0.10)
    assert isinstance(alone, Reject)
    assert alone.needed_blocks == 30


@pytest.mark.parametrize(
    ("load", "policy"),
    [
        (holding(0), POLICY),
        (holding(50), replace(POLICY, exempt=True)),
        (unscraped(), POLICY),
    ],
)
def test_who_is_not_held_to_a_share(load: Occupancy, policy: AdmissionPolicy) -> None:
    """A backend on which nothing runs takes any request; so do exempt classes and a capacity nobody knows."""
    assert isinstance(judged(load, demand(160, cap=16), 0.01, policy), Admit)


def test_an_open_door_is_open_to_everybody() -> None:
    """Without a fresh gauge `open` lets everything pass; the ledger goes by shares."""
    load = holding(50)
    assert isinstance(judged(load, demand(16), 0.1, replace(POLICY, blind=BlindPolicy.OPEN), now=100.0), Admit)
    assert isinstance(judged(load, demand(16), 0.1, now=100.0), Reject)


@deterministic
@given(held=st.tuples(st.integers(0, 60), st.integers(0, 60)), asked=demands(), share=st.floats(0.01, 1))
def test_holding_more_never_admits_more(held: tuple[int, int], asked: Demand, share: float) -> None:
    """Where a tenant that holds more is admitted, one that holds less is."""
    less, more = (judged(holding(blocks, 1), asked, share) for blocks in sorted(held))
    assert isinstance(less, Admit) or isinstance(more, Reject)


def test_a_tenant_without_an_entry_is_as_the_unlisted() -> None:
    """By default without a bound and of weight 1."""
    table = TenantTable(by_name={"a": TenantPolicy(max_share=0.5)}, unlisted=TenantPolicy(weight=2.0))
    assert (table.of("a").max_share, table.of("b").weight) == (0.5, 2.0)
    assert TenantTable().of("a") == TenantPolicy(max_share=None, weight=1.0)
