"""What each tier takes from a request: a shorter answer, then fewer sequences. Degrading only ever lowers."""

import enum
from dataclasses import dataclass, replace

from kvguard.admission.footprint import Demand, Trait
from kvguard.admission.tiers import Tier


class TrimMode(enum.Enum):
    """How far TRIM goes: all the way at once, or the further the nearer RESTRICT is."""

    STEP = "step"
    PROPORTIONAL = "proportional"


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
    Who may opt out (`allow_opt_out`) and which models reason is for those who mark requests with traits.
    """

    trim_factor: float = 0.5
    max_output_tokens: int = 512
    floor_tokens: int = 64
    untrimmed: frozenset[Trait] = frozenset({Trait.TOOLS, Trait.STRUCTURED_OUTPUT, Trait.REASONING})
    collapse_n: bool = False
    mode: TrimMode = TrimMode.STEP
    reasoning_models: frozenset[str] = frozenset()
    allow_opt_out: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Degradation:
    """What to change in a request; `output_cap` None leaves the caps alone."""

    output_cap: int | None = None
    cut: SequenceCut = SequenceCut.NONE


def trimmed_cap(demand: Demand, policy: DegradePolicy, pressure: float = 1.0) -> int | None:
    """The cap TRIM gives this demand, or None when it changes nothing.

    A proportional trim takes `pressure` (0..1) of what a whole one takes; a cap that is not known has no part to keep.
    """
    wanted = demand.output_cap
    target = policy.max_output_tokens
    if wanted is not None:
        target = min(target, int(policy.trim_factor * wanted))
    cap = _lowered(demand, target, policy)
    if cap is None or policy.mode is TrimMode.STEP:
        return cap
    if wanted is None:
        return cap if pressure > 0 else None
    taken = int(pressure * (wanted - cap))
    return wanted - taken if taken else None


def floor_cap(demand: Demand, policy: DegradePolicy) -> int | None:
    """The smallest cap this demand may ever be given, or None when it cannot be lowered."""
    return _lowered(demand, policy.floor_tokens, policy)


def _lowered(demand: Demand, target: int, policy: DegradePolicy) -> int | None:
    if Trait.OPTED_OUT in demand.traits or demand.traits & policy.untrimmed:
        return None
    target = max(target, policy.floor_tokens, demand.min_tokens)
    return target if demand.output_cap is None or target < demand.output_cap else None


def degrade(demand: Demand, tier: Tier, policy: DegradePolicy, pressure: float = 1.0) -> tuple[Demand, Degradation]:
    """The demand under `tier`, and what was changed to get there; `pressure` is how far TRIM is on its way."""
    degradation = Degradation()
    if tier >= Tier.TRIM:
        cap = trimmed_cap(demand, policy, pressure)
        if cap is not None:
            demand, degradation = demand.with_cap(cap), replace(degradation, output_cap=cap)
    if tier >= Tier.RESTRICT and Trait.OPTED_OUT not in demand.traits:
        cut = SequenceCut.ALL if policy.collapse_n else SequenceCut.BEAMS
        degradation = replace(degradation, cut=cut)
        if demand.beams or policy.collapse_n:
            demand = demand.with_one_sequence()
    return demand, degradation
