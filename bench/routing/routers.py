"""Who chooses the engine: the usual rules, with and without kvguard's admission behind them, and kvguard itself."""

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from bench.routing.traffic import BLOCK_SIZE, ENGINE, Turn
from kvguard.admission.footprint import Demand
from kvguard.admission.prefix import PrefixMark
from kvguard.admission.usage import UsageSample
from kvguard.backend_sections import BackendSettings
from kvguard.backends import build_backend
from kvguard.policies import governance_of
from kvguard.pool.affinity import Trail
from kvguard.pool.backend import Backend
from kvguard.pool.pool import RoutingHints
from kvguard.protocols.prefix import TextMark
from kvguard.proxy.controller import Admission, Controller
from kvguard.settings import Settings
from kvguard.simulator.engine import EngineStats
from tests.kit.closed_loop import usage_of

_BYTES_PER_TOKEN = 4
_MARKED_BLOCKS = 2

Pick = Callable[[Sequence[int]], int]
"""Chooses an engine by how many requests each has."""


def round_robin() -> Pick:
    """Each in turn."""
    turns = itertools.count()
    return lambda live: next(turns) % len(live)


def least_requests() -> Pick:
    """The one with the fewest; of several the next in turn."""
    turns = itertools.count()

    def pick(live: Sequence[int]) -> int:
        first = next(turns)
        return min(range(len(live)), key=lambda engine: (live[engine], (engine - first) % len(live)))

    return pick


@dataclass(frozen=True, slots=True)
class Sent:
    """Where a request goes, and the output cap it has there."""

    engine: int
    cap: int


class Router:
    """Sends every request to the engine that `pick` chooses, and refuses none."""

    def __init__(self, engines: int, pick: Pick) -> None:
        self._pick = pick
        self._live = [0] * engines
        self._engine_of: dict[int, int] = {}

    def send(self, turn: Turn, now: float) -> Sent | None:
        """Where a request goes that comes now; None refuses it for good."""
        engine = self._pick(self._live)
        self._note(turn, engine)
        return Sent(engine, turn.cap)

    def progress(self, turn: Turn, produced: int) -> None:
        """A request that was sent has so many tokens of its answer."""

    def ended(self, turn: Turn, now: float, *, tokens: int | None) -> None:
        """A request that was sent is over; `tokens` are those of a whole answer."""
        self._live[self._engine_of.pop(turn.number)] -= 1

    def scraped(self, engine: int, stats: EngineStats, now: float) -> None:
        """An engine's gauges as they are now."""

    def _note(self, turn: Turn, engine: int) -> None:
        self._live[engine] += 1
        self._engine_of[turn.number] = engine


class Kvguard(Router):
    """kvguard's controllers, ledgers and forecasts under default settings, without the proxy around them.

    One controller chooses among all engines; with a `pick` there is one for each engine, and the pick is final. Each
    engine's answers before these were `known`.
    """

    def __init__(self, engines: int, pick: Pick | None, known: Iterable[Turn], seed: int) -> None:
        super().__init__(engines, pick or (lambda _: 0))
        settings = Settings()
        self._backends = [
            build_backend(settings, BackendSettings(url=f"http://engine-{number}")) for number in range(engines)
        ]
        self._controllers = (
            [_controller(settings, self._backends, seed)] * engines
            if pick is None
            else [_controller(settings, [backend], seed) for backend in self._backends]
        )
        self._terms = governance_of(settings).terms(model=None)
        self._admitted: dict[int, Admission] = {}
        for turn in known:
            for backend in self._backends:
                backend.learn(demand_of(turn), turn.length)

    def send(self, turn: Turn, now: float) -> Sent | None:
        controller = self._controllers[self._pick(self._live)]
        if controller.refuse_early(now, (self._terms,)):
            return None
        demand = demand_of(turn)
        outcome = controller.admit(controller.call(lambda _: demand, terms=self._terms, hints=hints_of(turn)), now)
        if not isinstance(outcome, Admission):
            return None
        self._admitted[turn.number] = outcome
        engine = self._backends.index(outcome.backend)
        self._note(turn, engine)
        return Sent(engine, outcome.decision.demand.output_cap or turn.cap)

    def progress(self, turn: Turn, produced: int) -> None:
        admission = self._admitted[turn.number]
        admission.backend.ledger.progress(admission.reservation, produced)

    def ended(self, turn: Turn, now: float, *, tokens: int | None) -> None:
        admission, controller = self._admitted.pop(turn.number), self._controllers[self._engine_of[turn.number]]
        if tokens is not None:
            controller.settle(admission, completion_tokens=tokens, now=now)
        controller.release(admission, now=now)
        super().ended(turn, now, tokens=tokens)

    def scraped(self, engine: int, stats: EngineStats, now: float) -> None:
        self._backends[engine].observe(UsageSample(engines=(usage_of(stats, ENGINE),)), asked_at=now)
        self._controllers[engine].retier(now)


def demand_of(turn: Turn) -> Demand:
    """What the request asks of the cache; its marks are known to be as far into the prompt as the proxy would guess."""
    return Demand(
        prompts=(turn.prompt_tokens,),
        output_cap=turn.cap,
        asked_cap=turn.cap,
        expected_output=turn.cap,
        prefix=tuple(PrefixMark(mark.hash, mark.tokens(turn.prompt_tokens)) for mark in _marks(turn)),
    )


def hints_of(turn: Turn) -> RoutingHints:
    """What says where the request is best served."""
    trail = Trail(parts=tuple(mark.hash for mark in _marks(turn)))
    return RoutingHints(trail=trail, prompt_tokens=turn.prompt_tokens)


def _marks(turn: Turn) -> Iterator[TextMark]:
    """As the proxy makes them of a prompt's bytes, but closer together, as prompts are shorter here than elsewhere."""
    length = turn.prompt_tokens * _BYTES_PER_TOKEN
    for block in range(_MARKED_BLOCKS - 1, turn.prompt_tokens // BLOCK_SIZE, _MARKED_BLOCKS):
        place = (block + 1) * BLOCK_SIZE * _BYTES_PER_TOKEN
        yield TextMark(turn.prefix[block], place, length - place)


def _controller(settings: Settings, pool: Sequence[Backend], seed: int) -> Controller:
    controller = Controller(
        pool,
        settings.admission_policy(),
        settings.reject.policy(),
        rng=random.Random(seed),
        on_tier_change=lambda _: None,
    )
    controller.governance = governance_of(settings)
    return controller
