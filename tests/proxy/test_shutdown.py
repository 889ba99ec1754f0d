"""The end of a process, step by step: what clients, load balancers and operators see of it, time standing still."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kvguard.lifecycle import Farewell
from tests.kit.dialects import DIALECTS, Dialect
from tests.kit.guard import COMPLETIONS, Guard, guarding
from tests.kit.raw import RawClient, raw_client, request_head
from tests.kit.stub import Call, Stub, answer_at_once, hold, hold_until, running_stub

pytestmark = pytest.mark.anyio

FAREWELL = Farewell(prestop_seconds=5.0, drain_seconds=30.0)
REFUSED_AT_ONCE = Farewell(prestop_seconds=0.0, drain_seconds=30.0)
SHORT = {"model": "tiny", "prompt": [1], "max_tokens": 1}


class Leaving:
    """A guard on its way out."""

    def __init__(self, guard: Guard, farewell: Farewell) -> None:
        self.guard = guard
        self.hurry = asyncio.Event()
        self.task = asyncio.ensure_future(guard.service.lifecycle.leave(farewell, self.hurry))

    async def pass_time(self, seconds: float) -> None:
        await self.guard.advance(seconds)
        await self.guard.scrape()


@contextlib.asynccontextmanager
async def leaving(guard: Guard, farewell: Farewell) -> AsyncIterator[Leaving]:
    """Send it off; it has left when this ends."""
    left = Leaving(guard, farewell)
    await guard.clock.settle()
    yield left
    async with asyncio.timeout(20):
        await left.task
    await guard.until(lambda: guard.backend.ledger.live == 0)


async def readyz(guard: Guard) -> tuple[int, str]:
    answer = await guard.admin.get("/readyz")
    return answer.status_code, answer.json()["status"]


def phases(guard: Guard) -> dict[str, float | None]:
    names = ("starting", "serving", "stopping", "draining")
    return {name: value for name in names if (value := guard.metric("kvguard_phase", phase=name))}


def steps(guard: Guard) -> list[str]:
    """What the log tells of the process."""
    told = {"started", "ready", "not_ready", "stopping", "draining", "drained", "stopped"}
    return [line["event"] for line in guard.logs if line["event"] in told]


def told(guard: Guard, event: str) -> dict:
    (line,) = (line for line in guard.logs if line["event"] == event)
    return line


def ends(guard: Guard, end: str, route: str = COMPLETIONS) -> float | None:
    return guard.metric("kvguard_exchanges_total", route=route, end=end)


async def ask(client: RawClient, **fields: object) -> None:
    await client.request(COMPLETIONS, SHORT | fields)


async def test_every_step_is_seen_on_the_probes_the_metrics_and_in_the_log() -> None:
    """Alive to the end; ready only before it; each step is told once, with what hangs on it."""
    released = asyncio.Event()
    async with running_stub(Stub(answer=hold_until(released))) as stub, guarding(stub) as guard:
        assert (await readyz(guard), phases(guard)) == ((200, "ready"), {"serving": 1.0})
        assert guard.metric("kvguard_ready") == 1
        running = asyncio.ensure_future(guard.complete())
        await guard.until(lambda: guard.backend.ledger.live == 1)
        async with leaving(guard, FAREWELL) as left:
            assert (await readyz(guard), phases(guard)) == ((503, "stopping"), {"stopping": 1.0})
            assert guard.metric("kvguard_ready") == 0
            await left.pass_time(5)
            assert (await readyz(guard), phases(guard)) == ((503, "draining"), {"draining": 1.0})
            assert (await guard.admin.get("/healthz")).status_code == 200
            await left.pass_time(7)
            released.set()
        assert (await running).status_code == 200
        assert steps(guard) == ["started", "ready", "stopping", "draining", "drained"]
        assert (told(guard, "stopping")["in_flight"], told(guard, "stopping")["seconds"]) == (1, 5.0)
        assert (told(guard, "draining")["in_flight"], told(guard, "draining")["seconds"]) == (1, 30.0)
        drained = told(guard, "drained")
        assert (drained["level"], drained["cut"], drained["seconds"]) == ("info", 0, 7.0)
    assert told(guard, "stopped")["reservations"] == 0


async def test_until_it_is_taken_out_it_serves_and_asks_for_other_connections() -> None:
    """Before the drain new requests are admitted as ever, on old connections and new ones, which then end."""
    async with running_stub() as stub, guarding(stub) as guard, raw_client(guard.service.port) as old:
        await ask(old)
        assert "connection" not in (await old.answer()).headers
        async with leaving(guard, FAREWELL) as left:
            async with raw_client(guard.service.port) as new:
                for client in (old, new):
                    await ask(client)
                    answer = await client.answer()
                    assert (answer.status, answer.headers["connection"]) == (200, "close")
                    with pytest.raises(EOFError):
                        await client.head()
            await left.pass_time(5)


async def test_what_is_new_is_refused_on_a_connection_that_then_ends() -> None:
    """503 draining in the API's own shape with Retry-After; what backends list is still told."""
    async with running_stub(Stub(answer=hold)) as stub, guarding(stub) as guard:
        running = asyncio.ensure_future(guard.complete())
        await guard.until(lambda: guard.backend.ledger.live == 1)
        async with leaving(guard, REFUSED_AT_ONCE) as left:
            refused = await guard.complete()
            assert (refused.status_code, refused.headers["connection"]) == (503, "close")
            assert refused.headers["x-kvguard-reason"] == refused.json()["error"]["code"] == "draining"
            assert int(refused.headers["retry-after"]) >= 1
            assert (await guard.client.get("/v1/models")).status_code == 200
            left.hurry.set()
        assert (await running).status_code == 503
        assert len(stub.hits) == 1


