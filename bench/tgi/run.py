"""TGI under overload in simulated time, bare and behind kvguard: `make bench-tgi` writes the outcome to docs/tgi.md.

The server is the twin's engine with the permits of its router; kvguard is its controller under default settings, with
no proxy around it. Two scenes: chat at half to eight times what the server can finish, and bursts of long prompts on a
GPU with less memory for prefills than its flags allow.
"""

import argparse
import random
import statistics
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.page import quantile, write_section
from kvguard.admission.footprint import Demand
from kvguard.admission.tiers import Tier
from kvguard.admission.usage import EngineUsage, UsageSample
from kvguard.backend_sections import BackendSettings
from kvguard.backends import build_backend, tgi_server
from kvguard.engines.tgi import assumed
from kvguard.policies import governance_of
from kvguard.pool.backend import TierChange
from kvguard.proxy.controller import Admission, Controller
from kvguard.settings import Settings
from kvguard.simulator.tgi_config import TgiSimConfig
from kvguard.simulator.tgi_engine import TgiEngine, TgiRequest

PAGE = Path(__file__).parents[2] / "docs" / "tgi.md"
LOADS = (0.5, 1.0, 2.0, 4.0, 8.0)
SECONDS, LEAD_SECONDS, PATIENCE_SECONDS, FIRST_TOKEN_SECONDS = 60.0, 15.0, 30.0, 5.0
IDLE_SECONDS, SCRAPE_SECONDS = 0.05, 0.5

