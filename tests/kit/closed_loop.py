"""The real core in a closed loop with a simulated engine: no server, no clock, one random seed.

Scrapes come late, load comes in bursts and partly past kvguard, clients leave, and the engine freezes and restarts with
another capacity. `World.tick` lets a twentieth of a second pass; what must hold after each is the test's to say.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from kvguard.admission.capacity import CapacityPolicy
from kvguard.admission.condition import SignalPolicy
from kvguard.admission.decision import AdmissionPolicy
from kvguard.admission.footprint import Demand
from kvguard.admission.lengths import LengthPolicy
from kvguard.admission.occupancy import OccupancyPolicy
from kvguard.admission.policy import DegradePolicy
from kvguard.admission.retry import RetryPolicy
from kvguard.admission.tiers import TierPolicy
from kvguard.admission.usage import EngineUsage, UsageSample
from kvguard.pool.backend import Backend, new_backend
from kvguard.proxy.controller import Admission, Controller, Refusal
from kvguard.simulator.config import SimConfig
from kvguard.simulator.engine import EngineStats, SequenceRequest, SimEngine, SimToken

TICK = 0.05
SCRAPE_EVERY = 0.5
STALL_SECONDS = 5.0
CONTEXT = 1024


@dataclass(eq=False)
class Served:
    """One admitted request and its sequences in the engine: tokens each has generated, and those still running."""

    admission: Admission
    tokens: dict[int, int]
    running: set[int]

    @property
    def produced(self) -> int:
        return sum(self.tokens.values()) // len(self.tokens)


@dataclass
class World:
    """Everything there is. `admit` decides on every demand; it is the test's, so that it can look on."""

    seed: int
    admit: Callable[["World", Demand], Admission | Refusal]
    now: float = 0.0
    live: list[Served] = field(default_factory=list)
    ended: list[Served] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    frozen_until: float = 0.0
    admitted: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.engine = self._engine()
        signals = SignalPolicy(stall_seconds=STALL_SECONDS, probe_seconds=2.0)
        capacity = OccupancyPolicy(capacity=CapacityPolicy())
        self.backend: Backend = new_backend("b", "http://b", capacity, LengthPolicy(min_answers=10), signals)
        policy = AdmissionPolicy(tiers=TierPolicy(), degrade=DegradePolicy())
        self.controller = Controller(
            (self.backend,), policy, RetryPolicy(), rng=self.rng, on_tier_change=lambda change: None
        )
        self._shown = self.engine.stats()
        self._engine_at = 0.0
        self._by_sequence: dict[int, Served] = {}
        self._pages: list[tuple[float, float, UsageSample]] = []
        self._next_scrape = 0.0

    def _engine(self) -> SimEngine:
        self._config = SimConfig(
            num_gpu_blocks=self.rng.choice((150, 250, 400)),
            block_size=self.rng.choice((8, 16)),
            max_model_len=CONTEXT,
            seed=self.rng.randrange(1 << 30),
        )
        return SimEngine(self._config)

    def tick(self) -> None:
        """Let time pass."""
        self.now += TICK
        self._run_engine()
        self._scrape()

    def freeze(self, seconds: float) -> None:
        """The engine takes requests and gives nothing for so long."""
        self.frozen_until = self.now + seconds

    def restart(self) -> None:
        """Another engine at the same address; whatever ran there is lost."""
        for served in list(self.live):
            self._end(served, tokens=None)
        self.engine, self._engine_at, self._by_sequence = self._engine(), self.now, {}

    def arrive(self) -> None:
        """One request, as a client may send it."""
        # What held before the body was read may hold no longer, so the second look must stand on its own.
        early = self.controller.refuse_early(self.now) if self.rng.random() < 0.5 else None
        if early is not None:
            self.refusals.append(early)
            return
        cap, longest = self.rng.choice(((self.rng.randrange(1, 400), 600), (self.rng.randrange(1, 17), 32)))
        demand = Demand(
            prompts=tuple(self.rng.randrange(1, longest) for _ in range(self.rng.choice((1, 1, 1, 2)))),
            copies=self.rng.choice((1, 1, 1, 2)),
            output_cap=cap,
            asked_cap=cap,
            expected_output=cap,
            streamed=self.rng.random() < 0.7,
        )
        outcome = self.admit(self, demand)
        if isinstance(outcome, Refusal):
            self.refusals.append(outcome)
            return
        self.admitted += 1
        given = outcome.decision.demand
        numbers = [self._submit(prompt, given.output_cap) for prompt in given.prompts for _ in range(given.copies)]
        served = Served(outcome, dict.fromkeys(numbers, 0), set(numbers))
        self.live.append(served)
        self._by_sequence |= dict.fromkeys(numbers, served)

    def bypass(self) -> None:
        """A request that does not come through kvguard."""
        self._submit(self.rng.randrange(1, 500), self.rng.randrange(1, 300))

    def leave(self) -> None:
        """A client gives up."""
        if self.live:
            served = self.rng.choice(self.live)
            for number in served.running:
                self.engine.abort(number)
            self._end(served, tokens=None)

    def _submit(self, prompt_tokens: int, max_tokens: int) -> int:
        if not self.engine.has_work:
            self._engine_at = self.now
        return self.engine.submit(SequenceRequest(prompt_tokens=prompt_tokens, max_tokens=max_tokens))

    def _run_engine(self) -> None:
        if self.now < self.frozen_until:
            self._engine_at = self.now
            return
        while self.engine.has_work and self._engine_at < self.now:
            result = self.engine.step()
            self._engine_at += result.seconds
            for token in result.tokens:
                self._token(token)
        self._shown = self.engine.stats()

    def _token(self, token: SimToken) -> None:
        served = self._by_sequence.get(token.sequence_id)
        if served is None or served not in self.live:
            return
        served.tokens[token.sequence_id] += 1
        if token.finish_reason is not None:
            served.running.discard(token.sequence_id)
        if served.admission.decision.demand.streamed:
            self.backend.ledger.progress(served.admission.reservation, served.produced)
        if not served.running:
            self._end(served, tokens=sum(served.tokens.values()))

    def _end(self, served: Served, *, tokens: int | None) -> None:
        """As the request path does: settle if the usage is known, and release whatever happened."""
        if tokens is not None:
            self.controller.settle(served.admission, completion_tokens=tokens, now=self.now)
        self.controller.release(served.admission, now=self.now)
        self.live.remove(served)
        self.ended.append(served)

    def _scrape(self) -> None:
        """The page shows the engine at some moment after it was asked for, and is read some time after that."""
        if self.now >= self._next_scrape:
            self._next_scrape = self.now + SCRAPE_EVERY
            asked_at = self.now - self.rng.uniform(0, TICK)
            self._pages.append((self.now + self.rng.choice((0.0, 0.1, 0.3)), asked_at, self._page()))
        while self._pages and self._pages[0][0] <= self.now:
            _, asked_at, sample = self._pages.pop(0)
            if self.rng.random() < 0.05:
                self.backend.occupancy.miss(reached=True)
            else:
                self.backend.observe(sample, asked_at=asked_at)

    def _page(self) -> UsageSample:
        return UsageSample(engines=(usage_of(self._shown, self._config),))  # a frozen engine tells nothing new


def usage_of(stats: EngineStats, config: SimConfig) -> EngineUsage:
    """What a scrape of the simulated engine says."""
    return EngineUsage(
        engine="0",
        capacity_blocks=stats.usable_blocks,
        capacity_tokens=stats.usable_blocks * config.block_size,
        block_size=config.block_size,
        pool_block_size=config.block_size,
        prefix_caching=config.enable_prefix_caching,
        used_ratio=stats.usage_ratio,
        running=stats.running,
        waiting=stats.waiting,
        waiting_for_capacity=stats.waiting,
        preemptions_total=stats.preemptions_reported,
        prompt_tokens_total=stats.prompt_tokens,
        generation_tokens_total=stats.generation_tokens,
        awake=True,
    )
