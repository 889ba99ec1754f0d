"""Reservations: what kvguard has admitted and not yet seen end. It counts sequences and blocks, and knows no engine.

A reservation ends exactly once, SETTLED (the engine said what it used) or RELEASED (it did not); ending it again
does nothing. Every sum is kept as reservations come, grow and go, so that reading one takes the same time however many
are live; none is ever clamped: what does not add up is counted as a violation instead.
"""

import enum
import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from kvguard.admission.blocks import NO_SURGE, BlockRule, Surge
from kvguard.admission.footprint import Demand
from kvguard.admission.forecast import NO_COURSE, Cells, Course, Forecast, Profile, remaining_output
from kvguard.admission.lengths import OutputLengths
from kvguard.admission.pace import Pace
from kvguard.admission.prefix import NO_MATCH, PrefixMatch, SharedPrefixes

# Tokens after which the rest of an answer is foreseen anew even if no block was begun.
_REVIEW_TOKENS = 32


class ReservationState(enum.Enum):
    """Life of a reservation; only LIVE counts."""

    LIVE = "live"
    SETTLED = "settled"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class Claims:
    """Blocks of some reservations: held now, at their full expected length, and just before they are likely to end."""

    held: int = 0
    reserved: int = 0
    final: int = 0

    def __add__(self, other: "Claims") -> "Claims":
        return Claims(self.held + other.held, self.reserved + other.reserved, self.final + other.final)

    def __sub__(self, other: "Claims") -> "Claims":
        return Claims(self.held - other.held, self.reserved - other.reserved, self.final - other.final)


NO_CLAIMS: Final = Claims()


@dataclass(slots=True, eq=False)
class Reservation:
    """One admitted request. `produced` is the tokens each sequence has generated so far, read off the stream.

    `surge` is held besides while the prompts are computed: until the first token of a stream, and for an answer that
    cannot be watched until a scrape has `seen` the request; so long its `prefill_tokens` are those of its prompts, and
    a stream is `awaited`. `recount_at` is the output at which the rest must be counted again. `leading_blocks` of each
    sequence are shared with others and counted beside all reservations, not here.
    """

    demand: Demand
    started_at: float
    held_blocks: int = 0
    reserved_blocks: int = 0
    surge: Surge = NO_SURGE
    prefill_tokens: int = 0
    awaited: bool = False
    course: Course = NO_COURSE
    produced: int = 0
    recount_at: int = 0
    leading_blocks: int = 0
    seen: bool = False
    state: ReservationState = ReservationState.LIVE
    tenant: str = ""

    @property
    def claims(self) -> Claims:
        """What it comes to by itself."""
        return Claims(self.held_blocks, self.reserved_blocks, self.course.final_blocks)

    @property
    def streamed_tokens(self) -> int:
        """What each sequence has generated before our eyes."""
        return self.produced if self.demand.streamed else 0

    @property
    def unshared_blocks(self) -> int:
        """What it comes to at its full expected length if whatever it shares counts as its own."""
        return self.reserved_blocks + self.demand.copies * self.leading_blocks

    def count(self, forecast: Forecast, lengths: OutputLengths) -> None:
        """Bring the blocks held now, those held at full expected length and the course up to date."""
        rule, produced = forecast.rule, self.produced
        demand = self.demand.without_leading(self.leading_blocks * rule.block_size)
        self.held_blocks = demand.held_blocks(rule, produced=produced)
        self.reserved_blocks = max(self.held_blocks, demand.reserved_blocks(rule))
        computing = not produced and (demand.streamed or not self.seen)
        self.surge = demand.surge(rule) if computing else NO_SURGE
        self.prefill_tokens = self.demand.prompt_tokens if computing else 0
        self.awaited = computing and demand.streamed
        remaining = remaining_output(demand, produced, lengths)
        self.course = forecast.course(demand, produced=produced, remaining=remaining)
        growth = min((rule.tokens_to_next_block(n + produced) for n in demand.prompts), default=_REVIEW_TOKENS)
        self.recount_at = produced + (min(growth, _REVIEW_TOKENS) if produced else 1)


