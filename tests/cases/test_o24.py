"""O-24: dead keep-alive connections."""

import pytest

from tests.kit.guard import guarding
from tests.kit.stub import Call, Stub, answer_at_once, running_stub

pytestmark = pytest.mark.anyio


class CloseOnReuse:
    """Answers the first request of every connection and closes it when the next one arrives, as an idle limit may."""

    def __init__(self) -> None:
        self.closed = 0
        self._used: set[int] = set()

    async def __call__(self, call: Call) -> None:
        peer = call.writer.get_extra_info("peername")[1]
        if peer in self._used:
            self.closed += 1
            call.closing = True
            return
        self._used.add(peer)
        await answer_at_once(call)


async def hang_up(call: Call) -> None:
    """Read the request and close without a byte."""
    call.closing = True


async def test_a_connection_closed_between_two_requests_is_not_noticed() -> None:
    """Twenty requests in a row are all 200 although the backend closes every connection after its answer."""
    async with running_stub(Stub(close_after_reply=True)) as stub, guarding(stub) as guard:
        for _ in range(20):
            assert (await guard.complete([1])).status_code == 200
        assert len(stub.hits) == 20


async def test_a_connection_closed_under_a_request_is_not_noticed() -> None:
    """Twenty requests in a row are all 200 although reused connections die at the moment they are reused."""
    closing = CloseOnReuse()
    async with running_stub(Stub(answer=closing)) as stub, guarding(stub) as guard:
        for _ in range(20):
            assert (await guard.complete([1])).status_code == 200
        assert closing.closed > 0
        assert len(stub.hits) == 20 + closing.closed


async def test_a_fresh_connection_that_dies_is_not_tried_again() -> None:
    """A backend that reads the request on a fresh connection and closes gets it once; the client gets 502."""
    async with running_stub(Stub(answer=hang_up)) as stub, guarding(stub) as guard:
        answer = await guard.complete([1])
        assert answer.status_code == 502
        assert answer.json()["error"]["code"] == "backend_unreachable"
        assert len(stub.hits) == 1
        assert guard.backend.ledger.live == 0


async def test_the_second_try_is_the_last() -> None:
    """When the fresh connection dies too the client gets 502 after two attempts, not a third."""
    async with running_stub() as stub, guarding(stub) as guard:
        assert (await guard.complete([1])).status_code == 200
        stub.hits.clear()
        stub.answer = hang_up
        assert (await guard.complete([1])).status_code == 502
        assert len(stub.hits) == 2
