"""O-34: the backend answers health but no longer works."""

import asyncio

import httpx
import pytest

from tests.kit.guard import Guard, guarding
from tests.kit.stub import Stub, answer_at_once, exposition, hold, hold_stream, running_stub, working_page

pytestmark = pytest.mark.anyio

SIGNALS = {"stall_seconds": 5, "probe_seconds": 10}


def condition(guard: Guard) -> str:
    """The one condition of the backend that is 1, as exported."""
    states = ("unknown", "idle", "working", "stalled", "sleeping", "contradiction")
    (current,) = [state for state in states if guard.metric("kvguard_engine_condition", backend="b0", state=state) == 1]
    return current


async def pass_time(guard: Guard, seconds: float) -> None:
    """Time goes by, with a scrape every second."""
    for _ in range(int(seconds)):
        await guard.advance(1.0)
        await guard.scrape()


def refused_as_stalled(guard: Guard, answer: httpx.Response) -> bool:
    """Whether it is a stall's refusal; then status, body, headers and log agree."""
    if answer.status_code != 503:
        return False
    assert answer.headers["x-kvguard-reason"] == answer.json()["error"]["code"] == "backend_stalled"
    assert answer.json()["error"]["type"] == "overloaded_error"
    assert 5 <= float(answer.headers["retry-after-ms"]) / 1000 <= 7.5
    assert guard.logs[-1]["reason"] == "backend_stalled"
    return True


async def test_work_without_tokens_is_a_stall_until_a_token_comes() -> None:
    """Limit 5 s: three requests run and no counter moves for 6 s, so a new one is refused; one token, and it passes."""
    async with running_stub(Stub(page=working_page(running=3))) as stub, guarding(stub, signals=SIGNALS) as guard:
        await pass_time(guard, 4)
        assert condition(guard) == "working"
        assert (await guard.complete([1] * 16)).status_code == 200
        await pass_time(guard, 2)
        assert condition(guard) == "stalled"
        hits = len(stub.hits)
        assert refused_as_stalled(guard, await guard.complete([1] * 16))
        assert len(stub.hits) == hits
        said = [line for line in guard.logs if line["event"] == "condition"]
        assert [(line["level"], line["after"]) for line in said] == [("warning", "stalled")]
        stub.page = working_page(running=3, tokens=1)
        await guard.scrape()
        assert condition(guard) == "working"
        assert (await guard.complete([1] * 16)).status_code == 200


async def test_an_idle_engine_never_stalls() -> None:
    """Nothing runs and the counters stand still for a minute, whatever kvguard itself refuses meanwhile."""
    async with running_stub(Stub(page=working_page(0.0))) as stub, guarding(stub, signals=SIGNALS) as guard:
        for _ in range(12):
            await pass_time(guard, 5)
            assert condition(guard) == "idle"
            assert (await guard.complete([1] * 16 * 101)).status_code == 400
        assert (await guard.complete([1] * 16)).status_code == 200


async def test_an_engine_that_does_not_count_tokens_is_never_called_stalled() -> None:
    """An old release, or another engine: the condition is unknown and everything passes."""
    async with (
        running_stub(Stub(page=exposition(0.5, num_requests_running=3))) as stub,
        guarding(stub, signals=SIGNALS) as guard,
    ):
        await pass_time(guard, 60)
        assert condition(guard) == "unknown"
        assert (await guard.complete([1] * 16)).status_code == 200


async def test_a_queue_nobody_takes_from_is_a_stall() -> None:
    """Requests wait, none runs."""
    page = working_page(0.0, waiting=2)
    async with running_stub(Stub(page=page)) as stub, guarding(stub, signals=SIGNALS) as guard:
        await pass_time(guard, 6)
        assert condition(guard) == "stalled"
        assert refused_as_stalled(guard, await guard.complete([1] * 16))


async def test_an_engine_that_froze_on_its_first_request_is_found_out() -> None:
    """Its page still says that nothing runs, but a stream of kvguard's own gets no token."""
    async with (
        running_stub(Stub(page=working_page(0.0), answer=hold)) as stub,
        guarding(stub, signals=SIGNALS) as guard,
    ):
        waiting = asyncio.ensure_future(guard.complete([1] * 16, stream=True))
        await stub.until(lambda: len(stub.hits) == 1)
        await pass_time(guard, 7)
        assert condition(guard) == "stalled"
        assert refused_as_stalled(guard, await guard.complete([1] * 16))
        # That the client gives up does not make the engine well.
        waiting.cancel()
        await guard.until(lambda: guard.backend.ledger.live == 0)
        await pass_time(guard, 1)
        assert condition(guard) == "stalled"


