"""What a decision log keeps of a decision, taken in the moment it is made and before anything is reserved."""

from collections.abc import Sequence
from dataclasses import replace

from kvguard.admission.decision import Decision
from kvguard.admission.footprint import Demand
from kvguard.admission.recorded import DecisionRecord, InForce, standing_of, verdict_of
from kvguard.pool.backend import Backend
from kvguard.proxy.governance import Terms


def record_of(
    backend: Backend,
    decision: Decision,
    terms: Sequence[Terms],
    now: float,
    demand: Demand | None = None,
    model: str | None = None,
) -> DecisionRecord:
    """The record of what this backend decided on a request of these `terms`, several where its model is not known yet.

    A model that no backend lists is only a client's word, and is left out; so are the marks of a prompt, which tell who
    said the same.
    """
    first, policies = terms[0], dict.fromkeys(each.policy.tiers for each in terms)
    passage, tenant = backend.passage(now), first.caller.tenant
    return DecisionRecord(
        standing=standing_of(backend.name, backend.occupancy, now, passage, demand=demand, tenant=tenant),
        verdict=verdict_of(decision),
        in_force=tuple(InForce(tiers=tiers, tier=backend.tier_under(tiers).tier) for tiers in policies),
        demand=replace(demand, prefix=()) if demand else None,
        model=model if model in backend.models else "",
        priority=first.priority.name,
        shadow=first.shadow_on(backend.group),
    )
