"""The engine's condition: what its numbers besides the gauge say, and what that leaves open to new requests.

A watch is fed with every page that was read and with what kvguard itself has in flight there. The data-parallel engines
of a backend count as one, because the server places each request itself: the backend moves while any of them does.
What a page does not say makes the condition unknown, never stalled. A condition that refuses lets a probe through now
and then, because what it rests on may be wrong; only a sleeping engine gets none, because it says itself when it wakes.
"""

import enum
import math
from collections import Counter
from dataclasses import dataclass

from kvguard.admission.retry import FadingSum
from kvguard.admission.usage import EngineUsage, UsageSample


class EngineState(enum.Enum):
    """The conditions of an engine. `CONTRADICTION`: the cache is said to be full and nothing is there to fill it."""

    UNKNOWN = "unknown"
    IDLE = "idle"
    WORKING = "working"
    STALLED = "stalled"
    SLEEPING = "sleeping"
    CONTRADICTION = "contradiction"

    @property
    def alarming(self) -> bool:
        """Whether somebody has to look at the engine."""
        return self in _ALARMING


_ALARMING = frozenset({EngineState.STALLED, EngineState.SLEEPING, EngineState.CONTRADICTION})


class Passage(enum.Enum):
    """What the condition leaves open: everything as usual, nothing, one request as a probe, or one that the gauge
    alone does not keep out.
    """

    OPEN = "open"
    SHUT = "shut"
    TRICKLE = "trickle"
    DOUBT = "doubt"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalPolicy:
    """When to believe what.

    Work that makes no token for `stall_seconds` is a stall; probes are `probe_seconds` apart; more preemptions than
    `max_preemptions_per_second` mean overcommitted; from `full_ratio` on a gauge keeps everybody out.
    """

    stall_seconds: float = 30.0
    probe_seconds: float = 10.0
    max_preemptions_per_second: float | None = None
    full_ratio: float = 0.93


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """The engine as of the last page that was read.

    `still_since` is when a stalled engine was last seen to move, `queue` the requests that wait for blocks; the rate
    of preemptions fades with a half-life of ten seconds. None is not known.
    """

    state: EngineState = EngineState.UNKNOWN
    still_since: float | None = None
    queue: int | None = None
    preemptions_per_second: float | None = None
    overcommitted: bool = False


# Counters and gauge of every engine. vLLM counts a prompt when its first token comes; until then only the blocks it
# fills tell that a long one advances.
_Marks = tuple[tuple[float | None, ...], ...]


class EngineWatch:
    """Follows one backend's condition from page to page. `preemptions` counts over restarts of the engine."""

    def __init__(self, policy: SignalPolicy | None = None) -> None:
        self.policy = policy or SignalPolicy()
        self.condition = Condition()
        self.preemptions: float | None = None
        self.probes: Counter[EngineState] = Counter()
        self._preempted = FadingSum()
        self._preemptions_before: dict[str, float] = {}
        self._asked_at = -math.inf
        self._marks: _Marks | None = None
        self._still_since = -math.inf
        self._stalled = False
        self._doubtful = False
        self._probe_from = -math.inf

    def observe(
        self, sample: UsageSample, *, asked_at: float, observed_ratio: float | None, live: int, awaited: int
    ) -> None:
        """Take in a page that was asked for at `asked_at`.

        `live` is kvguard's own requests there, `awaited` those of them that are streams without a first token.
        """
        before = self.condition.state
        state = self._state_of(sample, asked_at, observed_ratio, live, awaited)
        self._count_preemptions(sample, asked_at)
        self._asked_at = asked_at
        if state is EngineState.STALLED is not before:
            self._probe_from = max(self._probe_from, asked_at + self.policy.probe_seconds)
        rate = None if self.preemptions is None else self._preempted.per_second(asked_at)
        limit = self.policy.max_preemptions_per_second
        self.condition = Condition(
            state=state,
            still_since=self._still_since if state is EngineState.STALLED else None,
            queue=sample.queue,
            preemptions_per_second=rate,
            overcommitted=limit is not None and rate is not None and rate > limit,
        )

    def passage(self, now: float, *, live: int) -> Passage:
        """What is open to a request that comes now, while `live` of kvguard's own are there."""
        due = now >= self._probe_from
        match self.condition.state:
            case EngineState.STALLED:
                return Passage.TRICKLE if due else Passage.SHUT
            case EngineState.SLEEPING:
                return Passage.SHUT
            case EngineState.CONTRADICTION:
                return Passage.DOUBT if due and live == 0 else Passage.OPEN
            case _:
                return Passage.OPEN

    def probed(self, now: float) -> None:
        """A request was let through as a probe; the next one is due in `probe_seconds`."""
        self.probes[self.condition.state] += 1
        self._probe_from = now + self.policy.probe_seconds

    def _state_of(
        self, sample: UsageSample, asked_at: float, observed_ratio: float | None, live: int, awaited: int
    ) -> EngineState:
        doubtful_before, self._doubtful = self._doubtful, self._doubts(sample, observed_ratio, live)
        if any(engine.awake is False for engine in sample.engines):
            self._marks, self._stalled = None, False
            return EngineState.SLEEPING
        at_work = any(engine.running or engine.waiting for engine in sample.engines)
        marks = _marks(sample)
        self._note_progress(marks, asked_at, at_work=at_work or awaited > 0)
        if self._stalled:
            return EngineState.STALLED
        if doubtful_before and self._doubtful:
            return EngineState.CONTRADICTION
        if marks is None:
            return EngineState.UNKNOWN
        return EngineState.WORKING if at_work or live else EngineState.IDLE

    def _note_progress(self, marks: _Marks | None, asked_at: float, *, at_work: bool) -> None:
        """A stall begins after `stall_seconds` of pages that all show work and the same numbers, and lasts as long as
        the numbers do: that clients gave up is no progress. Pages further apart than that prove nothing by themselves.
        """
        same = marks is not None and marks == self._marks
        patience = self.policy.stall_seconds
        if not same or (not self._stalled and asked_at - self._asked_at > patience):
            self._still_since = asked_at
        self._stalled = same and (self._stalled or (at_work and asked_at - self._still_since >= patience))
        self._marks = marks if at_work or self._stalled else None

    def _doubts(self, sample: UsageSample, observed_ratio: float | None, live: int) -> bool:
        """Whether the cache is said to be full although nothing runs or waits there, neither kvguard's nor others'."""
        full = observed_ratio is not None and observed_ratio >= self.policy.full_ratio
        return full and live == 0 and bool(sample.engines) and all(_empty(engine) for engine in sample.engines)

    def _count_preemptions(self, sample: UsageSample, asked_at: float) -> None:
        totals = {e.engine: e.preemptions_total for e in sample.engines if e.preemptions_total is not None}
        for engine, total in totals.items():
            before = self._preemptions_before.get(engine, total)
            grown = total - before if total >= before else total  # a restarted engine counts from 0
            self.preemptions = (self.preemptions or 0.0) + grown
            self._preempted.add(grown, asked_at)
        self._preemptions_before = totals


def _marks(sample: UsageSample) -> _Marks | None:
    """None when an engine does not say what it would take to tell a stall."""
    marks = []
    for engine in sample.engines:
        prompt, generated, steps = engine.prompt_tokens_total, engine.generation_tokens_total, engine.steps_total
        if (steps is None and (prompt is None or generated is None)) or engine.running is None:
            return None
        marks.append((prompt, generated, steps, engine.used_ratio))
    return tuple(marks) or None


def _empty(engine: EngineUsage) -> bool:
    return engine.used_ratio is not None and engine.running == 0 and not engine.waiting
