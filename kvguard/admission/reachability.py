"""Whether a threshold can be reached at all, and whether the block rule is the engine's.

An engine runs at most `max_num_seqs` sequences. When so many, each as long as the context allows or as long as the
traffic is, hold less than a threshold, the engine's queue fills before its cache does. When one request reaches a
threshold alone, there is no middle between an idle engine and that tier.
"""

import enum
from collections import deque
from dataclasses import dataclass

from kvguard.admission.blocks import BlockRule, Surge
from kvguard.admission.capacity import Capacity
from kvguard.admission.footprint import Demand
from kvguard.admission.tiers import Tier, TierPolicy

REMEMBERED = 256
ENOUGH = 30
TOLERANCE = 0.03
_BATCHES_IN_FLIGHT = 2  # with asynchronous scheduling


class ThresholdState(enum.Enum):
    """What can be said of a threshold. `SINGLE_REQUEST`: one request reaches it alone."""

    REACHABLE = "reachable"
    UNREACHABLE = "unreachable"
    SINGLE_REQUEST = "single_request"
    UNKNOWN = "unknown"


class Basis(enum.Enum):
    """What a verdict rests on: the longest sequence the context allows, or the largest lately seen."""

    CONTEXT = "context"
    SEEN = "seen"


@dataclass(frozen=True, slots=True)
class _Size:
    """Blocks of one request: of its longest sequence at full length, of all of it, and what a prefill adds."""

    sequence: int
    request: int
    surge: int