async def test_idle_connections_end_with_the_drain_and_fresh_ones_get_an_answer() -> None:
    """A connection that has carried a request is closed; the first request of another is still on its way."""
    async with (
        running_stub(Stub(answer=answer_at_once)) as stub,
        guarding(stub) as guard,
        raw_client(guard.service.port) as idle,
        raw_client(guard.service.port) as busy,
    ):
        await ask(idle)
        assert (await idle.answer()).status == 200
        stub.answer = hold
        await ask(busy)
        await guard.until(lambda: guard.backend.ledger.live == 1)
        async with raw_client(guard.service.port) as fresh, leaving(guard, REFUSED_AT_ONCE) as left:
            with pytest.raises(EOFError):
                await idle.head()
            await ask(fresh)
            assert (await fresh.answer()).status == 503
            left.hurry.set()
        assert (await busy.answer()).status == 503


async def test_a_refusal_reaches_a_client_that_still_sends() -> None:
    """The whole body is taken in before the connection is closed, which would destroy the answer on its way."""
    body = json.dumps(SHORT | {"prompt": [1] * 200_000}).encode()
    head = request_head(COMPLETIONS, content_length=str(len(body)))
    async with running_stub(Stub(answer=hold)) as stub, guarding(stub) as guard, raw_client(guard.service.port) as slow:
        running = asyncio.ensure_future(guard.complete())
        await guard.until(lambda: guard.backend.ledger.live == 1)
        async with leaving(guard, REFUSED_AT_ONCE) as left:
            await slow.send(head + body[:10])
            await guard.clock.settle()
            await slow.send(body[10:])
            assert (await slow.answer()).status == 503
            left.hurry.set()
        await running


async def test_what_waits_for_blocks_is_refused_with_the_drain() -> None:
    """Nobody in line is left to wait for room that will never be theirs, while what runs may end."""
    large, released = {"prompt": [1] * 960, "max_tokens": 16}, asyncio.Event()
    async with (
        running_stub(Stub(answer=hold_until(released), tokens=960)) as stub,
        guarding(stub, waiting={"max_requests": 2, "max_seconds": 50}) as guard,
    ):
        running = asyncio.ensure_future(guard.complete(**large))
        await guard.until(lambda: guard.backend.ledger.live == 1)
        waiting = asyncio.ensure_future(guard.complete(**large))
        await guard.until(lambda: guard.metric("kvguard_waiting_requests") == 1)
        async with leaving(guard, FAREWELL) as left:
            assert guard.metric("kvguard_waiting_requests") == 1
            await left.pass_time(5)
            refused = await waiting
            assert (refused.status_code, refused.headers["x-kvguard-reason"]) == (503, "draining")
            released.set()
        assert (await running).status_code == 200