SERVER = TgiSimConfig(max_batch_total_tokens=16_384, max_total_tokens=4096, max_batch_prefill_tokens=8192)
# What its prefills really have memory for is less than what the flags allow.
FRAIL = TgiSimConfig(
    max_batch_total_tokens=65_536,
    max_total_tokens=4096,
    max_batch_prefill_tokens=16_384,
    prefill_limit_tokens=8_000,
    restart_seconds=20.0,
)
GUARD = {"signals": {"max_prefill_backlog_tokens": 6_000}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request: when it comes, its prompt, its cap and the length at which its answer ends by itself."""

    at: float
    prompt: int
    cap: int
    length: int


@dataclass(slots=True, kw_only=True)
class Seen:
    """What came of the requests of a scene after its beginning."""

    offered: int = 0
    good: int = 0
    shortened: int = 0
    refused: int = 0
    engine_refused: int = 0
    timed_out: int = 0
    lost: int = 0
    crashes: int = 0
    most_waiting: int = 0
    most_reserved: float = 0.0
    first_tokens: list[float] = field(default_factory=list)
    tiers: Counter[Tier] = field(default_factory=Counter)


@dataclass(slots=True, eq=False)
class _Client:
    arrival: Arrival
    admission: Admission | None
    first: float | None = None
    tokens: int = 0


def arrivals(rate: float, seed: str, *, long_prompts: bool = False) -> list[Arrival]:
    """Poisson arrivals; long prompts come in bursts of eight."""
    rng, at, made = random.Random(seed), 0.0, []
    burst = 8 if long_prompts else 1
    while (at := at + rng.expovariate(rate / burst)) < LEAD_SECONDS + SECONDS:
        for _ in range(burst):
            prompt = rng.randrange(1500, 3000) if long_prompts else round(min(150 * rng.lognormvariate(0, 0.6), 2000))
            length = round(min(max(100 * rng.lognormvariate(0, 0.7), 4), 1000))
            made.append(Arrival(at=at, prompt=max(prompt, 4), cap=rng.choice((512, 1024)), length=length))
    return made


class Scene:
    """One server, with a kvguard of these settings before it or none, through one schedule."""

    def __init__(self, config: TgiSimConfig, settings: Settings | None, seed: int) -> None:
        self.config = config
        self.engine = TgiEngine(config)
        self.now, self._next_scrape = 0.0, 0.0
        self.seen = Seen()
        self._clients: dict[int, _Client] = {}
        self._controller = None if settings is None else self._guard(settings, seed)

    def _guard(self, settings: Settings, seed: int) -> Controller:
        flags = {"max_batch_total_tokens": self.config.max_batch_total_tokens}
        chosen = BackendSettings(url="tgi+http://twin:80", tgi=flags, context_tokens=self.config.max_total_tokens)
        backend = build_backend(settings, chosen)
        self._ahead = assumed(tgi_server(chosen)).ahead
        backend.occupancy.permits = self.config.max_concurrent_requests
        rng = random.Random(seed)
        controller = Controller(
            (backend,), settings.admission_policy(), settings.reject.policy(), rng=rng, on_tier_change=self._entered
        )
        controller.governance = governance_of(settings)
        return controller

    def _entered(self, change: TierChange) -> None:
        self.seen.tiers[change.after] += 1

    def play(self, schedule: list[Arrival]) -> Seen:
        """To the end of the schedule; what is still there then is not looked at any more."""
        due = deque(schedule)
        while self.now < LEAD_SECONDS + SECONDS:
            step = self.engine.step()
            end = self.now + (step.seconds or IDLE_SECONDS)
            self._scrape()
            while due and due[0].at <= end:
                self._arrive(due.popleft())
            self.now = end
            for number in step.failed:
                self._end(number, lost=True)
            for token in step.tokens:
                self._hear(token.sequence_id, ended=token.finish_reason is not None)
            self._give_up()
            stats = self.engine.stats()
            self.seen.crashes = stats.crashes
            self.seen.most_waiting = max(self.seen.most_waiting, stats.waiting)
            usable = self.config.usable_blocks * self.config.block_size
            self.seen.most_reserved = max(self.seen.most_reserved, stats.reserved_tokens / usable)
        return self.seen

    def _scrape(self) -> None:
        if self._controller is None or self.now < self._next_scrape:
            return
        self._next_scrape = self.now + SCRAPE_SECONDS
        stats, usable = self.engine.stats(), self.config.usable_blocks
        usage = EngineUsage(
            engine="0",
            capacity_blocks=usable,
            block_size=self.config.block_size,
            used_ratio=stats.reserved_tokens / (usable * self.config.block_size),
            running=stats.running,
            waiting=stats.waiting,
            steps_total=stats.prefills + stats.decodes,
            ahead=self._ahead,
        )
        self._controller.backends[0].observe(UsageSample(engines=(usage,)), asked_at=self.now)
        self._controller.retier(self.now)

    def _counts(self, arrival: Arrival) -> bool:
        return arrival.at >= LEAD_SECONDS

    def _arrive(self, arrival: Arrival) -> None:
        self.seen.offered += self._counts(arrival)
        admission, cap = None, arrival.cap
        if self._controller is not None:
            outcome = self._controller.admit(self._controller.call(lambda _: _demand(arrival)), self.now)
            if not isinstance(outcome, Admission):
                self.seen.refused += self._counts(arrival)
                return
            admission, cap = outcome, outcome.decision.demand.output_cap or arrival.cap
        if self.engine.unfinished >= self.config.max_concurrent_requests:
            self.seen.engine_refused += self._counts(arrival)
            self._release(admission)
            return
        request = TgiRequest(prompt_tokens=arrival.prompt, max_new_tokens=cap, output_tokens=arrival.length)
        self._clients[self.engine.submit(request)] = _Client(arrival, admission)

    def _hear(self, number: int, *, ended: bool) -> None:
        client = self._clients.get(number)
        if client is None:
            return
        client.tokens += 1
        client.first = self.now - client.arrival.at if client.first is None else client.first
        if client.admission is not None:
            self._backend.ledger.progress(client.admission.reservation, client.tokens)
        if ended:
            self._end(number)

    @property
    def _backend(self):
        assert self._controller is not None
        return self._controller.backends[0]

    def _give_up(self) -> None:
        latest = self.now - PATIENCE_SECONDS
        for number in [number for number, client in self._clients.items() if client.arrival.at < latest]:
            self.engine.abort(number)
            client = self._clients.pop(number)
            self.seen.timed_out += self._counts(client.arrival)
            self._release(client.admission)

    def _end(self, number: int, *, lost: bool = False) -> None:
        client = self._clients.pop(number, None)
        if client is None:
            return
        if client.admission is not None and not lost:
            assert self._controller is not None
            self._controller.settle(client.admission, completion_tokens=client.tokens, now=self.now)
        self._release(client.admission)
        if not self._counts(client.arrival):
            return
        self.seen.lost += lost
        good = not lost and client.first is not None and client.first <= FIRST_TOKEN_SECONDS
        self.seen.good += good
        self.seen.shortened += good and client.tokens < client.arrival.length
        if client.first is not None:
            self.seen.first_tokens.append(client.first)

    def _release(self, admission: Admission | None) -> None:
        if admission is not None and self._controller is not None:
            self._controller.release(admission, now=self.now)


def _demand(arrival: Arrival) -> Demand:
    cap = arrival.cap
    return Demand(prompts=(arrival.prompt,), output_cap=cap, asked_cap=cap, expected_output=cap)


def able(config: TgiSimConfig) -> float:
    """Answers a second while there is always more to do, as many as keep its cache full."""
    supply, engine, now, ended = iter(arrivals(200.0, "capacity")), TgiEngine(config), 0.0, 0
    while now < SECONDS:
        while engine.unfinished < 32:
            one = next(supply)
            engine.submit(TgiRequest(prompt_tokens=one.prompt, max_new_tokens=one.cap, output_tokens=one.length))
        step = engine.step()
        now += step.seconds
        ended += sum(token.finish_reason is not None for token in step.tokens)
    return ended / now


OVERLOAD = (
    "offered load",
    "arm",
    "good answers",
    "shortened",
    "refused",
    "429 of TGI",
    "client time-outs",
    "first token p50 / p99, s",
    "longest queue",
    "most reserved",
    "TRIM / RESTRICT / REJECT entered",
)
CRASH = ("arm", "offered", "good answers", "lost in crashes", "crashes", "refused", "client time-outs")


def overload(seeds: int) -> str:
    """Chat at every load: a row for each arm, everything summed over seeds."""
    capacity = able(SERVER)
    lines = [_line(OVERLOAD), _line(["---"] * len(OVERLOAD))]
    for load in LOADS:
        for name, settings in (("TGI", None), ("kvguard", Settings())):
            runs = [
                Scene(SERVER, settings, seed).play(arrivals(load * capacity, f"chat:{load}:{seed}"))
                for seed in range(seeds)
            ]
            lines.append(_line([f"{load:g}x", name, *_cells(runs)]))
    text = f"{seeds} seeds of {SECONDS:g} simulated seconds; the server finishes {capacity:.1f} answers a second."
    return f"{text}\n\n" + "\n".join(lines)


def _cells(runs: list[Seen]) -> Iterator[str]:
    offered = sum(run.offered for run in runs)
    for attribute in ("good", "shortened", "refused", "engine_refused", "timed_out"):
        yield f"{sum(getattr(run, attribute) for run in runs) / offered:.0%}"
    first = [seconds for run in runs for seconds in run.first_tokens]
    yield f"{statistics.median(first):.2f} / {quantile(first, 0.99):.2f}"
    yield str(max(run.most_waiting for run in runs))
    yield f"{max(run.most_reserved for run in runs):.2f}"
    entered = [sum(run.tiers[tier] for run in runs) for tier in (Tier.TRIM, Tier.RESTRICT, Tier.REJECT)]
    yield " / ".join(map(str, entered))


def crash(seeds: int) -> str:
    """Bursts of long prompts, without and with the bound on prompt tokens under way."""
    arms = {"TGI": None, "kvguard": Settings(), "kvguard, `max_prefill_backlog_tokens: 6000`": Settings(**GUARD)}
    lines = [_line(CRASH), _line(["---"] * len(CRASH))]
    for name, settings in arms.items():
        runs = [
            Scene(FRAIL, settings, seed).play(arrivals(3.0, f"long:{seed}", long_prompts=True)) for seed in range(seeds)
        ]
        sums = [
            sum(getattr(run, attribute) for run in runs)
            for attribute in ("offered", "good", "lost", "crashes", "refused", "timed_out")
        ]
        lines.append(_line([name, *map(str, sums)]))
    text = (
        f"Bursts of eight prompts of 1,500 to 3,000 tokens, on a server whose flags let it prefill "
        f"{FRAIL.max_batch_prefill_tokens:,} tokens at once and whose memory is enough for "
        f"{FRAIL.prefill_limit_tokens:,}:"
    )
    return f"{text}\n\n" + "\n".join(lines)


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--print", action="store_true", help="leave docs/tgi.md alone")
    chosen = parser.parse_args()
    good = f"Good: the whole answer, its first token within {FIRST_TOKEN_SECONDS:g} s."
    text = f"{good} {overload(chosen.seeds)}\n\n{crash(chosen.seeds)}"
    if chosen.print:
        print(text)
    else:
        write_section("tgi", text, PAGE)


if __name__ == "__main__":
    main()
