"""How full one backend is now and will get: the engine's gauge and kvguard's own ledger fused into one number.

Blocks are the unit. A scrape cannot have seen a reservation that began after it was asked for, and may still show one
that ended since; what remains of the gauge after that is `foreign`, load that did not come through kvguard. Foreign
load stays as the last scrape left it; everything else moves with the ledger. Several data-parallel engines are one
pool, because the server places each request itself; under the WORST rule the pool counts as full as its fullest engine
stood above the rest at the last scrape.
"""

import enum
from dataclasses import dataclass, field
from typing import Protocol

from kvguard.admission.blocks import Surge
from kvguard.admission.capacity import Capacity, CapacityPolicy, capacity_of, overridden
from kvguard.admission.footprint import Demand
from kvguard.admission.forecast import Course, Profile
from kvguard.admission.ledger import NO_CLAIMS, Claims, Ledger
from kvguard.admission.lengths import OutputLengths
from kvguard.admission.prefix import PrefixMatch
from kvguard.admission.sharing import SharedBlocks
from kvguard.admission.usage import EngineUsage, UsageSample


class TelemetryState(enum.Enum):
    """How much the gauge can be trusted. `MISSING`: the engine answers without a gauge; `UNREACHABLE`: not at all."""

    FRESH = "fresh"
    STALE = "stale"
    MISSING = "missing"
    UNREACHABLE = "unreachable"


class Signal(enum.Enum):
    """Numbers a tier can look at, as ratios of capacity."""

    OBSERVED = "observed"
    PROJECTED = "projected"
    RESERVED = "reserved"
    PEAK = "peak"


class EngineRule(enum.Enum):
    """How the data-parallel engines of one backend make one number."""

    WORST = "worst"
    MEAN = "mean"


