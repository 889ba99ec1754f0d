"""uvicorn inside a running event loop: bound before it starts, no signal handlers, stopped by whoever started it."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import dataclass
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from kvguard.errors import SettingsError

BACKLOG = 2048
# Longer than any client's or load balancer's pool keeps a connection, so that the client is the one to close.
KEEPALIVE_SECONDS = 75
# For answers that are open when a server stops; draining has been done before.
LAST_SECONDS = 1


class _LoopServer(uvicorn.Server):
    """A server that says when it has started and leaves signals alone."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.has_started = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.has_started.set()


@dataclass(frozen=True, slots=True)
class Serving:
    """A server that runs."""

    port: int
    _server: uvicorn.Server

    def close_idle(self) -> None:
        """Close each connection as soon as nothing runs on it. One whose first request is still to come is left: that
        request may be on its way.
        """
        for connection in list(self._server.server_state.connections):
            if isinstance(connection, HttpToolsProtocol) and connection.cycle is not None:
                connection.shutdown()


@contextlib.asynccontextmanager
async def serving(
    app: Callable[..., Any], listener: socket.socket, *, lifespan: bool = False
) -> AsyncIterator[Serving]:
    """Serve `app` while the context lasts. Leaving it ends open answers after a moment."""
    port: int = listener.getsockname()[1]
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="on" if lifespan else "off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEPALIVE_SECONDS,
        timeout_graceful_shutdown=LAST_SECONDS,
    )
    server = _LoopServer(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    started = asyncio.create_task(server.has_started.wait())
    try:
        await asyncio.wait({task, started}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            raise SettingsError([f"the server on port {port} did not start"])
        yield Serving(port, server)
    finally:
        started.cancel()
        server.should_exit = True
        await task


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes any. Raises SettingsError when the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise SettingsError(
            [f"listen: cannot bind {host}:{port}: {os.strerror(error.errno) if error.errno else error}"]
        ) from error
    listener.setblocking(False)
    # Connections inherit it. asyncio sets it only on sockets that name their protocol, which this one does not, and an
    # answer written in two parts would then wait 40 ms for the client's acknowledgement of the first.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