@pytest.mark.parametrize("dialect", DIALECTS, ids=str)
async def test_a_stream_that_outlasts_the_drain_ends_with_an_error_event(dialect: Dialect) -> None:
    """The event has the API's own shape, nothing says that the answer is whole, and the body ends properly."""

    async def begin(call: Call) -> None:
        await call.start_stream()
        await call.chunk(dialect.opening + dialect.token)
        await hold(call)

    async with (
        running_stub(Stub(answer=begin)) as stub,
        guarding(stub) as guard,
        raw_client(guard.service.port) as client,
    ):
        await client.request(dialect.route, dialect.body(stream=True))
        assert (await client.head()).status == 200
        body = await client.chunk()
        async with leaving(guard, REFUSED_AT_ONCE) as left:
            await left.pass_time(29)
            assert guard.backend.ledger.live == 1
            await left.pass_time(1)
            while part := await client.chunk():
                body += part
        begun = dialect.opening + dialect.token
        assert body.startswith(begun)
        events = [event for event in body[len(begun) :].split(b"\n\n") if event]
        assert len(events) == 1
        (data,) = (line for line in events[0].split(b"\n") if line.startswith(b"data: "))
        error = json.loads(data[len(b"data: ") :])["error"]
        assert (error["code"], error["type"]) == ("draining", "overloaded_error")
        assert (b"event: error" in events[0]) == (b"event: " in dialect.ending or dialect.route == "/v1/messages")
        assert ends(guard, "cut", dialect.route) == 1
        drained = told(guard, "drained")
        assert (drained["level"], drained["cut"], drained["seconds"]) == ("warning", 1, 30.0)
        assert guard.metric("kvguard_backend_ejections_total", backend="b0") == 0


@pytest.mark.parametrize("dialect", DIALECTS, ids=str)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_has_not_begun_becomes_a_refusal(dialect: Dialect, stream: bool) -> None:
    """503 draining in the API's own shape, in place of a bare 500."""
    async with running_stub(Stub(answer=hold)) as stub, guarding(stub) as guard:
        asking = asyncio.ensure_future(guard.client.post(dialect.route, json=dialect.body(stream=stream)))
        await guard.until(lambda: guard.backend.ledger.live == 1)
        async with leaving(guard, REFUSED_AT_ONCE) as left:
            left.hurry.set()
        refused = await asking
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert int(refused.headers["retry-after"]) >= 1
        assert ends(guard, "cut", dialect.route) == 1
        labels = {"outcome": "failed", "reason": "draining", "tier": "0", "mode": "enforce"}
        assert guard.metric("kvguard_requests_total", route=dialect.route, **labels) == 1


TGI_INFO = {"version": "3.3.7", "model_id": "tiny", "max_input_tokens": 1024, "max_total_tokens": 2048}


@pytest.mark.parametrize("begun", [False, True])
async def test_tgi_says_it_in_its_own_words(begun: bool) -> None:
    """An error event in a stream that has begun, a refusal for one whose first event has not come."""

    async def answer(call: Call) -> None:
        await call.start_stream()
        if begun:
            await call.event({"token": {"id": 1, "text": "x", "logprob": 0, "special": False}, "index": 1})
        await hold(call)

    async with (
        running_stub(Stub(answer=answer, info=TGI_INFO)) as stub,
        guarding(stub, backend={"tgi": {"max_batch_total_tokens": 4096}}) as guard,
    ):
        body = {"inputs": "hi", "parameters": {"max_new_tokens": 8}}
        asking = asyncio.ensure_future(guard.client.post("/generate_stream", json=body))
        await stub.until(lambda: bool(stub.hits))
        if begun:
            await guard.until(lambda: guard.service.controller.backends[0].ledger.prefill_tokens == 0)
        async with leaving(guard, REFUSED_AT_ONCE) as left:
            left.hurry.set()
        answered = await asking
        last = answered.text.split("\n\n")[-2].removeprefix("data: ") if begun else answered.text
        assert answered.status_code == (200 if begun else 503)
        assert json.loads(last)["error_type"] == "overloaded"


