"""One HTTP exchange with a client: its identity, its body, its answer, and whether the client is still there."""

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from kvguard.errors import InvalidRequest
from kvguard.proxy.headers import REQUEST_ID, find, sane_request_id, trace_id_of
from kvguard.proxy.upstream import Headers

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


_MAX_DISCARDED_BYTES = 16 * 1024 * 1024
_MAX_DIGITS = 18  # of a length; anything longer is too large without reading it


class ClientGone(Exception):
    """The client closed its connection."""


class BodyTooLarge(Exception):
    """The request body exceeds the limit."""


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    """Status, headers without a length, and body."""

    status: int
    headers: Headers
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a client may take to send its body, and to read the next part of its answer."""

    body_seconds: float = 60.0
    stall_seconds: float = 60.0


class Exchange:
    """A request and the means to answer it. `started` says whether the answer's head has been sent, `peer` is the
    address of whoever connected. `closes` tells whether the connection takes no request after this one. One that is
    `cut_off` is cancelled because kvguard ends, not because its client left.
    """

    def __init__(self, scope: Message, receive: Receive, send: Send, *, received_at: float, patience: Patience) -> None:
        self.headers: Headers = scope["headers"]
        client = scope.get("client")
        self.peer: str | None = client[0] if client else None
        self.query: bytes = scope.get("query_string", b"")
        self.received_at = received_at
        self.request_id = sane_request_id(find(self.headers, b"x-request-id")) or secrets.token_hex(16)
        self.trace_id = trace_id_of(self.headers)
        self.status: int | None = None
        self.started = False
        self.closes: Callable[[], bool] = _never
        self.cut_off = False
        self._whole = False
        self._patience = patience
        self._receive = receive
        self._send = send

    async def read_body(self, limit: int) -> bytes:
        """The whole body. Raises BodyTooLarge, before reading if possible, InvalidRequest if late, or ClientGone."""
        declared = find(self.headers, b"content-length")
        if declared is not None and declared.isdigit() and (len(declared) > _MAX_DIGITS or int(declared) > limit):
            raise BodyTooLarge
        try:
            async with asyncio.timeout(self._patience.body_seconds):
                return await self._read(limit)
        except TimeoutError:
            raise InvalidRequest("the body did not arrive in time") from None

    async def _read(self, limit: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            part = message.get("body", b"")
            size += len(part)
            if size > limit:
                raise BodyTooLarge
            parts.append(part)
            if not message.get("more_body", False):
                self._whole = True
                return b"".join(parts)

    def watch(self) -> "DisconnectScope":
        """A scope that is cancelled, and ends with ClientGone, when the client leaves. The body must have been read."""
        return DisconnectScope(self._receive)

    async def start(self, status: int, headers: Headers) -> None:
        """Send the answer's head."""
        own = [(REQUEST_ID, self.request_id.encode())]
        if find(headers, b"x-request-id") is None:
            own.append((b"x-request-id", self.request_id.encode()))
        if self.closes():
            own.append((b"connection", b"close"))
        self.started, self.status = True, status
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, *own]})

    async def write(self, block: bytes) -> None:
        """Send a part of the answer's body; waits while the client reads too slowly. Raises ClientGone if it stops."""
        try:
            async with asyncio.timeout(self._patience.stall_seconds):
                await self._send({"type": "http.response.body", "body": block, "more_body": True})
        except TimeoutError:
            raise ClientGone from None

    async def finish(self) -> None:
        """End the answer. After this the server reports the client as gone, so nothing may be left to do."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def respond(self, answer: WholeAnswer) -> None:
        """A whole answer at once."""
        if self.closes() and not self._whole:
            await self._discard_body()
        await self.start(answer.status, [*answer.headers, (b"content-length", str(len(answer.body)).encode())])
        await self._send({"type": "http.response.body", "body": answer.body, "more_body": False})

    async def _discard_body(self) -> None:
        """Take in what is left of the body: closing a connection on which more comes destroys the answer on its way."""
        with contextlib.suppress(BodyTooLarge, InvalidRequest, ClientGone):
            await self.read_body(_MAX_DISCARDED_BYTES)


def _never() -> bool:
    return False


class DisconnectScope:
    """Cancels the task inside it when the client leaves."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._gone = False

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a disconnect scope needs a task")
        self._task = task
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watcher.cancel()
        if self._gone and self._task.uncancel() == 0 and (kind is None or kind is asyncio.CancelledError):
            raise ClientGone
