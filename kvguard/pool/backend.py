"""One backend: its address, its ledger and gauge, and the tier in force there."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kvguard.admission.calibration import Calibration, LengthForecast
from kvguard.admission.condition import Condition, EngineState, EngineWatch, Passage, SignalPolicy
from kvguard.admission.footprint import Demand
from kvguard.admission.ledger import Ledger, Reservation, ReservationState
from kvguard.admission.lengths import LengthPolicy, OutputLengths
from kvguard.admission.occupancy import Occupancy, OccupancyPolicy, TelemetryState
from kvguard.admission.reachability import RuleFit, SeenSizes, ThresholdVerdict, rule_fit, threshold_verdicts
from kvguard.admission.release import Release
from kvguard.admission.retry import Appointments, FadingSum
from kvguard.admission.tiers import Tier, TierPolicy, TierState, next_tier
from kvguard.admission.usage import UsageSample
from kvguard.engines.reading import ModelEntry, ServerFacts
from kvguard.pool.bars import Bars
from kvguard.pool.health import Health, HealthPolicy, Standing
from kvguard.pool.identity import Identities

EVERY_LENGTH: Final = range(sys.maxsize)


@dataclass(frozen=True, slots=True, kw_only=True)
class TierChange:
    """A backend went from one tier to another."""

    backend: str
    before: Tier
    after: Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionChange:
    """A backend's engine went from one condition to another."""

    backend: str
    before: EngineState
    after: EngineState


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingChange:
    """A backend is in for something else than before, an ejected one for so many `seconds`."""

    backend: str
    before: Standing
    after: Standing
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingReview:
    """What is new about a backend's sizing: thresholds judged otherwise than before, and a block rule that is off."""

    verdicts: tuple[ThresholdVerdict, ...] = ()
    misfit: RuleFit | None = None


