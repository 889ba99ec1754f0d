"""Gives an engine time and hands its tokens to the requests that wait for them.

A step's result becomes visible when its duration has passed: tokens are delivered and `stats` changes only then, so a
scrape shows the state after the last finished step. One task runs `run`; everything else here is synchronous.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Generic, Protocol, TypeVar

from kvguard.clock import Clock
from kvguard.simulator.engine import SimToken, StepResult

Request_contra = TypeVar("Request_contra", contravariant=True)
Stats_co = TypeVar("Stats_co", covariant=True)
RequestT = TypeVar("RequestT")
StatsT = TypeVar("StatsT")


class Engine(Protocol[Request_contra, Stats_co]):
    """What is driven: it takes requests, forgets them, and computes step by step."""

    @property
    def has_work(self) -> bool: ...
    @property
    def unfinished(self) -> int: ...
    def submit(self, request: Request_contra) -> int: ...
    def abort(self, sequence_id: int) -> bool: ...
    def step(self) -> StepResult: ...
    def stats(self) -> Stats_co: ...


class EngineBusyError(Exception):
    """The engine holds as many unfinished sequences as it may."""


class GenerationFailed(Exception):
    """The engine failed while it had the request."""


class RequestStream:
    """The tokens of one request's sequences, in the order the engine made them.

    The queue cannot outgrow the output caps, and one place for a failure. `close` gives up what is unfinished and must
    always be called.
    """

    def __init__(self, give_up: "GiveUp", sequence_ids: Sequence[int], capacity_tokens: int) -> None:
        self._give_up = give_up
        self._choices = {sequence_id: choice for choice, sequence_id in enumerate(sequence_ids)}
        self._unfinished = set(sequence_ids)
        self._queue: asyncio.Queue[SimToken | None] = asyncio.Queue(maxsize=capacity_tokens + len(self._choices))

    async def tokens(self) -> AsyncIterator[tuple[int, SimToken]]:
        """Yield (choice, token) until every sequence has finished. Raises GenerationFailed if one fails."""
        open_choices = len(self._choices)
        while open_choices:
            token = await self._queue.get()
            if token is None:
                raise GenerationFailed
            open_choices -= token.finish_reason is not None
            yield self._choices[token.sequence_id], token

    def deliver(self, token: SimToken) -> None:
        if token.finish_reason is not None:
            self._unfinished.discard(token.sequence_id)
        self._queue.put_nowait(token)

    def fail(self, sequence_id: int) -> None:
        """There will be no more tokens of this sequence."""
        self._unfinished.discard(sequence_id)
        self._queue.put_nowait(None)

    def close(self) -> None:
        """Abort the sequences that still run or wait."""
        self._give_up.abort(self._unfinished)
        self._unfinished = set()


class GiveUp(Protocol):
    """Whoever forgets sequences."""

    def abort(self, sequence_ids: set[int]) -> None: ...


class EngineDriver(Generic[RequestT, StatsT]):
    """One engine, its clock and the streams of its live sequences; it takes at most `most_unfinished` of them.

    `on_step` hears of every step once it is over; `turned_away` counts the requests that were too many.
    """

    def __init__(self, engine: Engine[RequestT, StatsT], clock: Clock, *, most_unfinished: int | None = None) -> None:
        self.engine = engine
        self.on_step: Callable[[StepResult], None] = lambda result: None
        self.turned_away = 0
        self._clock = clock
        self._bound = most_unfinished
        self._work = asyncio.Event()
        self._streams: dict[int, RequestStream] = {}
        self._stats = self.engine.stats()
        self._stepping = False
        self._running = False

    @property
    def stats(self) -> StatsT:
        """The engine's numbers after the last finished step."""
        return self._stats

    @property
    def running(self) -> bool:
        return self._running

    def submit(self, requests: Sequence[RequestT], *, most_tokens: int) -> RequestStream:
        """Queue all sequences of one request, or none: EngineBusyError when they exceed the engine's bound.

        They generate at most `most_tokens` together.
        """
        if self._bound is not None and self.engine.unfinished + len(requests) > self._bound:
            self.turned_away += 1
            raise EngineBusyError
        sequence_ids = [self.engine.submit(request) for request in requests]
        stream = RequestStream(self, sequence_ids, most_tokens)
        self._streams.update(dict.fromkeys(sequence_ids, stream))
        self._work.set()
        return stream

    def abort(self, sequence_ids: set[int]) -> None:
        for sequence_id in sequence_ids:
            self.engine.abort(sequence_id)
            self._streams.pop(sequence_id, None)
        if not self._stepping:
            self._stats = self.engine.stats()

    async def run(self) -> None:
        """Step while there is work, wait while there is none; ends only by cancellation."""
        self._running = True
        try:
            while True:
                await self._wait_for_work()
                await self._step()
        finally:
            self._running = False

    async def _wait_for_work(self) -> None:
        while not self.engine.has_work:
            self._work.clear()
            await self._work.wait()

    async def _step(self) -> None:
        self._stepping = True
        result = self.engine.step()
        for sequence_id in result.failed:  # at once: the time a step that fails takes is what comes after it
            stream = self._streams.pop(sequence_id, None)
            if stream is not None:
                stream.fail(sequence_id)
        await self._clock.sleep(result.seconds)
        self._stepping = False
        self._stats = self.engine.stats()
        self.on_step(result)
        for token in result.tokens:
            self._deliver(token)

    def _deliver(self, token: SimToken) -> None:
        """A token whose client left during the step goes nowhere."""
        ended = token.finish_reason is not None
        stream = self._streams.pop(token.sequence_id, None) if ended else self._streams.get(token.sequence_id)
        if stream is not None:
            stream.deliver(token)