async def test_a_whole_answer_that_has_begun_ends_with_its_connection() -> None:
    """A client can tell it from a whole one: the promised length never comes."""

    async def answer(call: Call) -> None:
        await call.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{")
        await hold(call)

    async with (
        running_stub(Stub(answer=answer)) as stub,
        guarding(stub) as guard,
        raw_client(guard.service.port) as client,
    ):
        await ask(client)
        assert (await client.head()).status == 200
        async with leaving(guard, REFUSED_AT_ONCE) as left:
            left.hurry.set()
        assert await client.rest() == b"{"
        assert ends(guard, "cut") == 1


async def test_a_request_that_is_still_being_sent_is_refused_at_the_end() -> None:
    """It was there before the drain, so it had its time; nothing was ever reserved for it."""
    head = request_head(COMPLETIONS, content_length="100")
    async with running_stub() as stub, guarding(stub) as guard, raw_client(guard.service.port) as slow:
        await slow.send(head + b"{")
        await guard.until(lambda: len(guard.service.lifecycle.exchanges) == 1)
        async with leaving(guard, REFUSED_AT_ONCE) as left:
            await left.pass_time(30)
            await slow.send(b" " * 99)
            answer = await slow.answer()
        assert (answer.status, answer.json["error"]["code"]) == (503, "draining")
        assert told(guard, "drained")["cut"] == 1


async def test_a_client_that_reads_nothing_holds_nobody_up() -> None:
    """What cannot be told any more is not waited for; the reservation ends all the same."""
    flood = {"choices": [{"index": 0, "text": "x" * 60_000, "finish_reason": None}]}

    async def answer(call: Call) -> None:
        await call.start_stream()
        for _ in range(1000):
            await call.event(flood)

    async with running_stub(Stub(answer=answer)) as stub:
        async with guarding(stub) as guard, raw_client(guard.service.port) as client:
            await ask(client, stream=True, max_tokens=2000)
            assert (await client.head()).status == 200
            await guard.until(lambda: guard.backend.ledger.live == 1)
            left = Leaving(guard, REFUSED_AT_ONCE)
            left.hurry.set()
            await left.task
        assert told(guard, "stopped")["reservations"] == 0


@pytest.mark.parametrize("phase", ["stopping", "draining"])
async def test_a_second_signal_hurries(phase: str) -> None:
    """Whatever was being waited for, the rest is cut off at once and in order."""
    async with running_stub(Stub(answer=hold)) as stub, guarding(stub) as guard:
        running = asyncio.ensure_future(guard.complete())
        await guard.until(lambda: guard.backend.ledger.live == 1)
        async with leaving(guard, FAREWELL) as left:
            if phase == "draining":
                await left.pass_time(5)
            assert (await readyz(guard))[1] == phase
            left.hurry.set()
        assert (await running).headers["x-kvguard-reason"] == "draining"
        assert steps(guard)[-3:] == ["stopping", "draining", "drained"]


async def test_settings_can_change_to_the_end(tmp_path: Path) -> None:
    """A reload while it stops or drains is taken over or refused as ever, and takes nothing back of the end."""
    file = tmp_path / "kvguard.yaml"
    file.write_text("limits: {max_body_bytes: 1000}\n")
    async with running_stub(Stub(answer=hold)) as stub, guarding(stub, file=file) as guard:
        running = asyncio.ensure_future(guard.complete())
        await guard.until(lambda: guard.backend.ledger.live == 1)
        async with leaving(guard, FAREWELL) as left:
            for number, phase in enumerate(("stopping", "draining"), 1):
                file.write_text(f"limits: {{max_body_bytes: {number}}}\n")
                guard.service.reloader.hurry()
                await guard.until(lambda n=number: [x["event"] for x in guard.logs].count("reload") == n)
                assert (await readyz(guard))[1] == phase
                await left.pass_time(5)
            assert (await guard.complete()).json()["error"]["code"] == "draining"
            file.write_text("limits: [\n")
            guard.service.reloader.hurry()
            await guard.until(lambda: any(x["event"] == "reload_failed" for x in guard.logs))
            left.hurry.set()
        await running


async def test_leaving_the_context_ends_what_is_open_in_the_same_way() -> None:
    """Also without a signal, as when something else has failed: a refusal, and no reservation left."""
    async with running_stub(Stub(answer=hold)) as stub, contextlib.AsyncExitStack() as stack:
        async with guarding(stub) as guard:
            client = await stack.enter_async_context(raw_client(guard.service.port))
            await ask(client)
            await guard.until(lambda: guard.backend.ledger.live == 1)
        answer = await client.answer()
        assert (answer.status, answer.json["error"]["code"]) == (503, "draining")
        assert told(guard, "stopped")["reservations"] == 0
