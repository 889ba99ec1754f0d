"""A name server of the tests' own, on loopback over UDP and TCP: it answers from a table the test changes, or fails.

`async with running_dns_server() as names:` starts one; `names.table["vllm.test"] = ["127.0.0.2"]` adds a name, and
`discovery.nameservers: [names.address]` makes kvguard ask it.
"""

import asyncio
import contextlib
import enum
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from ipaddress import ip_address

import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

TTL_SECONDS = 5
MAX_BYTES = {"udp": 512, "tcp": 65535}
MOST_PORTS_TRIED = 20


class Failure(enum.Enum):
    """What a name server does in place of an answer."""

    SERVFAIL = enum.auto()
    SILENCE = enum.auto()


@dataclass(frozen=True)
class Query:
    """One question as it came."""

    transport: str
    name: str
    type: str


@dataclass
class DnsServer:
    """Answers with the addresses `table` has for a name, written in full without the last dot.

    A name that is not there does not exist; one with none of the kind asked for exists without. Answers that do not fit
    a datagram are cut short over UDP and say so.
    """

    table: dict[str, list[str]] = field(default_factory=dict)
    failure: Failure | None = None
    queries: list[Query] = field(default_factory=list)
    port: int = 0
    _connections: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def address(self) -> str:
        """Where it is, as in the settings."""
        return f"127.0.0.1:{self.port}"

    def answer(self, wire: bytes, transport: str) -> bytes | None:
        """The answer to a question; None is silence."""
        asked = dns.message.from_wire(wire)
        (question,) = asked.question
        name, kind = question.name.to_text(omit_final_dot=True).lower(), question.rdtype
        self.queries.append(Query(transport, name, dns.rdatatype.to_text(kind)))
        if self.failure is Failure.SILENCE:
            return None
        answer = dns.message.make_response(asked)
        if self.failure is Failure.SERVFAIL:
            answer.set_rcode(dns.rcode.SERVFAIL)
        elif name not in self.table:
            answer.set_rcode(dns.rcode.NXDOMAIN)
        elif found := [text for text in self.table[name] if _kind(text) == kind]:
            answer.answer.append(dns.rrset.from_text_list(question.name, TTL_SECONDS, "IN", kind, found))
        return answer.to_wire(max_size=MAX_BYTES[transport], prefer_truncation=True)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, with as many questions as the client likes."""
        task = asyncio.current_task()
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                size = int.from_bytes(await reader.readexactly(2))
                answer = self.answer(await reader.readexactly(size), "tcp")
                if answer is not None:
                    writer.write(len(answer).to_bytes(2) + answer)

    async def hang_up(self) -> None:
        """End the connections whose clients have not left by themselves."""
        for each in self._connections:
            each.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)


def _kind(address: str) -> dns.rdatatype.RdataType:
    return dns.rdatatype.A if ip_address(address).version == 4 else dns.rdatatype.AAAA


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, server: DnsServer) -> None:
        self._server = server

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, sender: tuple[str, int]) -> None:
        answer = self._server.answer(data, "udp")
        if answer is not None:
            self._transport.sendto(answer, sender)


def _sockets() -> tuple[socket.socket, socket.socket]:
    """A TCP and a UDP socket on one port, which may be taken for the second when it is free for the first."""
    for _ in range(MOST_PORTS_TRIED):
        stream, datagrams = socket.socket(), socket.socket(type=socket.SOCK_DGRAM)
        stream.bind(("127.0.0.1", 0))
        with contextlib.suppress(OSError):
            datagrams.bind(stream.getsockname())
            return stream, datagrams
        stream.close()
        datagrams.close()
    raise OSError("no port is free for both TCP and UDP")


@contextlib.asynccontextmanager
async def running_dns_server(server: DnsServer | None = None) -> AsyncIterator[DnsServer]:
    """A name server listening on a port of its own."""
    server = server or DnsServer()
    stream, datagrams = _sockets()
    server.port = stream.getsockname()[1]
    listener = await asyncio.start_server(server.serve, sock=stream)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(server), sock=datagrams)
    try:
        yield server
    finally:
        transport.close()
        listener.close()
        await server.hang_up()
        await listener.wait_closed()
