"""A hop on the way that writes down what passes: each request as it came, its answer as it went, and when."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from tests.kit.raw import RawAnswer, RawClient
from tests.kit.stub import Hit

MAX_HEAD_BYTES = 65_536
BLOCK_BYTES = 65_536


@dataclass(frozen=True)
class Passed:
    """A request, the loop's time at which it came, and its whole answer."""

    hit: Hit
    at: float
    answer: RawAnswer


class RecordingHop:
    """Passes every request to a local port, on a connection of its own, and its answer back as the bytes arrive."""

    def __init__(self, target_port: int) -> None:
        self.passed: list[Passed] = []
        self.port = 0
        self._target_port = target_port
        self._changed = asyncio.Condition()
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def until(self, holds: Callable[[], bool], *, seconds: float = 60.0) -> None:
        """Wait until what has passed makes `holds` true."""
        async with asyncio.timeout(seconds), self._changed:
            await self._changed.wait_for(holds)

    async def by_id(self, request_id: str) -> Passed:
        """What passed under this `x-request-id`."""

        def found() -> list[Passed]:
            return [one for one in self.passed if one.hit.headers.get("x-request-id") == request_id]

        await self.until(lambda: bool(found()))
        (one,) = found()
        return one

    def transcript(self) -> str:
        """A line for each request: what was asked for, how it was answered and when; nothing a client wrote."""
        first = self.passed[0].at if self.passed else 0.0
        return "\n".join(_line(one, one.at - first) for one in self.passed)

    def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one request and close: every answer here ends with its connection."""
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def end(self) -> None:
        """Drop whatever is still under way."""
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with _closed(writer):
            head = await reader.readuntil(b"\r\n\r\n")
            at = asyncio.get_running_loop().time()
            hit = await _hit(head, reader)
            answer = await self._pass(_closing(head) + hit.body, writer)
            async with self._changed:
                self.passed.append(Passed(hit, at, await _parsed(answer)))
                self._changed.notify_all()

    async def _pass(self, request: bytes, writer: asyncio.StreamWriter) -> bytes:
        reader, upstream = await asyncio.open_connection("127.0.0.1", self._target_port)
        answer = b""
        async with _closed(upstream):
            upstream.write(request)
            while block := await reader.read(BLOCK_BYTES):
                answer += block
                writer.write(block)
                await writer.drain()
        return answer


@contextlib.asynccontextmanager
async def _closed(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    """The connection is gone afterwards, whichever side ends it."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        try:
            yield
        finally:
            writer.close()
            await writer.wait_closed()


async def _hit(head: bytes, reader: asyncio.StreamReader) -> Hit:
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    return Hit(method, target, headers, await reader.readexactly(int(headers.get("content-length", "0"))))


def _closing(head: bytes) -> bytes:
    """The head, asking for the connection to be closed after the answer."""
    lines = [line for line in head.split(b"\r\n") if line and not line.lower().startswith(b"connection:")]
    return b"\r\n".join([*lines, b"connection: close", b"", b""])


async def _parsed(answer: bytes) -> RawAnswer:
    reader = asyncio.StreamReader()
    reader.feed_data(answer)
    reader.feed_eof()
    return await RawClient(reader, None).answer()


def _line(one: Passed, seconds: float) -> str:
    told = [f"{name}: {value}" for name, value in one.answer.headers.items() if name in _TOLD]
    target = one.hit.target.split("?")[0]
    size = f"{len(one.answer.body)} bytes"
    return ", ".join([f"{seconds:7.3f} s  {one.hit.method} {target} -> {one.answer.status}", size, *told])


_TOLD = (
    "retry-after",
    "retry-after-ms",
    "x-kvguard-degraded",
    "x-kvguard-reason",
    "x-kvguard-tier",
    "x-should-retry",
)


@contextlib.asynccontextmanager
async def recording_hop(target_port: int) -> AsyncIterator[RecordingHop]:
    """A hop listening on a loopback port of its own."""
    hop = RecordingHop(target_port)
    server = await asyncio.start_server(hop.serve, "127.0.0.1", 0, limit=MAX_HEAD_BYTES, backlog=512)
    hop.port = server.sockets[0].getsockname()[1]
    try:
        yield hop
    finally:
        server.close()
        await hop.end()
        await server.wait_closed()
