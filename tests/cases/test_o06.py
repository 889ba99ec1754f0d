"""O-06: scraping must not hang or slow the request path."""

import asyncio
import socket

import pytest

from kvguard.clock import ManualClock
from kvguard.server import bind
from tests.kit.guard import guarding
from tests.kit.stub import Behaviour, Call, Stub, exposition, hold, running_stub

pytestmark = pytest.mark.anyio


async def test_requests_do_not_wait_for_a_scrape() -> None:
    """Twenty requests are answered while one scrape hangs, and no second scrape joins it however long it does."""
    async with running_stub() as stub, guarding(stub, telemetry={"timeout_seconds": 30}) as guard:
        stub.scrape = hold
        await guard.advance(0.5)
        await stub.until(lambda: stub.scraping == 1)
        for _ in range(8):
            await guard.advance(0.5)
        answers = await asyncio.gather(*(guard.complete([1] * 16, max_tokens=16) for _ in range(20)))
        assert [answer.status_code for answer in answers] == [200] * 20
        assert stub.scraping == 1
        assert stub.scrapes == 2
        assert guard.metric("kvguard_scrape_failures_total", backend="b0") == 0


async def drip(call: Call) -> None:
    """Answer with a page that never ends, a little at every turn of the event loop."""
    await call.start_stream()
    while True:
        await call.chunk(b"# HELP\n")
        await ManualClock().settle()


@pytest.mark.parametrize("scrape", [hold, drip])
async def test_a_scrape_without_an_end_is_given_up_and_counted(scrape: Behaviour) -> None:
    """A scrape that outlasts its deadline is a failure, and only then does the next begin; requests are served."""
    sized = {"capacity_blocks": 100, "block_size": 16}
    async with (
        running_stub(Stub(page=exposition(0.0), scrape=scrape)) as stub,
        guarding(stub, backend=sized, telemetry={"timeout_seconds": 0.05}) as guard,
    ):
        for failures in range(1, 4):
            await guard.until(lambda n=failures: guard.metric("kvguard_scrape_failures_total", backend="b0") == n)
            await stub.until(lambda n=failures: stub.left == n and stub.scraping == 0)
            assert (await guard.complete([1] * 16)).status_code == 200
            await guard.advance(0.5)
            await stub.until(lambda n=failures: stub.scrapes == n + 1)
        assert stub.most_scraping == 1


def test_small_writes_leave_at_once() -> None:
    """No connection waits for the client's acknowledgement, which would add 40 ms to every answer but the first."""
    with bind("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        listener.setblocking(True)
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