@dataclass(slots=True)
class TenantTally:
    """What the live reservations of one tenant come to at their full expected length, each as if it shared nothing."""

    live: int = 0
    reserved_blocks: int = 0


@dataclass(frozen=True, slots=True)
class _Ended:
    started_at: float
    at: float
    blocks: int


class Ledger:
    """The live reservations of one backend, and what was freed lately.

    `remember_seconds` bounds how long an ending is kept; it must exceed the longest scrape. What each answer is
    expected to come to is foreseen when it is admitted, and again as it grows. `freed_blocks` are all ever freed.
    `tenants` has a tally of each tenant with live reservations. Blocks that several sequences share are counted once,
    beside the reservations, until the last but one of those ends; then they are the last one's. `version` counts all
    changes of what is held, `eased` those that may have made room.
    """

    def __init__(self, lengths: OutputLengths, *, remember_seconds: float = 30.0) -> None:
        self._lengths = lengths
        self._live: dict[int, Reservation] = {}
        self.tenants: dict[str, TenantTally] = {}
        self._ended: deque[_Ended] = deque()
        self._remember_seconds = remember_seconds
        self._forecast = Forecast(BlockRule.plain(1))
        self._prefixes = SharedPrefixes(self._forecast.rule)
        self._pace = Pace()
        self._last_pace: float | None = None
        self.violations = 0
        self.version = 0
        self.eased = 0
        self.freed_blocks = 0
        self.sequences = 0
        self.surge = NO_SURGE
        self.prefill_tokens = 0
        self.awaited_streams = 0
        self._held_alone = 0
        self._reserved_alone = 0
        self._fresh_alone = NO_CLAIMS
        self._marked_at = -math.inf

    def mark(self, moment: float) -> None:
        """From now on those are fresh that began at this moment or later."""
        self._marked_at = moment
        self.version += 1
        self._prefixes.mark(moment)
        self._fresh_alone = sum((r.claims for r in self._live.values() if r.started_at >= moment), NO_CLAIMS)

    def reserve(self, demand: Demand, *, now: float, tenant: str = "") -> Reservation:
        """Enter a request into the ledger; its prompt counts as held from this moment."""
        reservation = Reservation(demand, now, tenant=tenant)
        self._live[id(reservation)] = reservation
        self._share(reservation)
        self._enter(reservation)
        return reservation

    def progress(self, reservation: Reservation, produced: int) -> None:
        """Note that each sequence has generated `produced` tokens. Late news of an ended one is a violation."""
        if reservation.state is not ReservationState.LIVE:
            self.violations += 1
            return
        if produced <= reservation.produced:
            return
        self._pace.leave(reservation.streamed_tokens, reservation.started_at)
        if produced >= reservation.recount_at:
            self._leave(reservation)
            reservation.produced = produced
            self._enter(reservation)
        reservation.produced = produced
        self._pace.enter(reservation.streamed_tokens, reservation.started_at)

    def amend(self, reservation: Reservation, demand: Demand) -> None:
        """Count a live reservation by what is known better by now; an ended one stays as it was."""
        if reservation.state is ReservationState.LIVE:
            self.eased += 1
            self._leave(reservation)
            self._unshare(reservation)
            reservation.demand, reservation.leading_blocks = demand, 0
            self._share(reservation)
            self._enter(reservation)

    def recount(self, rule: BlockRule) -> None:
        """Count by this rule what was entered before it was known, or before it changed."""
        if rule != self._forecast.rule:
            self.eased += 1
            self.version += 1
            for reservation in self._live.values():
                self._leave(reservation)
            scale = self._forecast.rule.tokens_per_block / rule.tokens_per_block
            self._ended = deque(replace(ended, blocks=round(ended.blocks * scale)) for ended in self._ended)
            self._forecast, self._prefixes = Forecast(rule), SharedPrefixes(rule, marked_at=self._marked_at)
            for reservation in self._live.values():
                self._go_through(reservation)
            self._forecast.share(self._prefixes.blocks)
            for reservation in self._live.values():
                self._enter(reservation)

    def end(self, reservation: Reservation, state: ReservationState, *, now: float) -> bool:
        """End a reservation; True only for the first ending."""
        if reservation.state is not ReservationState.LIVE:
            return False
        reservation.state = state
        self.eased += 1
        held = self.held_blocks
        self._leave(reservation)
        self._unshare(reservation)
        del self._live[id(reservation)]
        self._pace.leave(reservation.streamed_tokens, reservation.started_at)
        alone = Pace()
        alone.enter(reservation.streamed_tokens, reservation.started_at)
        self._last_pace = alone.tokens_per_second(now) or self._last_pace
        self._forget(now)
        freed = held - self.held_blocks
        self.freed_blocks += freed
        self._ended.append(_Ended(reservation.started_at, now, freed))
        return True

    def _share(self, reservation: Reservation) -> None:
        """Let it share what its prompt has in common with others; who had that alone has it no longer."""
        if reservation.demand.prefix:
            self._recount_owner(self._go_through(reservation))

    def _unshare(self, reservation: Reservation) -> None:
        """Let it share nothing any more; who is left alone with something has it from now on."""
        if reservation.demand.prefix:
            self._recount_owner(self._prefixes.leave(id(reservation)))

    def _go_through(self, reservation: Reservation) -> int | None:
        demand = reservation.demand
        return self._prefixes.enter(
            id(reservation),
            demand.prefix,
            prompt_tokens=demand.prompt_tokens,
            copies=demand.copies,
            began=reservation.started_at,
        )

    def _recount_owner(self, owner: int | None) -> None:
        self._forecast.share(self._prefixes.blocks)
        if owner is not None:
            self._leave(self._live[owner])
            self._enter(self._live[owner])

    def _enter(self, reservation: Reservation) -> None:
        self.version += 1
        if reservation.demand.prefix:
            reservation.leading_blocks = self._prefixes.leading_blocks(id(reservation))
        reservation.count(self._forecast, self._lengths)
        self.sequences += reservation.demand.sequences
        self._held_alone += reservation.held_blocks
        self._reserved_alone += reservation.reserved_blocks
        self.surge += reservation.surge
        self.prefill_tokens += reservation.prefill_tokens
        self.awaited_streams += reservation.awaited
        self._forecast.add(reservation.course)
        if reservation.started_at >= self._marked_at:
            self._fresh_alone += reservation.claims
        tally = self.tenants.setdefault(reservation.tenant, TenantTally())
        tally.live += 1
        tally.reserved_blocks += reservation.unshared_blocks

    def _leave(self, reservation: Reservation) -> None:
        self.version += 1
        self.sequences -= reservation.demand.sequences
        self._held_alone -= reservation.held_blocks
        self._reserved_alone -= reservation.reserved_blocks
        self.surge -= reservation.surge
        self.prefill_tokens -= reservation.prefill_tokens
        self.awaited_streams -= reservation.awaited
        self._forecast.remove(reservation.course)
        if reservation.started_at >= self._marked_at:
            self._fresh_alone -= reservation.claims
        tally = self.tenants[reservation.tenant]
        tally.live -= 1
        tally.reserved_blocks -= reservation.unshared_blocks
        if not tally.live:
            del self.tenants[reservation.tenant]

    def _forget(self, now: float) -> None:
        horizon = now - self._remember_seconds
        while self._ended and self._ended[0].at < horizon:
            self._ended.popleft()

    @property
    def live(self) -> int:
        """Requests in flight."""
        return len(self._live)

    @property
    def reservations(self) -> Iterable[Reservation]:
        """Those in flight, the oldest first."""
        return self._live.values()

    @property
    def rule(self) -> BlockRule:
        """How blocks are counted."""
        return self._forecast.rule

    @property
    def shared_blocks(self) -> int:
        """Blocks that several sequences hold, each once."""
        return self._prefixes.blocks

    @property
    def held_blocks(self) -> int:
        """Blocks held now."""
        return self._held_alone + self._prefixes.blocks

    @property
    def reserved_blocks(self) -> int:
        """Blocks held if everything live gets as long as is expected of it."""
        return self._reserved_alone + self._prefixes.blocks

    @property
    def fresh(self) -> Claims:
        """What those come to that began after the last `mark`, without what they share with others that did before."""
        shared = self._prefixes.fresh_blocks
        return self._fresh_alone + Claims(shared, shared, shared)

    @property
    def profile(self) -> Profile:
        """How full it gets while everything live runs to its end."""
        return self._forecast.profile

    @property
    def cells(self) -> Cells:
        """What the profile is made of, in a form that does not change."""
        return self._forecast.cells

    @property
    def claims(self) -> Claims:
        """What everything live comes to together."""
        return Claims(self.held_blocks, self.reserved_blocks, self.profile.peak)

    def tenant_blocks(self, tenant: str) -> int:
        """What the live reservations of a tenant come to at their full expected length."""
        tally = self.tenants.get(tenant)
        return tally.reserved_blocks if tally else 0

    def match(self, demand: Demand) -> PrefixMatch:
        """What a request would share if it were admitted now."""
        if not demand.prefix:
            return NO_MATCH
        match, owner = self._prefixes.match(demand.prefix, demand.prompt_tokens)
        return match if owner is None else replace(match, owner_remaining=self._live[owner].course.remaining)

    def course(self, demand: Demand, match: PrefixMatch = NO_MATCH) -> Course:
        """What a request that has so much in common with others would come to if it were admitted now."""
        remaining = remaining_output(demand, 0, self._lengths)
        return self._forecast.course(demand, produced=0, remaining=remaining, match=match)

    def tokens_per_second(self, now: float) -> float | None:
        """Tokens a second one sequence generates, waiting and prefill included, by the streams that run or ran last."""
        return self._pace.tokens_per_second(now) or self._last_pace

    def held_before(self, moment: float) -> int:
        """Blocks held now by reservations that began before `moment`, their prefills' surge included."""
        begun = [r for r in self._live.values() if r.started_at < moment]
        surge = sum((r.surge for r in begun), NO_SURGE)
        shared = self._prefixes.blocks_before(moment)
        return sum(r.held_blocks for r in begun) + shared + surge.shared(self._forecast.rule)

    def sequences_before(self, moment: float) -> int:
        """Sequences of live reservations that began before `moment`."""
        return sum(r.demand.sequences for r in self._live.values() if r.started_at < moment)

    def generating_before(self, moment: float) -> int:
        """Blocks held now by reservations that began before `moment` and whose sequences generate."""
        generating = {key: r.held_blocks for key, r in self._live.items() if r.produced and r.started_at < moment}
        return sum(generating.values()) + self._prefixes.blocks_of(generating)

    def freed_since(self, moment: float, *, begun_before: float) -> int:
        """Blocks of reservations that began before `begun_before` and ended at or after `moment`."""
        return sum(ended.blocks for ended in self._ended if ended.at >= moment and ended.started_at < begun_before)

    def grow_unstreamed(self, blocks: float, *, begun_before: float) -> None:
        """Attribute growth that only the gauge shows to the answers that cannot be watched, evenly, up to what is
        expected of each; all sequences of an engine decode at one pace.
        """
        unwatched = [r for r in self._live.values() if not r.demand.streamed and r.started_at < begun_before]
        for reservation in unwatched:
            reservation.seen = True
            if reservation.surge.blocks or reservation.prefill_tokens:
                self.amend(reservation, reservation.demand)
        sequences = sum(reservation.demand.sequences for reservation in unwatched)
        for reservation in unwatched:
            grown = reservation.produced + int(blocks * self._forecast.rule.tokens_per_block / sequences)
            self.progress(reservation, min(grown, reservation.demand.expected_output))
