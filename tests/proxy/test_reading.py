"""Small bodies are read at once; large ones hold nobody up."""

import asyncio
import threading
from dataclasses import replace

import pytest

from kvguard.errors import InvalidRequest
from kvguard.protocols.openai_completions import ROUTE
from kvguard.protocols.request import InferenceRequest
from kvguard.proxy.reading import AT_ONCE_BYTES, BodyReader

pytestmark = pytest.mark.anyio

FRAME = b'{"prompt":""}'


def body(size: int) -> bytes:
    return b'{"prompt":"%s"}' % (b"a" * (size - len(FRAME)))


@pytest.mark.parametrize(("size", "apart"), [(100, False), (AT_ONCE_BYTES, False), (AT_ONCE_BYTES + 1, True)])
async def test_only_large_bodies_are_read_in_a_thread(size: int, apart: bool) -> None:
    """A thread would cost a small one more than it takes to read."""
    threads: list[int] = []

    def parse(given: bytes) -> InferenceRequest:
        threads.append(threading.get_ident())
        return ROUTE.parse(given)

    request = await BodyReader().read(replace(ROUTE, parse=parse), body(size))
    assert len(request.body) == size
    assert (threads != [threading.get_ident()]) is apart


async def test_others_are_served_while_a_large_body_is_read() -> None:
    """The one being read waits for something that only happens on the loop; the next one waits for its turn."""
    served, reading, most = threading.Event(), [0], [0]

    def parse(given: bytes) -> InferenceRequest:
        reading[0] += 1
        most[0] = max(most[0], reading[0])
        assert served.wait(10)
        reading[0] -= 1
        return ROUTE.parse(given)

    reader, route = BodyReader(), replace(ROUTE, parse=parse)
    tasks = [asyncio.ensure_future(reader.read(route, body(AT_ONCE_BYTES + 1))) for _ in range(3)]
    asyncio.get_running_loop().call_soon(served.set)
    assert len(await asyncio.gather(*tasks)) == 3
    assert most == [1]


@pytest.mark.parametrize("size", [1, AT_ONCE_BYTES + 1])
async def test_what_is_wrong_with_a_body_is_said_either_way(size: int) -> None:
    """And the next one is read."""
    reader = BodyReader()
    with pytest.raises(InvalidRequest):
        await reader.read(ROUTE, b"[" * size)
    assert await reader.read(ROUTE, body(AT_ONCE_BYTES + 1))


async def test_who_leaves_while_waiting_gives_up_the_turn() -> None:
    """What it sent is not read any more, and the next one is."""
    go, seen = threading.Event(), []

    def parse(given: bytes) -> InferenceRequest:
        assert go.wait(10)
        seen.append(len(given))
        return ROUTE.parse(given)

    reader, route = BodyReader(), replace(ROUTE, parse=parse)
    first, gone, last = (asyncio.ensure_future(reader.read(route, body(AT_ONCE_BYTES + more))) for more in (1, 2, 3))
    asyncio.get_running_loop().call_soon(gone.cancel)
    asyncio.get_running_loop().call_soon(go.set)
    await asyncio.gather(first, last)
    assert gone.cancelled()
    assert seen == [AT_ONCE_BYTES + 1, AT_ONCE_BYTES + 3]
