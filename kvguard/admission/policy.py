"""What each tier takes from a request: a shorter answer, then fewer sequences. Degrading only ever lowers."""

import enum
from dataclasses import dataclass, replace

from kvguard.admission.footprint import Demand, Trait
from kvguard.admission.tiers import Tier


class SequenceCut(enum.Enum):
    """Which parallel sequences are given up: none, those of a beam search, or every copy."""

    NONE = "none"
    BEAMS = "beams"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class DegradePolicy:
    """How far to degrade.

    The trimmed cap is `min(requested, max(floor, min(factor x requested, max_output_tokens)))`, never below the
    request's own `min_tokens`. Requests with a trait in `untrimmed` keep their cap, and one that opted out keeps all.
    """

    trim_factor: float = 0.5
    max_output_tokens: int = 512
    floor_tokens: int = 64
    untrimmed: frozenset[Trait] = frozenset({Trait.TOOLS, Trait.STRUCTURED_OUTPUT, Trait.REASONING})
    collapse_n: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Degradation:
    """What to change in a request; `output_cap` None leaves the caps alone."""

    output_cap: int | None = None
    cut: SequenceCut = SequenceCut.NONE


def trimmed_cap(demand: Demand, policy: DegradePolicy) -> int | None:
    """The cap TRIM gives this demand, or None when it changes nothing."""
    wanted = demand.output_cap
    target = policy.max_output_tokens
    if wanted is not None:
        target = min(target, int(policy.trim_factor * wanted))
    return _lowered(demand, target, policy)


def floor_cap(demand: Demand, policy: DegradePolicy) -> int | None:
    """The smallest cap this demand may ever be given, or None when it cannot be lowered."""
    return _lowered(demand, policy.floor_tokens, policy)


def _lowered(demand: Demand, target: int, policy: DegradePolicy) -> int | None:
    if Trait.OPTED_OUT in demand.traits or demand.traits & policy.untrimmed:
        return None
    target = max(target, policy.floor_tokens, demand.min_tokens)
    return target if demand.output_cap is None or target < demand.output_cap else None


def degrade(demand: Demand, tier: Tier, policy: DegradePolicy) -> tuple[Demand, Degradation]:
    """The demand under `tier`, and what was changed to get there."""
    degradation = Degradation()
    if tier >= Tier.TRIM:
        cap = trimmed_cap(demand, policy)
        if cap is not None:
            demand, degradation = demand.with_cap(cap), replace(degradation, output_cap=cap)
    if tier >= Tier.RESTRICT and Trait.OPTED_OUT not in demand.traits:
        cut = SequenceCut.ALL if policy.collapse_n else SequenceCut.BEAMS
        degradation = replace(degradation, cut=cut)
        if demand.beams or policy.collapse_n:
            demand = demand.with_one_sequence()
    return demand, degradation
