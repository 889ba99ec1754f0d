"""The seam to a backend: send head and body, await status and headers, iterate raw blocks, abort. On aiohttp.

Nothing is retried once a backend may have begun, with one exception: a *reused* connection that dies before a single
response byte was most likely closed by the backend while idle, and the request is sent once more on a fresh one.
"""

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Protocol

import aiohttp
from yarl import URL

from kvguard.errors import UpstreamBroken, UpstreamPoolExhausted, UpstreamTimeout, UpstreamUnreachable

Headers = list[tuple[bytes, bytes]]

MAX_HEADER_BYTES = 64 * 1024
WHOLE_BODY_BYTES = 256 * 1024

# How a connection shows that the backend closed it before it began to answer.
_LOST = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamRequest:
    """One request to forward; `target` is the raw path with its query."""

    method: str
    base_url: str
    target: str
    headers: Headers
    body: bytes


class UpstreamAnswer(Protocol):
    """A backend's answer whose body is still coming."""

    status: int
    headers: Headers

    def blocks(self) -> AsyncIterator[bytes]:
        """The body as it arrives. Raises UpstreamBroken or UpstreamTimeout when it does not arrive whole."""
        ...

    def abort(self) -> None:
        """Drop the connection unless the body is complete; the backend sees its peer leave."""
        ...


class Upstream(Protocol):
    """A client for every backend."""

    async def send(self, request: UpstreamRequest) -> UpstreamAnswer:
        """Forward and await the answer's head. Raises an UpstreamError."""
        ...

    async def close(self) -> None:
        """Drop every connection."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamLimits:
    """Times in seconds; `idle_seconds` and `max_connections` 0 mean without limit."""

    connect_seconds: float = 5.0
    idle_seconds: float = 0.0
    keepalive_seconds: float = 4.0
    max_connections: int = 0
    pool_wait_seconds: float = 1.0


class AiohttpAnswer:
    """An aiohttp response, raw."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers: Headers = list(response.raw_headers)

    async def blocks(self) -> AsyncIterator[bytes]:
        """The body as it arrives."""
        with _translated():
            async for block in self._response.content.iter_any():
                yield block

    def abort(self) -> None:
        """Close the connection if the body is not complete; else it has gone back to the pool already."""
        self._response.close()


class AiohttpUpstream:
    """Keep-alive connections to every backend, and fresh ones for the second try."""

    def __init__(self, limits: UpstreamLimits) -> None:
        self._limits = limits
        self._pooled = self._session(
            aiohttp.TCPConnector(
                limit=0, limit_per_host=limits.max_connections, keepalive_timeout=limits.keepalive_seconds
            )
        )
        self._fresh = self._session(aiohttp.TCPConnector(limit=0, force_close=True))

    def _session(self, connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(_note_reuse)
        trace.on_connection_queued_start.append(_note_queued)
        trace.on_connection_queued_end.append(_note_unqueued)
        limits = self._limits
        timeout = aiohttp.ClientTimeout(
            total=None,
            connect=limits.connect_seconds + (limits.pool_wait_seconds if limits.max_connections else 0),
            sock_connect=limits.connect_seconds,
            sock_read=limits.idle_seconds or None,
        )
        return aiohttp.ClientSession(
            connector=connector,
            timeout=timeout,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            trace_configs=[trace],
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
        )

    async def send(self, request: UpstreamRequest) -> AiohttpAnswer:
        """Forward and await the answer's head."""
        attempt = _Attempt(self._limits.pool_wait_seconds)
        try:
            return await self._attempt(self._pooled, request, attempt)
        except UpstreamBroken as error:
            # Anything but a lost connection means that the backend had begun to answer.
            if not attempt.reused or not isinstance(error.__cause__, _LOST):
                raise
        try:
            return await self._attempt(self._fresh, request, _Attempt(self._limits.pool_wait_seconds))
        except UpstreamUnreachable as error:
            # The first connection did carry the request, so nobody else may be asked.
            raise UpstreamBroken("the connection was lost, and no other could be made") from error

    async def _attempt(
        self, session: aiohttp.ClientSession, request: UpstreamRequest, attempt: "_Attempt"
    ) -> AiohttpAnswer:
        with _translated(attempt):
            async with attempt.patience:
                response = await session.request(
                    request.method,
                    URL(request.base_url + request.target, encoded=True),
                    headers=_decoded(request.headers),
                    data=_payload(request.body),
                    allow_redirects=False,
                    trace_request_ctx=attempt,
                )
        if not 200 <= response.status <= 599:
            response.close()
            raise UpstreamBroken(f"status {response.status}")
        return AiohttpAnswer(response)

    async def close(self) -> None:
        """Drop every connection."""
        await self._pooled.close()
        await self._fresh.close()


@dataclass(slots=True, eq=False)
class _Attempt:
    """What aiohttp tells of one attempt. Waiting for a free connection has a deadline of its own, counted from here."""

    pool_wait_seconds: float
    reused: bool = False
    queued: bool = False
    patience: asyncio.Timeout = field(default_factory=lambda: asyncio.timeout(None))
    give_up_at: float = field(init=False)

    def __post_init__(self) -> None:
        self.give_up_at = asyncio.get_running_loop().time() + self.pool_wait_seconds

    def queue(self) -> None:
        self.queued = True
        self.patience.reschedule(self.give_up_at)

    def unqueue(self) -> None:
        self.queued = False
        self.patience.reschedule(None)


async def _note_reuse(_session: object, context: SimpleNamespace, _parameters: object) -> None:
    context.trace_request_ctx.reused = True


async def _note_queued(_session: object, context: SimpleNamespace, _parameters: object) -> None:
    context.trace_request_ctx.queue()


async def _note_unqueued(_session: object, context: SimpleNamespace, _parameters: object) -> None:
    context.trace_request_ctx.unqueue()


def _decoded(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    """Headers as aiohttp takes them: it writes UTF-8, so that is how bytes survive it where they can."""
    return [(name.decode("latin-1"), _text(value)) for name, value in headers]


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


@contextlib.contextmanager
def _translated(attempt: _Attempt | None = None) -> Iterator[None]:
    """aiohttp's exceptions as ours; the messages carry no header, body or address."""
    try:
        yield
    except aiohttp.ConnectionTimeoutError as error:
        raise UpstreamUnreachable("connecting took too long") from error
    except aiohttp.ClientConnectorError as error:
        raise UpstreamUnreachable("no connection") from error
    except TimeoutError as error:
        if attempt is not None and attempt.queued:
            raise UpstreamPoolExhausted("every permitted connection is in use") from error
        raise UpstreamTimeout("silent for too long") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise UpstreamBroken(type(error).__name__) from error


def _payload(body: bytes) -> bytes | io.BytesIO | None:
    """A large body in pieces: aiohttp writes bytes in one go, during which nothing else runs."""
    return io.BytesIO(body) if len(body) > WHOLE_BODY_BYTES else body or None
