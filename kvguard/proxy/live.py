"""The live page on the admin port, and what it is fed with: server-sent events, one snapshot for all who watch."""

import asyncio
import base64
import hashlib
import re
from collections.abc import AsyncIterator, Callable, Mapping
from importlib.resources import files
from typing import Final

import msgspec
from fastapi import APIRouter, Response
from fastapi.responses import HTMLResponse, StreamingResponse

from kvguard.clock import Clock
from kvguard.proxy.controller import Controller
from kvguard.telemetry.live.build import Facts, snapshot
from kvguard.telemetry.live.record import Record
from kvguard.telemetry.live.view import Opening, Snapshot

TICK_SECONDS: Final = 0.5
TICKS_PER_SAMPLE: Final = 2
MAX_WATCHERS: Final = 32
_EVENTS: Final = "text/event-stream"


class Live:
    """Who watches, and what they see. `settings` are those in force, for people to read; `fault` hears of what went
    wrong here.
    """

    def __init__(
        self,
        controller: Controller,
        record: Record,
        facts: Callable[[], Facts],
        settings: Callable[[], Mapping[str, str]],
        clock: Clock,
        fault: Callable[[Exception], None],
    ) -> None:
        self._fault = fault
        self._controller = controller
        self._record = record
        self._facts = facts
        self._settings = settings
        self._clock = clock
        self._watchers: set[_Watcher] = set()

    async def run(self) -> None:
        """Keep the history, and tell those who watch, for as long as it lasts."""
        ticks = 0
        while True:
            try:
                self._tick(sampling=ticks % TICKS_PER_SAMPLE == 0)
            except Exception as error:  # noqa: BLE001  a page that stands still would tell of a world gone by
                self._fault(error)
            ticks += 1
            await self._clock.sleep(TICK_SECONDS)

    def _tick(self, *, sampling: bool) -> None:
        if sampling:
            self._record.sample(self._controller.backends)
        if self._watchers:
            event = _event("snapshot", msgspec.json.encode(self.snapshot()))
            for watcher in self._watchers:
                watcher.put(event)

    def snapshot(self) -> Snapshot:
        """Everything at this moment."""
        return snapshot(
            self._controller.backends, self._record, self._facts(), now=self._clock.now(), wall=self._clock.wall()
        )

    def opening(self) -> Opening:
        """What a page begins with."""
        return Opening(moments=self._record.moments, settings=self._settings())

    def watch(self) -> AsyncIterator[bytes] | None:
        """Events from now on; None while too many watch already."""
        if len(self._watchers) >= MAX_WATCHERS:
            return None
        return self._watched()

    async def _watched(self) -> AsyncIterator[bytes]:
        watcher = _Watcher()
        watcher.put(_event("snapshot", msgspec.json.encode(self.snapshot())))
        self._watchers.add(watcher)
        try:
            yield b"retry: 1000\n" + _event("opening", msgspec.json.encode(self.opening()))
            while True:
                yield await watcher.next()
        finally:
            self._watchers.discard(watcher)


class _Watcher:
    """One page. What it has not taken when the next snapshot comes, it never sees."""

    def __init__(self) -> None:
        self._event = b""
        self._filled = asyncio.Event()

    def put(self, event: bytes) -> None:
        self._event = event
        self._filled.set()

    async def next(self) -> bytes:
        await self._filled.wait()
        self._filled.clear()
        return self._event


def _event(kind: str, data: bytes) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"


def live_routes(live: Live) -> APIRouter:
    """The page, its events, and one snapshot at a time."""
    router, page = APIRouter(), files("kvguard.telemetry.live").joinpath("page.html").read_text("utf-8")
    headers = {"content-security-policy": _policy(page), "cache-control": "no-store", "x-frame-options": "DENY"}

    @router.api_route("/", methods=["GET", "HEAD"], response_class=HTMLResponse)
    async def root() -> HTMLResponse:
        """The live page."""
        return HTMLResponse(page, headers=headers)

    @router.get("/live/snapshot")
    async def one() -> Response:
        """Everything at this moment."""
        return Response(msgspec.json.encode(live.snapshot()), media_type="application/json")

    @router.get("/live/events")
    async def events() -> Response:
        """Server-sent events: `opening` once, then a `snapshot` twice a second."""
        watched = live.watch()
        if watched is None:
            error = {"error": f"{MAX_WATCHERS} pages watch already"}
            return Response(msgspec.json.encode(error), status_code=503, media_type="application/json")
        return StreamingResponse(watched, media_type=_EVENTS, headers={"cache-control": "no-store"})

    return router


def _policy(page: str) -> str:
    """Nothing runs on the page but its own script, and nothing is loaded from elsewhere."""
    own = {
        kind: " ".join(
            f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
            for text in re.findall(rf"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
        )
        for kind in ("script", "style")
    }
    return (
        f"default-src 'none'; script-src {own['script']}; style-src {own['style']}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