@dataclass(slots=True, eq=False)
class Backend:
    """A model server and everything decided about it.

    `parents` maps the adapters among its `models` to their base model, and `listing` has the entries of its own list of
    models. `max_num_seqs` is how many sequences the engine runs at once, where that is known; `verdicts` and `rule_fit`
    are as of the last review. `tier` is the one in force by the plain thresholds, `other_tiers` those by the thresholds
    of classes and overrides. `release` is how it takes requests, where that is not the same for all releases. All
    servers behind one discovered name share their `group`, the name of the setting they come from; `prompts` is how
    many tokens a prompt may have that goes there.
    """

    name: str
    url: str
    occupancy: Occupancy
    group: str = ""
    prompts: range = EVERY_LENGTH
    health: Health = field(default_factory=Health)
    identities: Identities = field(default_factory=Identities)
    bars: Bars = field(default_factory=Bars)
    watch: EngineWatch = field(default_factory=EngineWatch)
    freed_blocks: FadingSum = field(default_factory=FadingSum)
    refused_blocks: FadingSum = field(default_factory=FadingSum)
    appointments: Appointments = field(default_factory=Appointments)
    tier: TierState = field(default_factory=lambda: TierState(Tier.NORMAL, 0.0))
    other_tiers: dict[TierPolicy, TierState] = field(default_factory=dict)
    context_tokens: int | None = None
    models: frozenset[str] = frozenset()
    parents: Mapping[str, str] = field(default_factory=dict)
    listing: Mapping[str, ModelEntry] = field(default_factory=dict)
    max_num_seqs: int | None = None
    seen: SeenSizes = field(default_factory=SeenSizes)
    verdicts: tuple[ThresholdVerdict, ...] = ()
    rule_fit: RuleFit | None = None
    calibration: Calibration = field(default_factory=Calibration)
    release: Release | None = None

    @property
    def ledger(self) -> Ledger:
        return self.occupancy.ledger

    @property
    def eased(self) -> tuple[int, int]:
        """Counts everything that may have made room here."""
        return self.occupancy.ledger.eased, self.occupancy.looks

    def base_model(self, name: str | None) -> str:
        """The model that answers to a client's name, adapters by their parent; "" for a name that is not listed.

        Names come from clients, so what is remembered by name is remembered by those the server lists.
        """
        if name in self.models:
            return self.parents.get(name, name)
        bases = () if name else self.models - self.parents.keys()
        return next(iter(bases)) if len(bases) == 1 else ""

    def introduce(self, facts: ServerFacts, *, learn_context: bool = True) -> None:
        """Take in what the server says it is; the context only if it is its to say."""
        self.models, self.parents, self.release = facts.models, facts.parents, facts.release
        self.listing = facts.listing
        self.occupancy.permits = facts.permits
        if learn_context and facts.context_tokens is not None:
            self.context_tokens = facts.context_tokens

    def observe(self, sample: UsageSample, *, asked_at: float) -> ConditionChange | None:
        """Take in a scrape: the gauge, lengths of answers, and the engine's condition, whose change it gives back."""
        self.occupancy.observe(sample, asked_at=asked_at)
        self.occupancy.lengths.observe_engine(sample)
        before = self.watch.condition.state
        self.watch.observe(
            sample,
            asked_at=asked_at,
            observed_ratio=self.occupancy.observed_ratio(),
            live=self.ledger.live,
            awaited=self.ledger.awaited_streams,
        )
        self.occupancy.overcommitted = self.watch.condition.overcommitted
        after = self.watch.condition.state
        return None if after is before else ConditionChange(backend=self.name, before=before, after=after)

    def condition(self, now: float) -> Condition:
        """The engine's condition; not known without a fresh gauge."""
        return self.watch.condition if self._fresh(now) else Condition()

    def passage(self, now: float) -> Passage:
        """What the engine's condition leaves open to a request that comes now."""
        return self.watch.passage(now, live=self.ledger.live) if self._fresh(now) else Passage.OPEN

    def _fresh(self, now: float) -> bool:
        return self.occupancy.telemetry(now) is TelemetryState.FRESH

    def demand_ratio(self, now: float) -> float | None:
        """What is admitted at full length plus what was lately refused, over capacity; not clipped at 1."""
        ratios, capacity = self.occupancy.ratios(now), self.occupancy.capacity
        if ratios is None or capacity is None:
            return None
        return ratios.reserved + self.refused_blocks.value(now) / capacity.blocks

    def drain_seconds(self, needed_blocks: float, now: float) -> float | None:
        """Seconds until `needed_blocks` are likely free: by the courses of our own answers, else by what was freed
        lately; None while neither tells.
        """
        pace, profile = self.ledger.tokens_per_second(now), self.ledger.profile
        tokens = profile.tokens_until(max(profile.peak, self.ledger.held_blocks) - needed_blocks)
        if pace and tokens is not None:
            return tokens / pace
        # What was freed long ago says nothing of what is to come.
        freed = self.freed_blocks.value(now)
        return needed_blocks / self.freed_blocks.per_second(now) if freed and needed_blocks <= 2 * freed else None

    def tier_under(self, policy: TierPolicy) -> TierState:
        """The tier in force by these thresholds."""
        return self.other_tiers.get(policy, self.tier)

    def turn_seconds(self, wait: float, *, latest_seconds: float, now: float) -> float:
        """Seconds until a client may come back that has to wait so long at least: after those that were told before."""
        return self.appointments.next(earliest=now + wait, latest=now + latest_seconds) - now

    def promise(self, blocks: float, *, at: float, now: float) -> None:
        """Expect a refused request of so many blocks to come back at that time; 0 for one whose size is not known."""
        half = max(self.ledger.profile.peak, self.ledger.held_blocks) / 2
        seconds = self.drain_seconds(half, now)
        if half and seconds:
            self.appointments.take(at, blocks=blocks or self.usual_blocks, blocks_per_second=half / seconds)

    @property
    def usual_blocks(self) -> float:
        """Blocks a request in flight comes to on average; what one is taken for whose body was not read."""
        return max(self.ledger.profile.peak, self.ledger.held_blocks) / max(self.ledger.live, 1)

    def tier_at(self, policy: TierPolicy, now: float) -> TierState:
        """The tier that is in force by these thresholds once it is brought up to date."""
        state, ratios = self.tier_under(policy), self.occupancy.ratios(now)
        return state if ratios is None else next_tier(state, ratios, policy, now)

    def retier(self, policy: TierPolicy, now: float, others: Sequence[TierPolicy] = ()) -> TierChange | None:
        """Bring every tier up to date; the change of the one by `policy`, if there was one."""
        before, ratios = self.tier, self.occupancy.ratios(now)
        if ratios is None:
            return None
        fresh = TierState(Tier.NORMAL, now)
        self.tier = next_tier(before, ratios, policy, now)
        self.other_tiers = {o: next_tier(self.other_tiers.get(o, fresh), ratios, o, now) for o in others}
        if before.tier is self.tier.tier:
            return None
        return TierChange(backend=self.name, before=before.tier, after=self.tier.tier)

    def note(self, demand: Demand) -> None:
        """Remember how large a request was, whatever was decided on it."""
        if self.occupancy.capacity is not None:
            self.seen.add(demand, self.occupancy.capacity.rule)

    def review(self, policy: TierPolicy) -> SizingReview:
        """Judge the thresholds and the block rule anew; what has changed since the last time."""
        capacity = self.occupancy.capacity
        if capacity is None:
            return SizingReview()
        said, fitted = {verdict.key for verdict in self.verdicts}, self.rule_fit
        self.verdicts = threshold_verdicts(
            capacity, policy, self.seen, max_num_seqs=self.max_num_seqs, context_tokens=self.context_tokens
        )
        self.rule_fit = rule_fit(capacity, self.context_tokens)
        changed = tuple(verdict for verdict in self.verdicts if verdict.key not in said)
        new_misfit = self.rule_fit is not None and not self.rule_fit.fits and self.rule_fit != fitted
        return SizingReview(verdicts=changed, misfit=self.rule_fit if new_misfit else None)

    def reserve(self, demand: Demand, now: float, tenant: str = "") -> Reservation:
        """Enter an admitted request; until the block size is known it is counted in tokens."""
        return self.ledger.reserve(demand, now=now, tenant=tenant)

    def learn(self, demand: Demand, completion_tokens: int, forecast: LengthForecast | None = None) -> None:
        """Remember how long an answer got, and hold its forecast against it; tokens are summed over its sequences.

        One that a lowered cap cut would have got longer: it counts with what is known of those that got that far.
        """
        if forecast is not None:
            self.calibration.note(forecast, demand, completion_tokens)
        if demand.fixed_length:
            return
        length, lengths = completion_tokens // demand.sequences, self.occupancy.lengths
        population, cap = demand.population, demand.asked_cap
        if demand.output_cap is not None and length >= demand.output_cap != cap:
            length = lengths.learned(population, cap=cap, produced=length) or cap or length
        lengths.observe(length, population, cap=cap)

    def judge(self, *, healthy: bool, sent_at: float, now: float) -> StandingChange | None:
        """Take in how a request that was sent at `sent_at` fared; what it changed, if anything."""
        before = self.health.standing(now)
        health = self.health
        if not (health.answered(sent_at=sent_at) if healthy else health.failed(sent_at=sent_at, now=now)):
            return None
        after = self.health.standing(now)
        seconds = None if healthy else self.health.closed_until - now
        return StandingChange(backend=self.name, before=before, after=after, seconds=seconds)

    def drain(self, *, drained: bool, now: float) -> StandingChange | None:
        """Give it no new requests from now on, or some again; what that changed, if anything."""
        before = self.health.standing(now)
        self.health.drained = drained
        after = self.health.standing(now)
        return None if after is before else StandingChange(backend=self.name, before=before, after=after)

    def end(self, reservation: Reservation, state: ReservationState, now: float) -> None:
        """End a reservation; what it alone held counts as freed once."""
        before = self.ledger.freed_blocks
        if self.ledger.end(reservation, state, now=now):
            self.freed_blocks.add(self.ledger.freed_blocks - before, now)


def new_backend(
    name: str,
    url: str,
    policy: OccupancyPolicy,
    lengths: LengthPolicy | OutputLengths,
    signals: SignalPolicy | None = None,
    health: HealthPolicy | None = None,
) -> Backend:
    """A backend nothing is known of yet, and a group by itself; `lengths` may be what others have learned."""
    occupancy = Occupancy(policy, lengths if isinstance(lengths, OutputLengths) else OutputLengths(lengths))
    return Backend(
        name=name, url=url, group=name, occupancy=occupancy, watch=EngineWatch(signals), health=Health(health)
    )
