"""The traffic port before any route: upgrades and where they end."""

import pytest

from kvguard.protocols.routes import VLLM
from tests.kit.guard import COMPLETIONS, guarding
from tests.kit.raw import raw_client
from tests.kit.stub import Stub, exposition, running_stub

pytestmark = pytest.mark.anyio

HANDSHAKE = (
    b"GET %s HTTP/1.1\r\nHost: kvguard\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@pytest.mark.parametrize("path", ["/v1/realtime", "/", "/nowhere", "/sleep", *VLLM.generating, *VLLM.reads])
async def test_a_websocket_is_refused_on_any_path(path: str) -> None:
    """A whole handshake gets a clear answer at once, after which the connection ends; nothing reaches the backend."""
    stub = Stub(page=exposition(0.99))
    async with running_stub(stub), guarding(stub) as guard, raw_client(guard.service.port) as client:
        await client.send(HANDSHAKE % path.encode() + b"\x81\x85\x00\x00\x00\x00hello")
        answer = await client.answer()
        assert (answer.status, answer.headers["connection"]) == (501, "close")
        assert answer.body == VLLM.errors_at(path).body(
            "kvguard takes no websockets.", code="websocket_unsupported", kind="server_error"
        )
        with pytest.raises(EOFError):
            await client.head()
        assert not stub.hits
        assert not stub.tokenized
        assert guard.backend.ledger.live == 0


@pytest.mark.parametrize("headers", [{"upgrade": "websocket"}, {"connection": "close", "upgrade": "websocket"}])
async def test_a_header_alone_is_no_upgrade(headers: dict[str, str]) -> None:
    """Only both together ask for one; neither is passed on."""
    async with (
        running_stub() as stub,
        guarding(stub) as guard,
        raw_client(guard.service.port) as client,
    ):
        await client.request(COMPLETIONS, {"prompt": [1], "max_tokens": 1}, **headers)
        assert (await client.answer()).status == 200
        assert not {"upgrade", "connection"} & stub.hits[0].headers.keys()


async def test_the_next_connection_is_served() -> None:
    """A refused handshake leaves nothing behind."""
    async with running_stub() as stub, guarding(stub) as guard:
        async with raw_client(guard.service.port) as client:
            await client.send(HANDSHAKE % b"/v1/realtime")
            assert (await client.answer()).status == 501
        assert (await guard.complete([1], max_tokens=1)).status_code == 200