async def test_a_client_that_reads_slowly_is_no_stall() -> None:
    """Its stream has begun, and the engine owes nothing."""
    async with (
        running_stub(Stub(page=working_page(0.0), answer=hold_stream)) as stub,
        guarding(stub, signals=SIGNALS) as guard,
    ):
        reading = asyncio.ensure_future(guard.complete([1] * 16, stream=True))
        await guard.until(lambda: any(r.produced for r in guard.backend.ledger._live.values()))
        await pass_time(guard, 30)
        assert condition(guard) == "working"
        stub.answer = answer_at_once
        assert (await guard.complete([1] * 16)).status_code == 200
        reading.cancel()


async def test_a_probe_passes_every_so_often_and_a_stall_cannot_last_for_ever() -> None:
    """Of two requests at a time the first is let through when it is due; its tokens end the stall."""
    async with running_stub(Stub(page=working_page(running=3))) as stub, guarding(stub, signals=SIGNALS) as guard:
        await pass_time(guard, 5)
        passed = []
        for second in range(21):
            answers = [await guard.complete([1] * 16) for _ in range(2)]
            passed += [second for answer in answers if not refused_as_stalled(guard, answer)]
            await pass_time(guard, 1)
        assert passed == [10, 20]
        assert guard.metric("kvguard_engine_probes_total", backend="b0", state="stalled") == 2
        stub.page = working_page(running=3, tokens=1)
        await guard.scrape()
        assert (await guard.complete([1] * 16)).status_code == 200
        assert guard.metric("kvguard_engine_probes_total", backend="b0", state="stalled") == 2


async def test_another_backend_is_preferred_to_a_stalled_one() -> None:
    """A fuller one that works gets everything, probes included."""
    async with (
        running_stub(Stub(page=working_page(0.1, running=1))) as frozen,
        running_stub(Stub(page=working_page(0.6))) as works,
        guarding(frozen, works, signals=SIGNALS) as guard,
    ):
        for _ in range(20):
            await pass_time(guard, 1)
            answer = await guard.complete([1] * 16)
            assert answer.status_code == 200
        assert len(frozen.hits) <= 5
        assert len(works.hits) >= 15


async def test_a_sleeping_engine_is_left_in_peace_at_once() -> None:
    """No probe reaches it, and it serves from the first page on that says it is awake."""
    async with running_stub(Stub(page=working_page(0.0, awake=0))) as stub, guarding(stub, signals=SIGNALS) as guard:
        for _ in range(4):
            assert condition(guard) == "sleeping"
            assert refused_as_stalled(guard, await guard.complete([1] * 16))
            await pass_time(guard, 10)
        assert stub.hits == []
        stub.page = working_page(0.0)
        await guard.scrape()
        assert (await guard.complete([1] * 16)).status_code == 200


async def test_a_gauge_that_sticks_does_not_keep_everybody_out() -> None:
    """Full with nothing running: one request at a time finds out, and everybody passes once the gauge falls."""
    async with running_stub(Stub(page=working_page(0.97))) as stub, guarding(stub, signals=SIGNALS) as guard:
        assert (await guard.complete([1] * 16)).json()["error"]["code"] == "saturated"
        await pass_time(guard, 1)
        assert condition(guard) == "contradiction"
        probe = await guard.complete([1] * 16, max_tokens=1000)
        assert probe.status_code == 200
        assert stub.hits[-1].json["max_tokens"] == 64
        passed = []
        for second in range(21):
            answers = [await guard.complete([1] * 16) for _ in range(2)]
            passed += [second for answer in answers if answer.status_code == 200]
            await pass_time(guard, 1)
        assert passed == [10, 20]
        assert guard.metric("kvguard_engine_probes_total", backend="b0", state="contradiction") == 3
        assert [line["after"] for line in guard.logs if line["event"] == "condition"] == ["contradiction"]
        stub.page = working_page(0.0)
        await guard.scrape()
        assert {(await guard.complete([1] * 16)).status_code for _ in range(2)} == {200}


async def test_long_prompts_are_kept_from_piling_up_before_their_first_token() -> None:
    """With a limit of 300 prompt tokens the second long prompt is refused until the first has its first token."""
    signals = {"max_prefill_backlog_tokens": 300}
    async with (
        running_stub(Stub(page=working_page(0.0), answer=hold)) as stub,
        guarding(stub, signals=signals) as guard,
    ):
        first = asyncio.ensure_future(guard.complete([1] * 320, stream=True))
        await stub.until(lambda: len(stub.hits) == 1)
        assert guard.metric("kvguard_prefill_backlog_tokens", backend="b0") == 320
        refused = await guard.complete([1] * 16)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "saturated")
        first.cancel()
        await guard.until(lambda: guard.backend.ledger.live == 0)
        stub.answer = answer_at_once
        assert guard.metric("kvguard_prefill_backlog_tokens", backend="b0") == 0
        assert (await guard.complete([1] * 320)).status_code == 200
