"""The rules kvguard is measured against, decided in the client's process before anything is sent.

A real gate is a proxy: it adds a hop and competes for the machine. These cost nothing, which favours them. A gate knows
arrivals and time; whoever sends tells it how each admitted request goes on.
"""

from bench.overload.workload import Arrival
from kvguard.admission.blocks import BlockRule
from kvguard.admission.footprint import Demand
from kvguard.admission.ledger import Ledger, Reservation, ReservationState
from kvguard.admission.lengths import LengthPolicy, OutputLengths


class Gate:
    """Lets everything pass."""

    def admit(self, arrival: Arrival, now: float) -> bool:
        """Whether it is sent; False refuses it for good."""
        return True

    def progress(self, arrival: Arrival, produced: int) -> None:
        """An admitted request has so many tokens of its answer."""

    def ended(self, arrival: Arrival, now: float) -> None:
        """An admitted request has ended, one way or the other."""


class SaturationGate(Gate):
    """Refuses while the larger of queue length and cache usage, each over its threshold, is 1 or more, as llm-d does.

    It knows the engine's gauges as last observed, and nothing of what it let pass since; unobserved is saturated.
    """

    def __init__(self, *, queue_threshold: float = 5.0, usage_threshold: float = 0.8) -> None:
        self._queue_threshold = queue_threshold
        self._usage_threshold = usage_threshold
        self._saturation = float("inf")

    def observe(self, *, waiting: float, used_ratio: float) -> None:
        """Note what the engine's gauges say now."""
        self._saturation = max(waiting / self._queue_threshold, used_ratio / self._usage_threshold)

    def admit(self, arrival: Arrival, now: float) -> bool:
        return self._saturation < 1.0


class BudgetGate(Gate):
    """Refuses what would bring the prompts and declared caps in flight above a share of the capacity."""

    def __init__(self, *, capacity_tokens: int, share: float = 0.9) -> None:
        self._budget_tokens = share * capacity_tokens
        self.tokens_in_flight = 0

    def admit(self, arrival: Arrival, now: float) -> bool:
        tokens = self.tokens_in_flight + _declared(arrival)
        if tokens > self._budget_tokens:
            return False
        self.tokens_in_flight = tokens
        return True

    def ended(self, arrival: Arrival, now: float) -> None:
        self.tokens_in_flight -= _declared(arrival)


def _declared(arrival: Arrival) -> int:
    return arrival.prompt_tokens + arrival.cap


class ClairvoyantGate(Gate):
    """kvguard's own forecast and its REJECT threshold, told how long every answer will be: the ceiling."""

    def __init__(self, *, capacity_blocks: int, block_size: int, reject_at: float = 0.95) -> None:
        self._most_blocks = reject_at * capacity_blocks
        self._ledger = Ledger(OutputLengths(LengthPolicy()))
        self._ledger.recount(BlockRule.plain(block_size))
        self._reservations: dict[int, Reservation] = {}

    @property
    def live(self) -> int:
        return self._ledger.live

    def admit(self, arrival: Arrival, now: float) -> bool:
        demand = _as_it_will_be(arrival)
        if self._ledger.profile.peak_with(self._ledger.course(demand)) >= self._most_blocks:
            return False
        self._reservations[arrival.number] = self._ledger.reserve(demand, now=now)
        return True

    def progress(self, arrival: Arrival, produced: int) -> None:
        self._ledger.progress(self._reservations[arrival.number], produced)

    def ended(self, arrival: Arrival, now: float) -> None:
        self._ledger.end(self._reservations.pop(arrival.number), ReservationState.SETTLED, now=now)


def _as_it_will_be(arrival: Arrival) -> Demand:
    return Demand(
        prompts=(arrival.prompt_tokens,),
        output_cap=arrival.length,
        asked_cap=arrival.length,
        expected_output=arrival.length,
        fixed_length=True,
    )
