"""Gives the engine time and hands its tokens to the requests that wait for them.

A step's result becomes visible when its duration has passed: tokens are delivered and `stats` changes only then, so a
scrape shows the state after the last finished step. One task runs `run`; everything else here is synchronous.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

from kvguard.clock import Clock
from kvguard.simulator.config import SimConfig
from kvguard.simulator.engine import EngineStats, SequenceRequest, SimEngine, SimToken


class EngineBusyError(Exception):
    """The engine holds as many unfinished sequences as it may."""


class RequestStream:
    """The tokens of one request's sequences, in the order the engine made them.

    The queue cannot outgrow the output caps. `close` gives up what is unfinished and must always be called.
    """

    def __init__(self, driver: "EngineDriver", sequence_ids: Sequence[int], capacity_tokens: int) -> None:
        self._driver = driver
        self._choices = {sequence_id: choice for choice, sequence_id in enumerate(sequence_ids)}
        self._unfinished = set(sequence_ids)
        self._queue: asyncio.Queue[SimToken] = asyncio.Queue(maxsize=capacity_tokens)

    async def tokens(self) -> AsyncIterator[tuple[int, SimToken]]:
        """Yield (choice, token) until every sequence has finished."""
        open_choices = len(self._choices)
        while open_choices:
            token = await self._queue.get()
            open_choices -= token.finish_reason is not None
            yield self._choices[token.sequence_id], token

    def deliver(self, token: SimToken) -> None:
        if token.finish_reason is not None:
            self._unfinished.discard(token.sequence_id)
        self._queue.put_nowait(token)

    def close(self) -> None:
        """Abort the sequences that still run or wait; their blocks are free when this returns."""
        self._driver.abort(self._unfinished)
        self._unfinished = set()


class EngineDriver:
    """One engine, its clock and the streams of its live sequences."""

    def __init__(self, config: SimConfig, clock: Clock) -> None:
        self.engine = SimEngine(config)
        self._clock = clock
        self._bound = config.max_num_queued_reqs
        self._work = asyncio.Event()
        self._streams: dict[int, RequestStream] = {}
        self._stats = self.engine.stats()
        self._stepping = False
        self._running = False

    @property
    def stats(self) -> EngineStats:
        """The engine's numbers after the last finished step."""
        return self._stats

    @property
    def running(self) -> bool:
        return self._running

    def submit(self, requests: Sequence[SequenceRequest]) -> RequestStream:
        """Queue all sequences of one request, or none: EngineBusyError when they exceed the engine's bound."""
        if self.engine.unfinished + len(requests) > self._bound:
            raise EngineBusyError
        sequence_ids = [self.engine.submit(request) for request in requests]
        stream = RequestStream(self, sequence_ids, sum(request.max_tokens for request in requests))
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
        await self._clock.sleep(result.seconds)
        self._stepping = False
        self._stats = self.engine.stats()
        for token in result.tokens:
            self._deliver(token)

    def _deliver(self, token: SimToken) -> None:
        """A token whose client left during the step goes nowhere."""
        ended = token.finish_reason is not None
        stream = self._streams.pop(token.sequence_id, None) if ended else self._streams.get(token.sequence_id)
        if stream is not None:
            stream.deliver(token)