@dataclass(frozen=True, slots=True, kw_only=True)
class OccupancyPolicy:
    """What to make of scrapes.

    `stale_after_seconds` and `failures_before_unreachable` keep one failed scrape from changing anything;
    `queue_floor_ratio` is the least ratio while a queue for blocks lasts or the engine is overcommitted;
    `aftermath_seconds` is how long after its end a request may still show in the gauge; `count_shared_once` says to
    count blocks that sequences share through the prefix cache once, both where their prompts say so and where the gauge
    steadily shows less than the ledger. Of the headroom
    that the last gauge left, this proxy may claim `share`: what others like it have claimed since, nobody can see yet.
    """

    stale_after_seconds: float = 5.0
    failures_before_unreachable: int = 3
    queue_floor_ratio: float = 0.85
    aftermath_seconds: float = 0.2
    count_shared_once: bool = True
    share: float = 1.0
    engine_rule: EngineRule = EngineRule.WORST
    capacity: CapacityPolicy = field(default_factory=CapacityPolicy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """Every signal as a share of capacity (not clipped at 1). `observed` is None unless the gauge is fresh."""

    observed: float | None
    projected: float
    reserved: float
    peak: float

    def of(self, signal: Signal) -> float:
        """The signal's value; a gauge that is not there is no reason to act, so it reads 0 here."""
        value: float | None = getattr(self, signal.value)
        return 0.0 if value is None else value


class Held(Protocol):
    """What is admitted: a ledger, or one as it was."""

    @property
    def held_blocks(self) -> int: ...
    @property
    def reserved_blocks(self) -> int: ...
    @property
    def surge(self) -> Surge: ...
    @property
    def prefill_tokens(self) -> int: ...
    @property
    def profile(self) -> Profile: ...
    def match(self, demand: Demand) -> PrefixMatch: ...
    def course(self, demand: Demand, match: PrefixMatch) -> Course: ...
    def tenant_blocks(self, tenant: str) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What counts beside the ledger: foreign load net of what sequences share, the gauge while it is fresh, and whether
    requests wait for blocks (or the engine is overcommitted), so that the queue's floor holds.

    Each block claimed that no gauge has shown yet stands for `echo` more that other proxies may have claimed meanwhile;
    `unseen` are those claims.
    """

    foreign_blocks: float = 0.0
    unseen: Claims = NO_CLAIMS
    echo: float = 0.0
    observed: float | None = None
    queued: bool = False

    def ratios(
        self, held_by: Held, capacity: Capacity, *, queue_floor_ratio: float, candidate: Demand | None
    ) -> Ratios:
        """Every signal as a share of `capacity`, with `candidate` added to all but `observed`."""
        rule, surge, foreign, unseen = capacity.rule, held_by.surge, self.foreign_blocks, self.unseen
        held, reserved = foreign + held_by.held_blocks, foreign + held_by.reserved_blocks
        if candidate is None:
            peak = foreign + held_by.profile.peak
        else:
            match = held_by.match(candidate)
            course, saved = held_by.course(candidate, match), match.saved(candidate.copies)
            prompt, reserved_alone = candidate.prompt_blocks(rule), candidate.reserved_blocks(rule)
            own = Claims(prompt - saved, reserved_alone - saved, course.final_blocks)
            held, reserved, unseen = held + own.held, reserved + own.reserved, unseen + own
            surge += candidate.surge(rule)
            peak = foreign + held_by.profile.peak_with(course)
        held, reserved = held + self.echo * unseen.held, reserved + self.echo * unseen.reserved
        peak += self.echo * unseen.final
        held += surge.shared(rule)
        floor = queue_floor_ratio if self.queued else 0.0
        return Ratios(
            observed=self.observed if self.observed is None else max(floor, self.observed),
            projected=max(floor, held / capacity.blocks),
            reserved=max(floor, reserved / capacity.blocks),
            peak=max(floor, peak / capacity.blocks),
        )


@dataclass(frozen=True, slots=True)
class _Found:
    """Ratios, and all they were found from."""

    state: tuple[object, ...]
    candidate: Demand | None
    ratios: Ratios


class Occupancy:
    """One backend's gauge history joined with its ledger and the lengths of its answers.

    `overcommitted` says that the engine took in more than it can hold, whatever its gauge shows; who watches its
    other numbers sets it. `permits` is how many sequences the engine takes in, running and waiting ones together, where
    it refuses any more. `looks` counts everything that was heard of the gauge, `reached` is whether the engine answered
    the last time.
    """

    def __init__(self, policy: OccupancyPolicy, lengths: OutputLengths) -> None:
        self.policy = policy
        self.ledger = Ledger(lengths)
        self.lengths = lengths
        self.sample: UsageSample | None = None
        self.capacity: Capacity | None = overridden(policy.capacity)
        self.foreign_blocks = 0.0
        self.failures = 0
        self._skew_ratio = 0.0
        self._sampled_at: float | None = None
        self.reached = False
        self._gauge_on_last_page = True
        self._queued = False
        self.overcommitted = False
        self.permits: int | None = None
        self._foreign_sequences = 0
        self._shared = SharedBlocks()
        self._preemptions = 0.0
        self.looks = 0
        self._found: dict[bool, _Found] = {}
        if self.capacity is not None:
            self.ledger.recount(self.capacity.rule)

    def observe(self, sample: UsageSample, *, asked_at: float) -> None:
        """Take in a scrape that was asked for at `asked_at` and has just been read."""
        self.failures = 0
        self.looks += 1
        self.reached = True
        self.capacity = capacity_of(sample, self.policy.capacity) or self.capacity
        if self.capacity is not None:
            self.ledger.recount(self.capacity.rule)
        self._gauge_on_last_page = bool(sample.engines) and all(e.used_ratio is not None for e in sample.engines)
        if not self._gauge_on_last_page:
            return
        # A queue that one scrape shows may be requests that came a moment ago; one that two show does not move.
        self._queued = bool(self.sample and self.sample.queue and sample.queue)
        self.sample = sample
        self._sampled_at = asked_at
        observed = self._observed_blocks()
        if observed is None:
            return
        cooling = self.ledger.freed_since(asked_at - self.policy.aftermath_seconds, begun_before=asked_at)
        self._foreign_sequences = max(0, (sample.unfinished or 0) - self.ledger.sequences_before(asked_at))
        risen = observed - cooling - self.ledger.held_before(asked_at) - self.foreign_blocks
        grows = self.ledger.rule.ahead is None
        self.ledger.grow_unstreamed(max(0.0, risen) if grows else 0.0, begun_before=asked_at)
        self.foreign_blocks = max(0.0, observed - cooling - self.ledger.held_before(asked_at))
        self.ledger.mark(asked_at)
        self._skew_ratio = self._skew()
        preemptions = sum(engine.preemptions_total or 0.0 for engine in sample.engines)
        self._shared.observe(
            generating=self.ledger.generating_before(asked_at),
            observed=observed,
            freed=self.ledger.freed_blocks,
            preempted=preemptions != self._preemptions,
        )
        self._preemptions = preemptions

    def miss(self, *, reached: bool) -> None:
        """Take in a failed scrape or request; `reached` says that something accepted the connection."""
        self.failures += 1
        self.looks += 1
        self.reached = reached

    def age_seconds(self, now: float) -> float | None:
        """Age of the last good gauge, None before the first."""
        return None if self._sampled_at is None else now - self._sampled_at

    def telemetry(self, now: float) -> TelemetryState:
        """How far the gauge can be trusted now."""
        age = self.age_seconds(now)
        if not self.reached and (age is None or self.failures >= self.policy.failures_before_unreachable):
            return TelemetryState.UNREACHABLE
        if age is not None and age <= self.policy.stale_after_seconds:
            return TelemetryState.FRESH
        missing = age is None or (self.failures == 0 and not self._gauge_on_last_page)
        return TelemetryState.MISSING if missing else TelemetryState.STALE

    def ratios(self, now: float, candidate: Demand | None = None) -> Ratios | None:
        """Every signal, with `candidate` added to all but `observed`; None while the capacity is unknown."""
        return None if self.capacity is None else self.ratios_of(self.capacity, now, candidate)

    def ratios_of(self, capacity: Capacity, now: float, candidate: Demand | None = None) -> Ratios:
        """Every signal as a share of `capacity`, with `candidate` added to all but `observed`."""
        # A decision asks for the same numbers several times, and nothing changes meanwhile.
        fresh = self.telemetry(now) is TelemetryState.FRESH
        changes = (self.ledger.version, self.lengths.version, self.looks)
        state = (*changes, fresh, self.overcommitted, self.policy, capacity)
        found = self._found.get(candidate is None)
        if found is None or found.candidate is not candidate or found.state != state:
            floor, beside = self.policy.queue_floor_ratio, self.beside(capacity, now)
            ratios = beside.ratios(self.ledger, capacity, queue_floor_ratio=floor, candidate=candidate)
            found = self._found[candidate is None] = _Found(state, candidate, ratios)
        return found.ratios

    def beside(self, capacity: Capacity, now: float) -> Beside:
        """What counts beside the ledger; of a gauge that is not fresh nothing does."""
        echo = 1 / self.policy.share - 1
        if self.telemetry(now) is not TelemetryState.FRESH:
            return Beside(unseen=self.ledger.claims, echo=echo) if echo else Beside()
        foreign = self.foreign_blocks + self._skew_ratio * capacity.blocks
        # A gauge of reservations has every prefix as often as it is reserved.
        if self.policy.count_shared_once and capacity.rule.ahead is None:
            foreign -= self._shared.blocks(self.ledger.freed_blocks)
        queued = self._queued or self.overcommitted
        return Beside(
            foreign_blocks=foreign,
            unseen=self.ledger.fresh if echo else NO_CLAIMS,
            echo=echo,
            observed=self.observed_ratio(),
            queued=queued,
        )

    @property
    def shares_prefixes(self) -> bool:
        """Whether blocks of prompts that begin alike are to be counted once, and known to be held once."""
        capacity = self.capacity
        known = capacity is not None and capacity.shares_prefixes and capacity.rule.shares_prefixes
        return known and self.policy.count_shared_once

    @property
    def sequences_left(self) -> int | None:
        """How many more the engine takes in, by its permits; None where it takes any number."""
        return None if self.permits is None else self.permits - self._foreign_sequences - self.ledger.sequences

    @property
    def footprint_error_ratio(self) -> float | None:
        """By what share the ledger's blocks of generating sequences exceeded the gauge at the last good scrape."""
        return self._shared.error_ratio

    def observed_ratio(self) -> float | None:
        """The gauge as the engine rule combines it, at the last good scrape."""
        blocks, capacity = self._observed_blocks(), self.capacity
        return None if blocks is None or capacity is None else blocks / capacity.blocks + self._skew_ratio

    def idle(self, now: float) -> bool:
        """Whether nothing runs there as far as kvguard knows; foreign load of a stale gauge is not known."""
        foreign = self.foreign_blocks if self.telemetry(now) is TelemetryState.FRESH else 0.0
        return self.ledger.live == 0 and foreign < 1.0

    def _observed_blocks(self) -> float | None:
        if self.sample is None or self.capacity is None:
            return None
        weights = _weights(self.sample.engines, self.capacity)
        return sum((e.used_ratio or 0.0) * weight for e, weight in zip(self.sample.engines, weights, strict=True))

    def _skew(self) -> float:
        if self.policy.engine_rule is EngineRule.MEAN or self.sample is None or self.capacity is None:
            return 0.0
        fullest = max(engine.used_ratio or 0.0 for engine in self.sample.engines)
        return fullest - (self._observed_blocks() or 0.0) / self.capacity.blocks


def _weights(engines: tuple[EngineUsage, ...], capacity: Capacity) -> list[float]:
    """Blocks of each engine; equal shares when they did not say."""
    if all(engine.capacity_blocks for engine in engines):
        published = sum(engine.capacity_blocks or 0 for engine in engines)
        return [(engine.capacity_blocks or 0) * capacity.blocks / published for engine in engines]
    return [capacity.blocks / len(engines)] * len(engines)
