"""A decision as it was made, with all it looked at, so that it can be made again under another policy.

Plain numbers and names an operator or a backend gave; nothing of what a request says. What the engine showed and what
was learned of lengths is kept as it counted then, so only the policy can be another.
"""

from dataclasses import dataclass, field

from kvguard.admission.blocks import NO_SURGE, BlockRule, Surge
from kvguard.admission.capacity import Capacity
from kvguard.admission.condition import Passage
from kvguard.admission.decision import Admit, Decision
from kvguard.admission.footprint import Demand
from kvguard.admission.forecast import Cells, Course, Forecast, Profile, remaining_output
from kvguard.admission.occupancy import Beside, Occupancy, Ratios, TelemetryState
from kvguard.admission.policy import SequenceCut
from kvguard.admission.population import Population
from kvguard.admission.prefix import NO_MATCH, PrefixMatch
from kvguard.admission.reasons import RejectReason
from kvguard.admission.tiers import Tier, TierPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How one backend stood when a request was decided on; without a capacity only what is known without one.

    `sequences_left` is how many more the engine took in, `cells` are those of the forecast, `expected_tokens` what was
    known of the answer's length, `tenant_blocks` what the tenant of the request held. `shared_blocks` were counted once
    for several sequences, `match` is what the prompt of the request had in common with others.
    """

    backend: str
    telemetry: TelemetryState
    passage: Passage
    capacity: Capacity | None = None
    beside: Beside = field(default_factory=Beside)
    idle: bool = True
    held_blocks: int = 0
    reserved_blocks: int = 0
    surge: Surge = NO_SURGE
    prefill_tokens: int = 0
    sequences_left: int | None = None
    tenant_blocks: int = 0
    cells: Cells = field(default_factory=dict)
    shared_blocks: int = 0
    match: PrefixMatch = NO_MATCH
    expected_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was decided. `given_tokens` is the output that was left to the request, over all its sequences."""

    tier: Tier
    reason: RejectReason | None = None
    output_cap: int | None = None
    cut: SequenceCut = SequenceCut.NONE
    given_tokens: int = 0
    needed_blocks: float = 0.0
    probe: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InForce:
    """The tier in force by some thresholds."""

    tiers: TierPolicy
    tier: Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """One decision. Without a `demand` it was made before the body was read, and on each of the policies the request
    might have had.

    `model` is a name the backend lists, or "". In `shadow` it was not carried out; a request that was `turned_away` was
    refused for that reason, whatever was decided on it alone, because others go first or its time in line was over.
    """

    standing: Standing
    verdict: Verdict
    in_force: tuple[InForce, ...]
    demand: Demand | None = None
    model: str = ""
    priority: str = ""
    shadow: bool = False
    turned_away: RejectReason | None = None


def standing_of(
    name: str, occupancy: Occupancy, now: float, passage: Passage, *, demand: Demand | None = None, tenant: str = ""
) -> Standing:
    """How a backend stands now, for a request that asks `demand`."""
    capacity, ledger = occupancy.capacity, occupancy.ledger
    telemetry = occupancy.telemetry(now)
    if capacity is None:
        return Standing(backend=name, telemetry=telemetry, passage=passage, idle=occupancy.idle(now))
    known = None
    if demand is not None:
        known = occupancy.lengths.expected(demand.population, cap=demand.asked_cap, produced=0)
    return Standing(
        backend=name,
        telemetry=telemetry,
        passage=passage,
        capacity=capacity,
        beside=occupancy.beside(capacity, now),
        idle=occupancy.idle(now),
        held_blocks=ledger.held_blocks,
        reserved_blocks=ledger.reserved_blocks,
        surge=ledger.surge,
        prefill_tokens=ledger.prefill_tokens,
        sequences_left=occupancy.sequences_left,
        tenant_blocks=ledger.tenant_blocks(tenant),
        cells=ledger.cells,
        shared_blocks=ledger.shared_blocks,
        match=NO_MATCH if demand is None else ledger.match(demand),
        expected_tokens=known,
    )


def verdict_of(decision: Decision) -> Verdict:
    """What a decision says, without the ratios it saw."""
    if isinstance(decision, Admit):
        given = decision.demand
        return Verdict(
            tier=decision.tier,
            output_cap=decision.degradation.output_cap,
            cut=decision.degradation.cut,
            given_tokens=given.sequences * given.expected_output,
            probe=decision.probe,
        )
    return Verdict(tier=decision.tier, reason=decision.reason, needed_blocks=decision.needed_blocks)


@dataclass(frozen=True, slots=True)
class _RecordedLengths:
    """The one answer that was given."""

    tokens: int | None

    def expected(self, population: Population, *, cap: int | None, produced: int) -> int | None:
        """What was known of the request that was decided on."""
        return self.tokens


class _RecordedLedger:
    """What was admitted then."""

    def __init__(self, standing: Standing, rule: BlockRule, lengths: _RecordedLengths) -> None:
        self.held_blocks = standing.held_blocks
        self.reserved_blocks = standing.reserved_blocks
        self.surge = standing.surge
        self.prefill_tokens = standing.prefill_tokens
        self._tenant_blocks = standing.tenant_blocks
        self._match = standing.match
        self._lengths = lengths
        self._forecast = Forecast.restored(rule, standing.cells, shared_blocks=standing.shared_blocks)

    @property
    def profile(self) -> Profile:
        return self._forecast.profile

    def match(self, demand: Demand) -> PrefixMatch:
        """That of the request that was decided on."""
        return self._match

    def course(self, demand: Demand, match: PrefixMatch) -> Course:
        remaining = remaining_output(demand, 0, self._lengths)
        return self._forecast.course(demand, produced=0, remaining=remaining, match=match)

    def tenant_blocks(self, tenant: str) -> int:
        """Those of the tenant whose request it was."""
        return self._tenant_blocks


class RecordedOccupancy:
    """A backend as it stood; the same at any time. Raises ValueError for a standing that cannot have been.

    `queue_floor_ratio` is what a queue for blocks counts as.
    """

    def __init__(self, standing: Standing, *, queue_floor_ratio: float) -> None:
        self.standing = standing
        self.capacity = standing.capacity
        self.lengths = _RecordedLengths(standing.expected_tokens)
        rule = BlockRule.plain(1) if self.capacity is None else self.capacity.rule
        self.sequences_left = standing.sequences_left
        self.ledger = _RecordedLedger(standing, rule, self.lengths)
        self._queue_floor_ratio = queue_floor_ratio

    def telemetry(self, now: float) -> TelemetryState:
        """How far the gauge could be trusted."""
        return self.standing.telemetry

    def ratios(self, now: float) -> Ratios | None:
        """Every signal; None where the capacity was not known."""
        return None if self.capacity is None else self.ratios_of(self.capacity, now)

    def ratios_of(self, capacity: Capacity, now: float, candidate: Demand | None = None) -> Ratios:
        """Every signal as a share of `capacity`, with `candidate` added."""
        floor = self._queue_floor_ratio
        return self.standing.beside.ratios(self.ledger, capacity, queue_floor_ratio=floor, candidate=candidate)

    def idle(self, now: float) -> bool:
        """Whether nothing ran there as far as was known."""
        return self.standing.idle
