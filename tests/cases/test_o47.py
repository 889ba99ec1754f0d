"""O-47: huge bodies."""

import json

import pytest

from tests.kit.guard import COMPLETIONS, guarding
from tests.kit.raw import RawAnswer, RawClient, raw_client, request_head
from tests.kit.stub import running_stub

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024
LIMIT = {"max_body_bytes": MIB}
ROUTES = (COMPLETIONS, "/tokenize")


def body_of(size: int) -> bytes:
    """A valid request of exactly `size` bytes."""
    bare = json.dumps({"model": "tiny", "prompt": [1], "max_tokens": 1, "padding": ""}).encode()
    return bare[:-2] + b"x" * (size - len(bare)) + bare[-2:]


async def send_chunks(client: RawClient, route: str, body: bytes) -> None:
    """Send a chunked body without its end."""
    await client.send(request_head(route, transfer_encoding="chunked"))
    for start in range(0, len(body), 64 * 1024):
        part = body[start : start + 64 * 1024]
        await client.send(f"{len(part):x}\r\n".encode() + part + b"\r\n")


def assert_too_large(answer: RawAnswer) -> None:
    assert answer.status == 413
    assert answer.headers["content-type"] == "application/json"
    assert answer.json["error"]["code"] == "body_too_large"
    assert answer.json["error"]["type"] == "invalid_request_error"
    assert "retry-after" not in answer.headers


async def test_a_declared_length_is_refused_unread() -> None:
    """A Content-Length of 2 MiB is 413 before any of the body is sent."""
    async with running_stub() as stub, guarding(stub, limits=LIMIT) as guard:
        for route in ROUTES:
            async with raw_client(guard.service.port) as client:
                await client.send(request_head(route, content_length=str(2 * MIB)))
                assert_too_large(await client.answer())
    assert not stub.hits
    assert not stub.tokenized


async def test_a_chunked_body_is_refused_at_the_limit() -> None:
    """A chunked body is 413 one byte after 1 MiB, while the client still has more to send."""
    async with running_stub() as stub, guarding(stub, limits=LIMIT) as guard:
        for route in ROUTES:
            async with raw_client(guard.service.port) as client:
                await send_chunks(client, route, b"x" * (MIB + 1))
                assert_too_large(await client.answer())
    assert not stub.hits
    assert not stub.tokenized


async def test_a_chunked_body_sent_whole_is_refused_cleanly() -> None:
    """A client that sends its 2 MiB in chunks to the end can read the 413 and use its connection again."""
    async with (
        running_stub() as stub,
        guarding(stub, limits=LIMIT) as guard,
        raw_client(guard.service.port) as client,
    ):
        await send_chunks(client, COMPLETIONS, body_of(2 * MIB))
        await client.send(b"0\r\n\r\n")
        assert_too_large(await client.answer())
        await client.request(COMPLETIONS, {"prompt": [1]})
        assert (await client.answer()).status == 200
    assert len(stub.hits) == 1


async def test_a_body_of_exactly_the_limit_passes_and_one_byte_more_does_not() -> None:
    """1 MiB exactly reaches the backend byte for byte, with a length or in chunks; 1 MiB and one byte is 413."""
    body = body_of(MIB)
    async with (
        running_stub() as stub,
        guarding(stub, limits=LIMIT) as guard,
        raw_client(guard.service.port) as client,
    ):
        await client.request(COMPLETIONS, body)
        assert (await client.answer()).status == 200
        await send_chunks(client, COMPLETIONS, body)
        await client.send(b"0\r\n\r\n")
        assert (await client.answer()).status == 200
        await client.request(COMPLETIONS, body_of(MIB + 1))
        assert_too_large(await client.answer())
        assert [hit.body for hit in stub.hits] == [body, body]