class SeenSizes:
    """How large the last requests are, were each to run to the length it asks for. `ENOUGH` of them say something."""

    def __init__(self) -> None:
        self._rule: BlockRule | None = None
        self._sizes: deque[_Size] = deque(maxlen=REMEMBERED)

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, demand: Demand, rule: BlockRule) -> None:
        """Note a request; sizes by another rule are forgotten."""
        if rule != self._rule:
            self._rule = rule
            self._sizes.clear()
        longest = max(demand.prompts, default=0)
        surge = demand.surge(rule)
        request = max(demand.reserved_blocks(rule), demand.prompt_blocks(rule) + surge.shared(rule))
        self._sizes.append(
            _Size(demand.sequence_blocks(rule, longest, demand.expected_output), request, rule.surge(longest).blocks)
        )

    @property
    def largest_sequence(self) -> int:
        """Blocks of the largest sequence."""
        return max((size.sequence for size in self._sizes), default=0)

    @property
    def mean_sequence(self) -> float:
        """Blocks of the longest sequence of a request, in the mean."""
        return sum(size.sequence for size in self._sizes) / len(self._sizes) if self._sizes else 0.0

    @property
    def largest_request(self) -> int:
        """Blocks of the largest request."""
        return max((size.request for size in self._sizes), default=0)

    @property
    def largest_surge(self) -> int:
        """Most blocks one prefill holds besides."""
        return max((size.surge for size in self._sizes), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdVerdict:
    """One threshold judged; `why` has the numbers."""

    tier: Tier
    state: ThresholdState
    basis: Basis | None = None
    why: str

    @property
    def key(self) -> tuple[Tier, ThresholdState, Basis | None]:
        """What makes it another verdict; numbers alone do not."""
        return self.tier, self.state, self.basis


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """A size to measure with: blocks of one sequence, one request and one prefill, and what that is in words."""

    basis: Basis
    sequence: int
    request: int
    surge: int
    one: str
    many: str


def threshold_verdicts(
    capacity: Capacity, tiers: TierPolicy, seen: SeenSizes, *, max_num_seqs: int | None, context_tokens: int | None
) -> tuple[ThresholdVerdict, ...]:
    """A verdict on TRIM, RESTRICT and REJECT. `max_num_seqs` and `context_tokens` are None where not known."""
    judge = _Judge(capacity, _scale_of_context(capacity.rule, context_tokens), _scale_of_seen(seen), max_num_seqs)
    rules = reversed(tiers.rules())
    return tuple(judge.verdict(tier, rule.enter) for tier, rule in rules)


def _scale_of_context(rule: BlockRule, context_tokens: int | None) -> _Scale | None:
    if context_tokens is None:
        return None
    surge = rule.surge(context_tokens)
    blocks = rule.reached_blocks(context_tokens)
    text = f"of the full context of {context_tokens} tokens"
    request = blocks + surge.shared(rule)
    return _Scale(basis=Basis.CONTEXT, sequence=blocks, request=request, surge=surge.blocks, one=text, many=text)


def _scale_of_seen(seen: SeenSizes) -> _Scale | None:
    if len(seen) < ENOUGH:
        return None
    last = f"the last {len(seen)} requests"
    return _Scale(
        basis=Basis.SEEN,
        sequence=seen.largest_sequence,
        request=seen.largest_request,
        surge=seen.largest_surge,
        one=f"like the largest of {last}",
        many=f"like the largest in {last} ({seen.largest_sequence} blocks; mean {seen.mean_sequence:.1f})",
    )


@dataclass(frozen=True, slots=True)
class _Judge:
    """What every threshold is held against."""

    capacity: Capacity
    context: _Scale | None
    seen: _Scale | None
    max_num_seqs: int | None

    def verdict(self, tier: Tier, enter: float) -> ThresholdVerdict:
        """What is likely comes first: traffic as seen, then what the context rules out, then what it allows."""
        setting = f"{enter:g} (tiers.{tier.name.lower()}_at)"
        single = self._single(self.seen, tier, enter, setting)
        if single is not None:
            return single
        for scale in (self.context, self.seen):
            if scale is not None and self.max_num_seqs is not None and self._together(scale) < enter:
                why = f"{self._all_at_once(scale)}, below {setting}: the engine's queue fills before its cache does"
                return ThresholdVerdict(tier=tier, state=ThresholdState.UNREACHABLE, basis=scale.basis, why=why)
        if self.seen is not None and self.max_num_seqs is not None:
            return self._within_reach(tier, setting)
        return self._single(self.context, tier, enter, setting) or self._within_reach(tier, setting)

    def _single(self, scale: _Scale | None, tier: Tier, enter: float, setting: str) -> ThresholdVerdict | None:
        """The verdict that one request is enough, if it is."""
        blocks = self.capacity.blocks
        if scale is None or scale.request < enter * blocks:
            return None
        ratio = scale.request / blocks
        why = (
            f"one request {scale.one} holds {scale.request} of {blocks} blocks ({ratio:.3f}) alone at its fullest, "
            f"at or above {setting}"
        )
        return ThresholdVerdict(tier=tier, state=ThresholdState.SINGLE_REQUEST, basis=scale.basis, why=why)

    def _within_reach(self, tier: Tier, setting: str) -> ThresholdVerdict:
        scale = self.seen or self.context
        if self.max_num_seqs is None:
            why = "backends[].engine.max_num_seqs is not set"
            return ThresholdVerdict(tier=tier, state=ThresholdState.UNKNOWN, why=why)
        if scale is None:
            why = "neither the context length nor enough traffic is known"
            return ThresholdVerdict(tier=tier, state=ThresholdState.UNKNOWN, why=why)
        why = f"{self._all_at_once(scale)}, at or above {setting}"
        return ThresholdVerdict(tier=tier, state=ThresholdState.REACHABLE, basis=scale.basis, why=why)

    def _blocks(self, scale: _Scale) -> int:
        sequences = self.max_num_seqs or 0
        surge = Surge(scale.surge, 1).times(sequences) if scale.surge else Surge()
        return sequences * scale.sequence + surge.shared(self.capacity.rule)

    def _together(self, scale: _Scale) -> float:
        """Share of an engine that all its sequences fill; every engine has `max_num_seqs` of its own."""
        return self._blocks(scale) / self.capacity.largest_engine_blocks

    def _all_at_once(self, scale: _Scale) -> str:
        return (
            f"{self.max_num_seqs} sequences (max_num_seqs) {scale.many} hold {self._blocks(scale)} of "
            f"{self.capacity.largest_engine_blocks} blocks ({self._together(scale):.3f})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFit:
    """Blocks one request of the full context holds: by the engine's published capacity, and by the block rule."""

    context_tokens: int
    engine_blocks: float
    predicted_blocks: float

    @property
    def ratio(self) -> float:
        """Predicted over the engine's; 1 is right."""
        return self.predicted_blocks / self.engine_blocks

    @property
    def fits(self) -> bool:
        """Whether they agree but for rounding."""
        return abs(self.ratio - 1) <= TOLERANCE


def rule_fit(capacity: Capacity, context_tokens: int | None) -> RuleFit | None:
    """Hold the block rule against what the engine publishes; None where it publishes nothing.

    The engine counts the prefill of a windowed group at its fullest, with all batches in flight, the rule what is held
    afterwards: anything from one to the other is right.
    """
    if context_tokens is None or not capacity.published_tokens:
        return None
    engine = capacity.blocks * context_tokens / capacity.published_tokens
    least = capacity.rule.reached_blocks(context_tokens)
    most = least + _BATCHES_IN_FLIGHT * capacity.rule.surge_limit(1)
    return RuleFit(context_tokens=context_tokens, engine_blocks=engine, predicted_blocks=min(max(engine, least), most))
