"""O-33: live, ready and overloaded are three things."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from kvguard.lifecycle import FIRST_REMINDER_SECONDS, REMINDER_SECONDS
from tests.kit.guard import COMPLETIONS, Guard, guarding
from tests.kit.raw import raw_client
from tests.kit.stub import Stub, exposition, hold_stream, refusing_stub, running_stub

pytestmark = pytest.mark.anyio

PROBE_SECONDS = 0.2


async def probes(guard: Guard) -> tuple[int, int]:
    """What liveness and readiness say."""
    return (await guard.admin.get("/healthz")).status_code, (await guard.admin.get("/readyz")).status_code


async def test_a_full_backend_is_neither_death_nor_unreadiness() -> None:
    """At 0.99 both probes say yes while every request is refused."""
    async with running_stub(Stub(page=exposition(0.99))) as stub, guarding(stub) as guard:
        assert await probes(guard) == (200, 200)
        assert (await guard.complete()).status_code == 503
        assert await probes(guard) == (200, 200)


@contextlib.asynccontextmanager
async def losing(**listen: object) -> AsyncIterator[Guard]:
    """A guard whose backend was there and is gone."""
    async with contextlib.AsyncExitStack() as stack:
        async with running_stub() as stub:
            guard = await stack.enter_async_context(guarding(stub, listen=listen))
            assert await probes(guard) == (200, 200)
            stub.close_after_reply = True
            await guard.scrape()
        for _ in range(5):
            await guard.advance(1.0)
            await guard.scrape()
        assert guard.telemetry() == "unreachable"
        yield guard


async def test_without_a_backend_it_is_alive_and_says_why_it_is_not_ready() -> None:
    """The probe, the log and the metric agree; nothing restarts a process for what it cannot help."""
    async with losing() as guard:
        assert await probes(guard) == (200, 503)
        state = (await guard.admin.get("/readyz")).json()
        assert state["status"] == "no usable backend"
        assert state["why"] == ["b0: cannot be reached (ConnectError)"]
        assert guard.metric("kvguard_ready") == 0
        line = next(line for line in guard.logs if line["event"] == "not_ready")
        assert (line["level"], line["why"]) == ("warning", state["why"])


async def test_readiness_without_a_backend_is_the_operators_to_say() -> None:
    """With `ready_without_backend` it stays ready and answers by itself, still telling what is wrong."""
    async with losing(ready_without_backend=True) as guard:
        assert await probes(guard) == (200, 200)
        assert (await guard.admin.get("/readyz")).json()["why"] == ["b0: cannot be reached (ConnectError)"]
        assert (await guard.complete()).status_code == 502


@pytest.mark.parametrize("anyway", [False, True])
async def test_it_is_not_ready_before_the_first_good_look_and_keeps_saying_why(anyway: bool) -> None:
    """After ten seconds, and then once a minute; `ready_without_backend` is about backends that were there once."""
    with refusing_stub() as stub:
        async with guarding(stub, listen={"ready_without_backend": anyway}) as guard:
            assert await probes(guard) == (200, 503)
            assert (await guard.admin.get("/readyz")).json()["status"] == "starting"
            assert guard.metric("kvguard_phase", phase="starting") == 1

            def said() -> list[float]:
                return [line["seconds"] for line in guard.logs if line["event"] == "not_ready"]

            assert said() == []
            await guard.advance(FIRST_REMINDER_SECONDS)
            assert said() == [FIRST_REMINDER_SECONDS]
            await guard.advance(REMINDER_SECONDS)
            assert said() == [FIRST_REMINDER_SECONDS, FIRST_REMINDER_SECONDS + REMINDER_SECONDS]
            assert guard.logs[-1]["why"] == ["b0: cannot be reached (ConnectError)"]


async def test_a_page_without_a_capacity_is_told_apart_from_no_page() -> None:
    """What has to be set, or to be repaired, is in the reason; a good page then makes it ready."""
    async with running_stub(Stub(page=exposition(0.1, blocks=None))) as stub, guarding(stub) as guard:
        state = (await guard.admin.get("/readyz")).json()
        assert (state["status"], state["backends"]) == ("starting", {"b0": "fresh"})
        assert state["why"] == [
            "b0: answers, but the size of its KV cache is neither on its /metrics nor in the settings"
        ]
        stub.page = exposition(0.1)
        await guard.advance(0.5)
        await guard.until(lambda: guard.metric("kvguard_ready") == 1)
        assert await probes(guard) == (200, 200)
        assert [line["event"] for line in guard.logs if "ready" in line["event"]] == ["ready"]


async def test_a_backend_that_is_drained_by_hand_is_no_usable_one() -> None:
    """Its name and what it is in for are told."""
    async with running_stub() as stub, guarding(stub) as guard:
        await guard.admin.post("/backends/b0/drain")
        assert (await guard.admin.get("/readyz")).json()["why"] == ["b0: takes no new requests (drained)"]


async def test_probes_answer_at_once_while_two_hundred_streams_run() -> None:
    """The best of ten looks at each takes less than a probe would wait by far."""
    async with (
        running_stub(Stub(page=exposition(0.1, blocks=10_000), answer=hold_stream)) as stub,
        guarding(stub) as guard,
        contextlib.AsyncExitStack() as stack,
    ):
        for _ in range(200):
            client = await stack.enter_async_context(raw_client(guard.service.port))
            await client.request(COMPLETIONS, {"model": "tiny", "prompt": [1], "max_tokens": 8, "stream": True})
        await guard.until(lambda: guard.backend.ledger.live == 200)
        loop = asyncio.get_running_loop()
        took = []
        for _ in range(10):
            began = loop.time()
            assert await probes(guard) == (200, 200)
            took.append(loop.time() - began)
        assert min(took) < PROBE_SECONDS
