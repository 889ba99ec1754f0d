"""Which backend a request goes to: the one it fills least, near ties to the one that has seen its beginning.

Where there are many backends only a few are looked at closely, until none of them takes the request: it is refused only
when every backend that may be asked refuses it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kvguard.admission.decision import AdmissionPolicy, Admit, Decision, Reject, decide
from kvguard.admission.footprint import Demand
from kvguard.admission.policy import floor_cap
from kvguard.admission.reasons import RejectReason
from kvguard.admission.shares import within_share
from kvguard.admission.tiers import Tier, TierPolicy
from kvguard.pool.backend import Backend
from kvguard.pool.bars import Least
from kvguard.pool.pool import NO_HINTS, Pool, RoutingHints, shortlist
from kvguard.proxy.governance import Terms

# Which refusal speaks for all when every backend refuses: the one that may pass soonest.
_HOPE = (
    RejectReason.SATURATED,
    RejectReason.TENANT_SHARE,
    RejectReason.STALE_METRICS,
    RejectReason.NO_METRICS,
    RejectReason.BACKEND_STALLED,
    RejectReason.BACKEND_UNREACHABLE,
    RejectReason.TOO_LARGE,
)

DemandOf = Callable[[Backend], Demand]
TierOn = Callable[[Backend, TierPolicy], Tier]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request as it is put to backends: what it asks of each, the name of its model, and on which terms."""

    demand_of: DemandOf
    model: str | None
    terms: Terms
    hints: RoutingHints = NO_HINTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """What one backend would do with a request while `base` is the tier in force there; in `shadow` it only says so."""

    backend: Backend
    base: Tier
    demand: Demand
    decision: Decision
    shadow: bool = False


def weigh(backend: Backend, call: Call, tier_on: TierOn, now: float) -> Weighed:
    """What this backend would do with the request."""
    terms, demand = call.terms, call.demand_of(backend)
    policy, occupancy, base = terms.policy, backend.occupancy, tier_on(backend, terms.policy.tiers)
    decision = decide(demand, base, occupancy, policy, now, backend.passage(now))
    if isinstance(decision, Admit):
        tenant, max_share = terms.caller.tenant, terms.tenant.max_share
        decision = within_share(decision, occupancy, policy, tenant=tenant, max_share=max_share, now=now)
    return Weighed(backend=backend, base=base, demand=demand, decision=decision, shadow=terms.shadow_on(backend.group))


def choose(pool: Pool, call: Call, tier_on: TierOn, now: float) -> Weighed | None:
    """The backend the request fills least, or in a near tie one that has probably seen its beginning; a probe only
    where no other takes it. Else the most hopeful refusal, one in shadow first; None when nobody may be asked.
    """
    asked, preferred = pool.asked(call.model, now, call.hints), pool.preferred(call.hints.trail)
    first = shortlist(asked, preferred)
    weighed = [weigh(backend, call, tier_on, now) for backend in first]
    if len(first) < len(asked) and not any(map(_takes, weighed)):
        chosen = {backend.name for backend in first}
        rest = [backend for backend in asked if backend.name not in chosen]
        weighed += _search(rest, weighed[0].demand, call, tier_on, now)
    return _best(weighed, preferred, pool.policy.affinity_margin, call.terms.policy, now)


def _search(rest: Sequence[Backend], demand: Demand, call: Call, tier_on: TierOn, now: float) -> Iterator[Weighed]:
    """What others say of a request, up to the first that takes it, or one that knows that it refuses."""
    policy = call.terms.policy
    kind, least = _kind(demand, policy), _least(demand, policy)
    hopeful: tuple[Backend, Reject] | None = None
    for backend in rest:
        bar = backend.bars.find(kind, least, backend.eased)
        if bar is not None and not backend.ledger.match(demand).matched:  # what others hold already takes no room
            hopeful = min(hopeful or (backend, bar), (backend, bar), key=lambda pair: hope(pair[1]))
            continue
        each = weigh(backend, call, tier_on, now)
        yield each
        if _takes(each):
            return
        reject = _full(each)
        if reject is not None:
            backend.bars.put(kind, policy, least, reject, backend.eased)
    if hopeful is not None:
        yield Weighed(backend=hopeful[0], base=hopeful[1].tier, demand=call.demand_of(hopeful[0]), decision=hopeful[1])


def _kind(demand: Demand, policy: AdmissionPolicy) -> str:
    """What is alike of requests of which a larger one is refused wherever a smaller one is."""
    traits = sorted(trait.value for trait in demand.traits)
    narrow = demand.beams, demand.copies, len(demand.prompts), demand.streamed, demand.min_tokens
    return f"{id(policy)} {demand.population} {traits} {narrow}"


def _least(demand: Demand, policy: AdmissionPolicy) -> Least:
    """The least it can be admitted with."""
    floor = floor_cap(demand, policy.degrade)
    return Least(sum(demand.prompts), demand.expected_output if floor is None else floor)


def _full(weighed: Weighed) -> Reject | None:
    """The refusal of a backend that lacks blocks for the request, or None."""
    match weighed.decision:
        case Reject(needed_blocks=needed) as reject if needed > 0 and not weighed.shadow:
            return reject
    return None


def _takes(weighed: Weighed) -> bool:
    return isinstance(weighed.decision, Admit)


def _best(
    weighed: Sequence[Weighed], preferred: Backend | None, margin: float, policy: AdmissionPolicy, now: float
) -> Weighed | None:
    if len(weighed) < 2:
        return weighed[0] if weighed else None
    admits = [(each, each.decision) for each in weighed if isinstance(each.decision, Admit)]
    if not admits:
        rejects = [(each, each.decision) for each in weighed if isinstance(each.decision, Reject)]
        return min(rejects, key=lambda pair: (not pair[0].shadow, hope(pair[1])))[0]
    if len(admits) == 1:
        return admits[0][0]
    loads = {each.backend.name: (each, _load(each.backend, admit, policy, now)) for each, admit in admits}
    best, (probe, tier, ratio) = min(loads.values(), key=lambda pair: pair[1])
    near = None if preferred is None else loads.get(preferred.name)
    if near is not None and near[1][:2] == (probe, tier) and near[1][2] <= ratio + margin:
        return near[0]
    return best


def _load(backend: Backend, admit: Admit, policy: AdmissionPolicy, now: float) -> tuple[bool, int, float]:
    """Sorts admissions: probes last, then by the milder tier, then by how full the backend gets."""
    ratios = backend.occupancy.ratios(now, admit.demand)
    return admit.probe, admit.tier, 0.0 if ratios is None else policy.tiers.reject.ratio(ratios)


def hope(reject: Reject) -> tuple[int, float]:
    """Sorts refusals by how soon they may pass."""
    return _HOPE.index(reject.reason), reject.needed_blocks
