"""The live page's feed on the admin port."""

import asyncio
import base64
import contextlib
import hashlib
import json
import re
from collections.abc import AsyncIterator

import httpx
import pytest

from kvguard.proxy.live import MAX_WATCHERS, TICK_SECONDS
from kvguard.telemetry.live.record import Record
from tests.kit.guard import Guard, guarding
from tests.kit.stub import Stub, exposition, running_stub

pytestmark = pytest.mark.anyio

SECRET = "the-prompt-nobody-may-see"


@contextlib.asynccontextmanager
async def watching(guard: Guard) -> AsyncIterator[AsyncIterator[tuple[str, dict]]]:
    """Kinds and data of the events of one watcher."""
    async with guard.admin.stream("GET", "/live/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield events(answer)


async def events(answer: httpx.Response) -> AsyncIterator[tuple[str, dict]]:
    kind = ""
    async for line in answer.aiter_lines():
        if line.startswith("event: "):
            kind = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield kind, json.loads(line.removeprefix("data: "))


async def test_a_watcher_gets_the_last_minutes_and_then_what_is_new() -> None:
    """One opening, one snapshot at once, and another with each tick; what was refused is in it, the prompt is not."""
    async with running_stub(Stub(page=exposition(0.99))) as stub, guarding(stub) as guard:
        await guard.advance(3.0)
        refused = await guard.complete(SECRET, max_tokens=5, user=SECRET)
        assert refused.status_code == 503
        async with watching(guard) as feed:
            kind, opening = await anext(feed)
            assert kind == "opening"
            assert len(opening["moments"]) >= 3
            assert opening["settings"]["tiers.reject_at"] == "0.95"
            kind, first = await anext(feed)
            assert (kind, first["headline"]["level"], first["servers"][0]["tier"]) == ("snapshot", "overload", 3)
            assert first["traffic"]["reasons"] == {"saturated": 1}
            assert SECRET not in json.dumps([opening, first])
            await guard.advance(TICK_SECONDS)
            kind, second = await anext(feed)
            assert (kind, second["at"] > first["at"]) == ("snapshot", True)


async def test_a_slow_watcher_misses_snapshots_and_holds_up_nobody() -> None:
    """It sees the latest when it comes back."""
    async with running_stub(Stub(page=exposition(0.1))) as stub, guarding(stub) as guard:
        live = await guard.admin.get("/live/snapshot")
        assert live.json()["servers"][0]["name"] == "b0"
        async with watching(guard) as feed:
            await anext(feed)
            for _ in range(40):
                await guard.advance(TICK_SECONDS)
            async with asyncio.timeout(30):
                async for _, snapshot in feed:
                    if snapshot["at"] == pytest.approx(guard.clock.wall(), abs=TICK_SECONDS):
                        break


async def test_watchers_are_bounded_and_leave_their_place() -> None:
    """One more than may watch is told so; where one has left there is room again."""
    async with running_stub(Stub(page=exposition(0.1))) as stub, guarding(stub) as guard:
        async with contextlib.AsyncExitStack() as stack:
            feeds = [await stack.enter_async_context(watching(guard)) for _ in range(MAX_WATCHERS)]
            for feed in feeds:
                await anext(feed)
            refused = await guard.admin.get("/live/events")
            assert (refused.status_code, refused.json()) == (503, {"error": f"{MAX_WATCHERS} pages watch already"})
        async with asyncio.timeout(30):
            while True:
                async with guard.admin.stream("GET", "/live/events") as answer:
                    if answer.status_code == 200:
                        break


async def test_the_page_loads_nothing_and_runs_only_its_own_script() -> None:
    """Its policy names the script and the style that are on it, and no other address."""
    async with running_stub(Stub(page=exposition(0.1))) as stub, guarding(stub) as guard:
        page = await guard.admin.get("/")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        policy = page.headers["content-security-policy"]
        for kind in ("script", "style"):
            (text,) = re.findall(rf"<{kind}>(.*?)</{kind}>", page.text, re.DOTALL)
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            assert f"{kind}-src 'sha256-{digest}'" in policy
        assert not re.search(r"https?://|\bon[a-z]+=|style=", page.text)
        assert (await guard.admin.head("/")).status_code == 200
        assert (await guard.admin.get("/healthz")).status_code == 200


async def test_a_fault_of_the_page_is_logged_and_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next second is kept as if nothing had been."""
    async with running_stub(Stub(page=exposition(0.1))) as stub, guarding(stub) as guard:
        await guard.advance(1.0)
        with monkeypatch.context() as broken:
            broken.setattr(Record, "sample", lambda *_: 1 / 0)
            await guard.advance(1.0)
        before = (await guard.admin.get("/live/snapshot")).json()["moment"]["at"]
        await guard.advance(1.0)
        assert (await guard.admin.get("/live/snapshot")).json()["moment"]["at"] > before
        (fault,) = [line for line in guard.logs if line["event"] == "fault"]
        assert (fault["request_id"], fault["error"]) == ("live", "ZeroDivisionError")
