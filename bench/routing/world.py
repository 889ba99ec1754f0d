"""Many engines, their clients and a router, in simulated time: every engine steps at a pace of its own."""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from bench.overload.client import REFUSED, Outcome
from bench.routing.routers import Router
from bench.routing.traffic import Turn
from bench.simulated.world import sequence_of
from kvguard.simulator.config import SimConfig
from kvguard.simulator.engine import EngineStats, FinishReason, SimEngine, SimToken, StepResult

SCRAPE_SECONDS = 0.5


@dataclass(eq=False)
class _Client:
    """Somebody who waits for an answer; `sequence` is the engine's number for it, `since` when it was asked for."""

    turn: Turn
    since: float = 0.0
    sequence: int = -1
    outcome: Outcome = field(default_factory=Outcome)


@dataclass(eq=False)
class _Server:
    """One engine; `shown` is what it said after its last finished step."""

    number: int
    engine: SimEngine
    shown: EngineStats
    stepping: bool = False
    generating: dict[int, _Client] = field(default_factory=dict)
    block_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Watched:
    """What the engines did in a span of time: blocks each held in the mean, prompt tokens looked up and found."""

    held_blocks: tuple[float, ...]
    queried_tokens: int
    hit_tokens: int

    @property
    def imbalance(self) -> float:
        """The fullest engine's blocks over the mean; 1 is even."""
        mean = sum(self.held_blocks) / len(self.held_blocks)
        return max(self.held_blocks) / mean if mean else 1.0

    @property
    def hit_rate(self) -> float:
        return self.hit_tokens / self.queried_tokens if self.queried_tokens else 0.0


class World:
    """Everything that happens, in order of time. What the engines do between the two moments of `span` is watched."""

    def __init__(
        self, config: SimConfig, engines: int, router: Router, *, patience_seconds: float, span: tuple[float, float]
    ) -> None:
        made = [SimEngine(config) for _ in range(engines)]
        self.servers = [_Server(number, engine, engine.stats()) for number, engine in enumerate(made)]
        self._router = router
        self._patience_seconds = patience_seconds
        self._span = span
        self._now = 0.0
        self._order = itertools.count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._next: dict[int, _Client] = {}
        self._open = 0
        self._seen: list[tuple[int, int]] = []

    def offer(self, schedule: list[Turn]) -> list[Outcome]:
        """Send every request at its time, and see all of them to their end."""
        clients = [_Client(turn) for turn in schedule]
        self._open = len(clients)
        self._next = {client.turn.follows: client for client in clients if client.turn.follows is not None}
        for client in clients:
            if client.turn.follows is None:
                self._at(client.turn.at, partial(self._arrive, client))
        for moment in self._span:
            self._at(moment, self._look)
        for server in self.servers:
            self._at(server.number * SCRAPE_SECONDS / len(self.servers), partial(self._scrape, server))
        while self._open or len(self._seen) < len(self._span):
            self._now, _, event = heapq.heappop(self._due)
            event()
        return [client.outcome for client in clients]

    @property
    def preemptions(self) -> int:
        return sum(server.engine.stats().preemptions for server in self.servers)

    def watched(self) -> Watched:
        """What was seen of the span."""
        (queried, hit), (queried_then, hit_then) = self._seen
        seconds = self._span[1] - self._span[0]
        held = tuple(server.block_seconds / seconds for server in self.servers)
        return Watched(held, queried_then - queried, hit_then - hit)

    def _at(self, moment: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._due, (moment, next(self._order), event))

    def _look(self) -> None:
        shown = [server.shown for server in self.servers]
        self._seen.append((sum(s.prefix_cache_queries for s in shown), sum(s.prefix_cache_hits for s in shown)))

    def _scrape(self, server: _Server) -> None:
        self._router.scraped(server.number, server.shown, self._now)
        self._at(self._now + SCRAPE_SECONDS, partial(self._scrape, server))

    def _arrive(self, client: _Client) -> None:
        client.since = self._now
        sent = self._router.send(client.turn, self._now)
        if sent is None:
            client.outcome.status = REFUSED
            self._over(client)
            return
        server = self.servers[sent.engine]
        client.outcome.status = 200
        client.sequence = server.engine.submit(sequence_of(client.turn, sent.cap))
        server.generating[client.sequence] = client
        self._at(self._now + self._patience_seconds, partial(self._give_up, server, client))
        if not server.stepping:
            self._begin_step(server)

    def _begin_step(self, server: _Server) -> None:
        server.stepping = server.engine.has_work
        if server.stepping:
            step = server.engine.step()
            self._at(self._now + step.seconds, partial(self._end_step, server, step))

    def _end_step(self, server: _Server, step: StepResult) -> None:
        server.shown = server.engine.stats()
        begin, end = self._span
        if begin <= self._now < end:
            server.block_seconds += server.shown.used_blocks * step.seconds
        for token in step.tokens:
            client = server.generating.get(token.sequence_id)
            if client is not None:
                self._hear(server, client, token)
        self._begin_step(server)

    def _hear(self, server: _Server, client: _Client, token: SimToken) -> None:
        outcome = client.outcome
        outcome.tokens += 1
        if outcome.first_token is None:
            outcome.first_token = self._now - client.since
        self._router.progress(client.turn, outcome.tokens)
        if token.finish_reason is not None:
            outcome.complete, outcome.cut = True, token.finish_reason is FinishReason.LENGTH
            self._end(server, client, tokens=outcome.tokens)

    def _give_up(self, server: _Server, client: _Client) -> None:
        if client.sequence in server.generating:
            client.outcome.timed_out = True
            server.engine.abort(client.sequence)
            self._end(server, client, tokens=None)

    def _end(self, server: _Server, client: _Client, *, tokens: int | None) -> None:
        del server.generating[client.sequence]
        self._router.ended(client.turn, self._now, tokens=tokens)
        self._over(client)

    def _over(self, client: _Client) -> None:
        """The request is over, whatever became of it; the next turn of its conversation comes in time."""
        client.outcome.ended = self._now - client.since
        self._open -= 1
        follower = self._next.pop(client.turn.number, None)
        if follower is not None:
            moment = max(follower.turn.at, self._now + follower.turn.think_seconds)
            self._at(moment, partial(self._arrive, follower))
