"""Passing a backend's answer on, byte for byte as it arrives, while reading how far it has come.

An answer that breaks before its first byte becomes an error answer; a stream that breaks later ends with an error
event and never with a success terminator; any other broken body ends with the connection, so that no client takes it
for whole. The same holds for answers that kvguard cuts off because it shuts down. A failure that an engine hides in the
first event of a stream is answered as one.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from kvguard.admission.reasons import RejectReason
from kvguard.clock import Clock
from kvguard.errors import UpstreamError
from kvguard.protocols.error_format import ErrorFormat
from kvguard.protocols.openai_errors import OPENAI_ERRORS
from kvguard.protocols.route import AnswerHeaders, body_usage
from kvguard.protocols.sse import OPENAI, Failure, StreamFormat, StreamReader, Usage
from kvguard.protocols.usage_chunk import UsageChunkFilter
from kvguard.proxy.exchange import Exchange
from kvguard.proxy.headers import find, to_client
from kvguard.proxy.opening import Opening, forget, or_end
from kvguard.proxy.refusal import error_kind, retry_headers
from kvguard.proxy.upstream import Headers, UpstreamAnswer

MAX_KEPT_ANSWER_BYTES = 256 * 1024

_STREAM_HEADERS: Headers = [(b"x-accel-buffering", b"no"), (b"cache-control", b"no-cache")]
# What passes may be less than the backend sends, or end with an event of ours.
_NOT_OF_STREAMS = frozenset({b"x-accel-buffering", b"cache-control", b"content-length"})
_NOT_OF_FAILURES = _NOT_OF_STREAMS | {b"content-type"}

HIDING = 200  # the status under which an engine hides failures

CUT_OFF = "This proxy shut down before the answer was complete."

_HEARTBEAT = b": keep-alive\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How an answer passes: the format of its stream and of errors in it, where a whole one tells its usage, whether
    usage nobody asked for is taken out, and after how many silent seconds a comment keeps a stream alive (0: never).

    Where the engine hides failures, a stream begins for the client with its first event, or after `first_event_seconds`
    without one (0: at once), and no later than the first heartbeat is due.
    """

    stream: StreamFormat = OPENAI
    errors: ErrorFormat = OPENAI_ERRORS
    usage: Callable[[bytes, AnswerHeaders], Usage | None] = body_usage
    strips_usage: bool = False
    heartbeat_seconds: float = 0.0
    first_event_seconds: float = 30.0

    @property
    def patience_seconds(self) -> float:
        """How long a client hears nothing at most while the first event is waited for."""
        return min(self.first_event_seconds, self.heartbeat_seconds or self.first_event_seconds)


class AnswerCut(Exception):
    """The body broke after it had begun and cannot say so itself; the connection must end."""


@dataclass(slots=True)
class Relayed:
    """What passed so far; complete when the relay returns normally."""

    status: int
    first_byte_at: float | None = None
    usage: Usage | None = None
    broken: str = ""


