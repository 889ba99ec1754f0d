"""Reservations: what kvguard has admitted and not yet seen end. It counts sequences and blocks, and knows no engine.

A reservation ends exactly once, SETTLED (the engine said what it used) or RELEASED (it did not); ending it again
does nothing. The in-flight sum is the sum over live reservations and is never clamped: what does not add up is counted
as a violation instead.
"""

import enum
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kvguard.admission.blocks import NO_SURGE, BlockRule, Surge
from kvguard.admission.footprint import Demand
from kvguard.admission.forecast import Course, courses_of
from kvguard.admission.lengths import OutputLengths


class ReservationState(enum.Enum):
    """Life of a reservation; only LIVE counts."""

    LIVE = "live"
    SETTLED = "settled"
    RELEASED = "released"


@dataclass(slots=True, eq=False)
class Reservation:
    """One admitted request. `produced` is the tokens each sequence has generated so far, read off the stream.

    `surge` is held besides while the prompts are computed: until the first token of a stream, and for an answer that
    cannot be watched until a scrape has `seen` the request.
    """

    demand: Demand
    rule: BlockRule
    started_at: float
    held_blocks: int = 0
    reserved_blocks: int = 0
    surge: Surge = NO_SURGE
    produced: int = 0
    seen: bool = False
    state: ReservationState = ReservationState.LIVE

    def count(self) -> None:
        """Bring the blocks held now and those held at full expected length up to date."""
        demand, rule = self.demand, self.rule
        self.held_blocks = demand.held_blocks(rule, produced=self.produced)
        self.reserved_blocks = max(self.held_blocks, demand.reserved_blocks(rule))
        computing = not self.produced and (demand.streamed or not self.seen)
        self.surge = demand.surge(rule) if computing else NO_SURGE


@dataclass(frozen=True, slots=True)
class _Ended:
    started_at: float
    at: float
    blocks: int


class Ledger:
    """The live reservations of one backend, and what was freed lately.

    `remember_seconds` bounds how long an ending is kept; it must exceed the longest scrape. `version` changes with
    everything that is held.
    """

    def __init__(self, *, remember_seconds: float = 30.0) -> None:
        self._live: dict[int, Reservation] = {}
        self._ended: deque[_Ended] = deque()
        self._remember_seconds = remember_seconds
        self.violations = 0
        self.version = 0
        self._pace: float | None = None

    def reserve(self, demand: Demand, *, rule: BlockRule, now: float) -> Reservation:
        """Enter a request into the ledger; its prompt counts as held from this moment."""
        reservation = Reservation(demand, rule, now)
        reservation.count()
        self._live[id(reservation)] = reservation
        self.version += 1
        return reservation

    def progress(self, reservation: Reservation, produced: int) -> None:
        """Note that each sequence has generated `produced` tokens. Late news of an ended one is a violation."""
        if reservation.state is not ReservationState.LIVE:
            self.violations += 1
            return
        if produced > reservation.produced:
            reservation.produced = produced
            reservation.count()
            self.version += 1

    def amend(self, reservation: Reservation, demand: Demand) -> None:
        """Count a live reservation by what is known better by now; an ended one stays as it was."""
        if reservation.state is ReservationState.LIVE:
            reservation.demand = demand
            reservation.count()
            self.version += 1

    def recount(self, rule: BlockRule) -> None:
        """Count by this rule what was entered before it was known, or before it changed."""
        for reservation in self._live.values():
            if reservation.rule != rule:
                reservation.rule = rule
                reservation.count()
                self.version += 1

    def end(self, reservation: Reservation, state: ReservationState, *, now: float) -> bool:
        """End a reservation; True only for the first ending."""
        if reservation.state is not ReservationState.LIVE:
            return False
        reservation.state = state
        del self._live[id(reservation)]
        self.version += 1
        self._pace = self.tokens_per_second(now, [reservation]) or self._pace
        self._forget(now)
        self._ended.append(_Ended(reservation.started_at, now, reservation.held_blocks))
        return True

    def _forget(self, now: float) -> None:
        horizon = now - self._remember_seconds
        while self._ended and self._ended[0].at < horizon:
            self._ended.popleft()

    @property
    def live(self) -> int:
        """Requests in flight."""
        return len(self._live)

    @property
    def sequences(self) -> int:
        """Sequences in flight."""
        return sum(reservation.demand.sequences for reservation in self._live.values())

    @property
    def held_blocks(self) -> int:
        """Blocks all live reservations hold now."""
        return sum(reservation.held_blocks for reservation in self._live.values())

    @property
    def reserved_blocks(self) -> int:
        """Blocks all live reservations would hold at their full expected length."""
        return sum(reservation.reserved_blocks for reservation in self._live.values())

    def tokens_per_second(self, now: float, of: Iterable[Reservation] | None = None) -> float | None:
        """Tokens a second one sequence generates, waiting and prefill included, by the streams that run or ran last."""
        streams = [r for r in (self._live.values() if of is None else of) if r.demand.streamed and r.produced]
        seconds = sum(now - stream.started_at for stream in streams)
        return sum(stream.produced for stream in streams) / seconds if seconds > 0 else self._pace

    @property
    def surge(self) -> Surge:
        """What the prefills under way hold besides."""
        return sum((reservation.surge for reservation in self._live.values()), NO_SURGE)

    def held_before(self, moment: float) -> int:
        """Blocks held now by reservations that began before `moment`, their prefills' surge included."""
        begun = [r for r in self._live.values() if r.started_at < moment]
        surge = sum((r.surge for r in begun), NO_SURGE)
        return sum(r.held_blocks for r in begun) + (surge.shared(begun[0].rule) if begun else 0)

    def freed_since(self, moment: float, *, begun_before: float) -> int:
        """Blocks of reservations that began before `begun_before` and ended at or after `moment`."""
        return sum(ended.blocks for ended in self._ended if ended.at >= moment and ended.started_at < begun_before)

    def courses(self, lengths: OutputLengths) -> Iterator[Course]:
        """The present and expected future of everything live."""
        for reservation in self._live.values():
            yield from courses_of(reservation.demand, reservation.produced, lengths)

    def grow_unstreamed(self, blocks: float, *, begun_before: float) -> None:
        """Attribute growth that only the gauge shows to the answers that cannot be watched, evenly, up to what is
        expected of each; all sequences of an engine decode at one pace.
        """
        unwatched = [r for r in self._live.values() if not r.demand.streamed and r.started_at < begun_before]
        for reservation in unwatched:
            if reservation.surge.blocks:
                reservation.seen = True
                reservation.count()
                self.version += 1
        sequences = sum(reservation.demand.sequences for reservation in unwatched)
        for reservation in unwatched:
            grown = reservation.produced + int(blocks * reservation.rule.tokens_per_block / sequences)
            self.progress(reservation, min(grown, reservation.demand.expected_output))
