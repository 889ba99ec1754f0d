"""One engine, its clients and a gate, in simulated time: what `bench.overload` does on a real server, without one."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from bench.overload.client import REFUSED, Outcome
from bench.overload.workload import Arrival
from bench.simulated.gates import Door, Verdict
from kvguard.simulator.config import SimConfig
from kvguard.simulator.engine import FinishReason, SequenceRequest, SimEngine, SimToken

_QUEUE_FULL = 503
_IDLE_SECONDS = 0.05


@dataclass(eq=False)
class _Client:
    """Somebody who waits for an answer; `sequence` is the engine's number for it, `since` when it was asked for."""

    arrival: Arrival
    since: float
    sequence: int = -1
    outcome: Outcome = field(default_factory=Outcome)


class World:
    """Clients ask at the door, and the engine generates. Time is in seconds and passes in the engine's own steps.

    `config.max_num_queued_reqs` bounds what the engine takes in, as its own limit does.
    """

    def __init__(self, config: SimConfig, door: Door, *, patience_seconds: float) -> None:
        self.engine = SimEngine(config)
        self._config = config
        self._door = door
        self._patience_seconds = patience_seconds
        self._now = 0.0
        self._next_scrape = 0.0
        self._asking: dict[int, _Client] = {}
        self._generating: dict[int, _Client] = {}

    def offer(self, schedule: list[Arrival]) -> list[Outcome]:
        """Send every request at its time, whatever became of the ones before, until all have ended."""
        began, due = self._now, deque(schedule)
        clients = [_Client(arrival, began + arrival.at) for arrival in schedule]
        coming = iter(clients)
        while due or self._asking:
            step = self.engine.step()
            end = self._now + (step.seconds or _IDLE_SECONDS)
            self._scrape()
            while due and began + due[0].at <= end:
                due.popleft()
                self._arrive(next(coming))
            self._now = end
            for token in step.tokens:
                self._hear(token)
            self._give_up()
            for arrival, sent in self._door.turns(self._now):
                self._send(self._asking[arrival.number]) if sent else self._refuse(self._asking[arrival.number])
        return [client.outcome for client in clients]

    def _scrape(self) -> None:
        if self._now >= self._next_scrape:
            self._next_scrape = self._now + self._door.scrape_seconds
            self._door.scraped(self.engine.stats(), self._now)

    def _arrive(self, client: _Client) -> None:
        self._asking[client.arrival.number] = client
        verdict = self._door.ask(client.arrival, client.since)
        if verdict is Verdict.SEND:
            self._send(client)
        elif verdict is Verdict.REFUSE:
            self._refuse(client)

    def _send(self, client: _Client) -> None:
        arrival = client.arrival
        if self.engine.unfinished >= self._config.max_num_queued_reqs:
            self._door.ended(arrival, self._now, tokens=None)
            self._refuse(client, _QUEUE_FULL)
            return
        cap = self._door.cap_of(arrival)
        client.outcome.status = 200
        client.sequence = self.engine.submit(sequence_of(arrival, cap))
        self._generating[client.sequence] = client

    def _refuse(self, client: _Client, status: int = REFUSED) -> None:
        client.outcome.status, client.outcome.ended = status, self._now - client.since
        del self._asking[client.arrival.number]

    def _hear(self, token: SimToken) -> None:
        client = self._generating[token.sequence_id]
        outcome, waited = client.outcome, self._now - client.since
        outcome.tokens += 1
        outcome.first_token = waited if outcome.first_token is None else outcome.first_token
        self._door.progress(client.arrival, outcome.tokens)
        if token.finish_reason is not None:
            outcome.complete, outcome.cut = True, token.finish_reason is FinishReason.LENGTH
            self._end(client, tokens=outcome.tokens)

    def _give_up(self) -> None:
        latest = self._now - self._patience_seconds
        for client in [client for client in self._generating.values() if client.since < latest]:
            client.outcome.timed_out = True
            self.engine.abort(client.sequence)
            self._end(client, tokens=None)

    def _end(self, client: _Client, *, tokens: int | None) -> None:
        client.outcome.ended = self._now - client.since
        del self._asking[client.arrival.number], self._generating[client.sequence]
        self._door.ended(client.arrival, self._now, tokens=tokens)


def sequence_of(arrival: Arrival, cap: int) -> SequenceRequest:
    """What the engine is asked for."""
    return SequenceRequest(
        prompt_tokens=arrival.prompt_tokens, max_tokens=cap, output_tokens=arrival.length, prefix=arrival.prefix
    )


def capacity(config: SimConfig, arrivals: Iterator[Arrival], *, clients: int, mean_tokens: float) -> float:
    """Answers a second while so many clients each send their next request as soon as the last has ended.

    Tokens are counted, after the engine has filled, and an answer is as many as it has in the mean.
    """
    engine, now, tokens, began = SimEngine(config), 0.0, 0, _FILLING_SECONDS
    while now < began + _CAPACITY_SECONDS:
        while engine.unfinished < clients:
            arrival = next(arrivals)
            engine.submit(sequence_of(arrival, arrival.cap))
        step = engine.step()
        now += step.seconds
        tokens += len(step.tokens) if now >= began else 0
    return tokens / (now - began) / mean_tokens


_FILLING_SECONDS = 10.0
_CAPACITY_SECONDS = 60.0