class Relay:
    """One answer on its way. `on_events` hears how many stream events have passed."""

    def __init__(
        self,
        exchange: Exchange,
        answer: UpstreamAnswer,
        clock: Clock,
        on_events: Callable[[int], None],
        manner: Manner = Manner(),
    ) -> None:
        self._exchange = exchange
        self._answer = answer
        self._clock = clock
        self._on_events = on_events
        self._manner = manner
        self.result = Relayed(answer.status)

    async def run(self, added: Headers, *, retry_after_seconds: float) -> Relayed:
        """Relay the whole answer but its end. Raises UpstreamError when it broke before its first byte."""
        headers = to_client(self._answer.headers, added)
        if _is_readable_stream(headers):
            await self._open_stream(headers, retry_after_seconds)
        else:
            headers += self._when_to_retry(headers, self._answer.status, retry_after_seconds)
            if self._answer.status in (204, 304):  # no body follows, whatever length the backend names
                headers = [pair for pair in headers if pair[0] != b"content-length"]
            await self._plain(headers)
        return self.result

    def _when_to_retry(self, headers: Headers, status: int, seconds: float) -> Headers:
        """For a refusal of the backend's own that does not say."""
        return retry_headers(seconds) if status in (429, 503) and find(headers, b"retry-after") is None else []

    async def _open_stream(self, headers: Headers, retry_after_seconds: float) -> None:
        """Pass a stream, once it is known not to have failed at once where the engine would hide that."""
        manner = self._manner
        if manner.stream.failure is None or self._answer.status != HIDING or not manner.patience_seconds:
            await self._stream(headers, self._answer.blocks())
            return
        opening = Opening(self._answer.blocks())
        try:
            event = await opening.first_event(self._clock.sleep(manner.patience_seconds))
            failure = None if event is None else manner.stream.failure(event)
            if failure is None:
                await self._stream(headers, opening.blocks())
            else:
                await self._fail(headers, failure, retry_after_seconds)
        finally:
            opening.close()

    async def _fail(self, headers: Headers, failure: Failure, retry_after_seconds: float) -> None:
        """Answer with the failure, under the engine's other headers."""
        self._mark_first_byte()
        self.result.status = failure.status
        kept = [pair for pair in headers if pair[0] not in _NOT_OF_FAILURES]
        kept += [(b"content-type", b"application/json"), (b"content-length", str(len(failure.body)).encode())]
        kept += self._when_to_retry(kept, failure.status, retry_after_seconds)
        await self._exchange.start(failure.status, kept)
        await self._exchange.write(failure.body)

    async def _stream(self, headers: Headers, blocks: AsyncIterator[bytes]) -> None:
        kept = [pair for pair in headers if pair[0] not in _NOT_OF_STREAMS]
        await self._exchange.start(self._answer.status, [*kept, *_STREAM_HEADERS])
        reader = StreamReader(self._manner.stream)
        held_back = UsageChunkFilter() if self._manner.strips_usage else None
        try:
            async for block in self._kept_alive(blocks, reader, held_back):
                self._mark_first_byte()
                reader.feed(block)
                # Before the write: what the engine holds does not depend on how fast the client reads.
                self._on_events(reader.events)
                await self._pass(block if held_back is None else held_back.feed(block))
        except UpstreamError as error:
            self.result.broken = str(error)
        except asyncio.CancelledError:
            # OpenAI's client leaves with the last event, often before the backend has closed its answer.
            if not reader.complete:
                if not self._exchange.cut_off:
                    raise
                self.result.broken = "cut off at shutdown"
        if held_back is not None:
            await self._pass(held_back.rest())
        await self._conclude(reader)

    async def _conclude(self, reader: StreamReader) -> None:
        """Note how a stream ended, and say so where it broke."""
        if self._answer.status == 200 and not reader.complete and not reader.failed:
            self.result.broken = self.result.broken or "ended without its terminator"
        if self.result.broken and not (reader.failed and reader.at_boundary):
            await self._exchange.write(self._broken_off(reader))
        if reader.failed:
            self.result.broken = self.result.broken or "the backend reported an error in the stream"
        self.result.usage = reader.usage()

    async def _pass(self, block: bytes) -> None:
        if block:
            await self._exchange.write(block)

    async def _kept_alive(
        self, blocks: AsyncIterator[bytes], reader: StreamReader, held_back: UsageChunkFilter | None
    ) -> AsyncIterator[bytes]:
        """The answer's blocks; while none comes, comments between its events keep the connection from being cut."""
        if not self._manner.heartbeat_seconds:
            async for block in blocks:
                yield block
            return
        while (coming := await self._next(blocks, reader, held_back)) is not None:
            yield coming

    async def _next(
        self, blocks: AsyncIterator[bytes], reader: StreamReader, held_back: UsageChunkFilter | None
    ) -> bytes | None:
        coming = asyncio.ensure_future(or_end(blocks))
        try:
            while not coming.done():
                await self._silence(coming)
                if not coming.done() and reader.at_boundary and (held_back is None or held_back.between_events):
                    await self._exchange.write(_HEARTBEAT)
            return coming.result()
        finally:
            forget(coming)

    async def _silence(self, coming: asyncio.Future[bytes | None]) -> None:
        """Wait for the next block, but not much longer than a client should hear nothing."""
        silence = asyncio.ensure_future(self._clock.sleep(self._manner.heartbeat_seconds))
        try:
            either: set[asyncio.Future[Any]] = {coming, silence}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            silence.cancel()

    def _broken_off(self, reader: StreamReader) -> bytes:
        """The last event of a stream that broke; a half event before it is ended first, so that it stands alone."""
        if self._exchange.cut_off:
            # What was read last may not have been written any more, so any event may be the half one.
            reason = RejectReason.DRAINING
            return b"\n\n" + self._manner.errors.event(CUT_OFF, code=reason.value, kind=error_kind(reason))
        event = self._manner.errors.event(
            "The model server's answer broke off; it is not complete.",
            code=RejectReason.BACKEND_UNREACHABLE.value,
            kind="upstream_error",
        )
        return event if reader.at_boundary else b"\n\n" + event

    async def _plain(self, headers: Headers) -> None:
        kept: bytes | None = b""
        blocks = self._answer.blocks()
        block = await anext(blocks, b"")
        self._mark_first_byte()
        await self._exchange.start(self._answer.status, headers)
        try:
            while block:
                kept = None if kept is None or len(kept) + len(block) > MAX_KEPT_ANSWER_BYTES else kept + block
                await self._exchange.write(block)
                block = await anext(blocks, b"")
        except UpstreamError as error:
            self.result.broken = str(error)
            raise AnswerCut from error
        if self._answer.status == 200:
            self.result.usage = self._manner.usage(kept or b"", headers)

    def _mark_first_byte(self) -> None:
        if self.result.first_byte_at is None:
            self.result.first_byte_at = self._clock.now()


def _is_readable_stream(headers: Headers) -> bool:
    """Whether it is a stream of events, and not compressed: nothing can be read in one that is, or added to it."""
    encoding = find(headers, b"content-encoding") or b"identity"
    events = (find(headers, b"content-type") or b"").lower().startswith(b"text/event-stream")
    return events and encoding.strip().lower() == b"identity"
