"""A client on a bare socket: it sends any bytes, sees every byte that comes back, and leaves when it likes."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

DEADLINE_SECONDS = 10.0


@dataclass(frozen=True)
class RawAnswer:
    """An answer; header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes = b""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class RawClient:
    """One connection. Every read has a deadline."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._deadline_seconds = deadline_seconds

    async def send(self, data: bytes) -> None:
        async with asyncio.timeout(self._deadline_seconds):
            self._writer.write(data)
            await self._writer.drain()

    async def request(self, target: str, body: bytes | dict = b"", *, method: str = "POST", **headers: str) -> None:
        """A whole request with a length; underscores in header names become hyphens."""
        body = json.dumps(body).encode() if isinstance(body, dict) else body
        await self.send(request_head(target, method=method, content_length=str(len(body)), **headers) + body)

    async def head(self) -> RawAnswer:
        """Status and headers of the next answer, its body still to come."""
        async with asyncio.timeout(self._deadline_seconds):
            lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        return RawAnswer(int(lines[0].split(" ")[1]), headers)

    async def chunk(self) -> bytes:
        """The next chunk of a chunked body; empty at its end."""
        async with asyncio.timeout(self._deadline_seconds):
            size = int(await self._reader.readuntil(b"\r\n"), 16)
            return (await self._reader.readexactly(size + 2))[:-2]

    async def answer(self) -> RawAnswer:
        """The next answer with its whole body."""
        head = await self.head()
        if head.headers.get("transfer-encoding") == "chunked":
            parts = []
            while part := await self.chunk():
                parts.append(part)
            return RawAnswer(head.status, head.headers, b"".join(parts))
        async with asyncio.timeout(self._deadline_seconds):
            body = await self._reader.readexactly(int(head.headers["content-length"]))
        return RawAnswer(head.status, head.headers, body)

    async def rest(self) -> bytes:
        """Everything up to the end of the connection."""
        async with asyncio.timeout(self._deadline_seconds):
            return await self._reader.read()

    def leave(self) -> None:
        """Drop the connection at once."""
        self._writer.transport.abort()


def request_head(target: str, *, method: str = "POST", **headers: str) -> bytes:
    """The head of a request; underscores in header names become hyphens."""
    named = {"host": "kvguard", "content_type": "application/json", **headers}
    lines = [f"{method} {target} HTTP/1.1", *(f"{name.replace('_', '-')}: {value}" for name, value in named.items())]
    return "\r\n".join([*lines, "", ""]).encode()


@contextlib.asynccontextmanager
async def raw_client(port: int, *, deadline_seconds: float = DEADLINE_SECONDS) -> AsyncIterator[RawClient]:
    """A connection to a local port, closed at the end."""
    client = RawClient(*await asyncio.open_connection("127.0.0.1", port), deadline_seconds=deadline_seconds)
    try:
        yield client
    finally:
        client.leave()
