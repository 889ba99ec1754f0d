"""What stands before the simulated engine: the gates of `bench.overload`, and kvguard's own controller."""

import enum
import random
from collections import deque
from collections.abc import Iterator

from bench.overload.gates import Gate, SaturationGate
from bench.overload.workload import Arrival
from kvguard.admission.footprint import Demand
from kvguard.admission.reasons import RejectReason
from kvguard.admission.usage import UsageSample
from kvguard.backend_sections import BackendSettings
from kvguard.backends import build_backend
from kvguard.policies import governance_of
from kvguard.proxy.controller import Admission, Controller
from kvguard.settings import Settings
from kvguard.simulator.config import SimConfig
from kvguard.simulator.engine import EngineStats
from tests.kit.closed_loop import usage_of


class Verdict(enum.Enum):
    SEND = "send"
    WAIT = "wait"
    REFUSE = "refuse"


class Door:
    """Asks a gate, which lets in or refuses at once and changes nothing."""

    scrape_seconds = 0.2

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def ask(self, arrival: Arrival, now: float) -> Verdict:
        """What becomes of a request that comes now."""
        return Verdict.SEND if self._gate.admit(arrival, now) else Verdict.REFUSE

    def cap_of(self, arrival: Arrival) -> int:
        """The output cap a request is sent with."""
        return arrival.cap

    def turns(self, now: float) -> Iterator[tuple[Arrival, bool]]:
        """Those who waited and do so no longer, and whether they are sent."""
        yield from ()

    def scraped(self, stats: EngineStats, now: float) -> None:
        """The engine's gauges as they are now."""
        if isinstance(self._gate, SaturationGate):
            self._gate.observe(waiting=stats.waiting, used_ratio=stats.usage_ratio)

    def progress(self, arrival: Arrival, produced: int) -> None:
        """A request that was sent has so many tokens of its answer."""
        self._gate.progress(arrival, produced)

    def ended(self, arrival: Arrival, now: float, *, tokens: int | None) -> None:
        """A request that was sent is over; `tokens` are those of a whole answer."""
        self._gate.ended(arrival, now)


class Kvguard(Door):
    """kvguard under these settings: its controller, ledger and waiting room, without the proxy around them.

    All clients are of one tenant and class, so those who wait stand in one line.
    """

    def __init__(self, settings: Settings, config: SimConfig, seed: int) -> None:
        self.scrape_seconds = settings.telemetry.interval_seconds
        self._config = config
        self._backend = build_backend(settings, BackendSettings(url="sim://"))
        self._controller = Controller(
            (self._backend,),
            settings.admission_policy(),
            settings.reject.policy(),
            rng=random.Random(seed),
            on_tier_change=lambda _: None,
        )
        self._controller.governance = governance_of(settings)
        self._terms = self._controller.governance.terms(model=None)
        self._waiting_policy = settings.waiting.policy()
        self._waiting: deque[tuple[Arrival, float]] = deque()
        self._admitted: dict[int, Admission] = {}

    def ask(self, arrival: Arrival, now: float) -> Verdict:
        if not self._waiting_policy.max_requests:
            refused = self._controller.refuse_early(now, (self._terms,)) or not self._admit(arrival, now)
            return Verdict.REFUSE if refused else Verdict.SEND
        refusal = self._controller.would_refuse(
            self._controller.call(lambda _: _demand(arrival), terms=self._terms), now
        )
        if refusal is None and not self._waiting:
            return Verdict.SEND if self._admit(arrival, now) else Verdict.REFUSE
        soon = refusal is None or (refusal.wait_seconds or 0.0) <= self._waiting_policy.max_seconds
        if soon and len(self._waiting) < self._waiting_policy.max_requests:
            self._waiting.append((arrival, now + self._waiting_policy.max_seconds))
            return Verdict.WAIT
        self._controller.turn_away(
            self._controller.call(lambda _: _demand(arrival), terms=self._terms), now, RejectReason.SATURATED
        )
        return Verdict.REFUSE

    def turns(self, now: float) -> Iterator[tuple[Arrival, bool]]:
        while self._waiting and self._fits(self._waiting[0][0], now) and self._admit(self._waiting[0][0], now):
            yield self._waiting.popleft()[0], True
        while self._waiting and self._waiting[0][1] <= now:
            yield self._waiting.popleft()[0], False

    def _fits(self, arrival: Arrival, now: float) -> bool:
        return (
            self._controller.would_refuse(self._controller.call(lambda _: _demand(arrival), terms=self._terms), now)
            is None
        )

    def _admit(self, arrival: Arrival, now: float) -> bool:
        outcome = self._controller.admit(self._controller.call(lambda _: _demand(arrival), terms=self._terms), now)
        if isinstance(outcome, Admission):
            self._admitted[arrival.number] = outcome
        return isinstance(outcome, Admission)

    def cap_of(self, arrival: Arrival) -> int:
        return self._admitted[arrival.number].decision.demand.output_cap or arrival.cap

    def scraped(self, stats: EngineStats, now: float) -> None:
        self._backend.observe(UsageSample(engines=(usage_of(stats, self._config),)), asked_at=now)
        self._controller.retier(now)

    def progress(self, arrival: Arrival, produced: int) -> None:
        self._backend.ledger.progress(self._admitted[arrival.number].reservation, produced)

    def ended(self, arrival: Arrival, now: float, *, tokens: int | None) -> None:
        admission = self._admitted.pop(arrival.number)
        if tokens is not None:
            self._controller.settle(admission, completion_tokens=tokens, now=now)
        self._controller.release(admission, now=now)


def _demand(arrival: Arrival) -> Demand:
    return Demand(
        prompts=(arrival.prompt_tokens,),
        output_cap=arrival.cap,
        asked_cap=arrival.cap,
        expected_output=arrival.cap,
    )
