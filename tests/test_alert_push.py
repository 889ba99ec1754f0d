"""Sending alerts: a receiver on the loopback, time by hand."""

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator

import pytest

from kvguard.admission.tiers import Tier
from kvguard.alert_push import LOOK_SECONDS, AlertPush, Receiver
from kvguard.clock import ManualClock
from kvguard.server import bind, serving
from kvguard.telemetry.alerts import AlertPolicy, TierAlerts
from kvguard.telemetry.log import configure_logging
from tests.kit.guard import guarding
from tests.kit.stub import Stub, exposition, running_stub

pytestmark = pytest.mark.anyio


class Inbox:
    """An ASGI receiver that gives these answers in turn, then 200."""

    def __init__(self, *answers: int) -> None:
        self.answers = list(answers)
        self.got: asyncio.Queue[tuple[str, dict[str, str], object]] = asyncio.Queue()

    async def __call__(self, scope, receive, send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message.get("more_body", False)
        status = self.answers.pop(0) if self.answers else 200
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"secret answer"})
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.got.put_nowait((scope["path"], headers, json.loads(body)))


class Pushing:
    """A push that runs, with what it reports."""

    def __init__(self) -> None:
        self.clock, self.failures, self.log = ManualClock(), [], io.StringIO()
        self.alerts = TierAlerts(AlertPolicy())

    @contextlib.asynccontextmanager
    async def to(self, inbox: Inbox, *, alertmanager: bool = True) -> AsyncIterator[None]:
        async with serving(inbox, bind("127.0.0.1", 0)) as server:
            url = f"http://user:hidden@127.0.0.1:{server.port}/base"
            receiver = Receiver(url=url, instance="pod-1", alertmanager=alertmanager)
            logger = configure_logging("debug", self.log)
            push = AlertPush(self.alerts, receiver, self.clock, logger, lambda: self.failures.append(1))
            task = asyncio.create_task(push.run())
            yield
            task.cancel()
            await asyncio.wait({task})

    async def next(self, inbox: Inbox) -> tuple[str, dict[str, str], object]:
        """The next message; time passes until it is there."""
        async with asyncio.timeout(10):
            while inbox.got.empty():
                await self.clock.advance(0.25)
            return inbox.got.get_nowait()


async def test_alertmanager_gets_a_tier_change_with_the_password_as_credentials() -> None:
    """Path, authorization, labels and the moment are what API v2 wants."""
    pushing, inbox = Pushing(), Inbox()
    async with pushing.to(inbox):
        pushing.alerts.change("b", Tier.REJECT, now=0.0)
        path, headers, (alert,) = await pushing.next(inbox)
    assert (path, headers["authorization"]) == ("/base/api/v2/alerts", "Basic dXNlcjpoaWRkZW4=")
    assert alert["startsAt"] == "1970-01-01T00:00:00.000+00:00"
    assert alert["labels"]["instance"] == "pod-1"
    assert pushing.failures == []


async def test_a_webhook_is_asked_at_its_own_address() -> None:
    """Nothing is appended to its path."""
    pushing, inbox = Pushing(), Inbox()
    async with pushing.to(inbox, alertmanager=False):
        pushing.alerts.change("b", Tier.REJECT, now=0.0)
        path, _, body = await pushing.next(inbox)
    assert (path, body["alerts"][0]["status"]) == ("/base", "firing")


async def test_what_is_not_taken_is_sent_again_and_counted_and_no_secret_is_logged() -> None:
    """The same message comes until it is taken; the log has the status, not the address nor the answer."""
    pushing, inbox = Pushing(), Inbox(500, 503)
    async with pushing.to(inbox):
        pushing.alerts.change("b", Tier.REJECT, now=0.0)
        bodies = [(await pushing.next(inbox))[2] for _ in range(3)]
    assert bodies[0] == bodies[1] == bodies[2]
    assert len(pushing.failures) == 2
    lines = [json.loads(line) for line in pushing.log.getvalue().splitlines()]
    said = [(line["why"], line["again_in_seconds"]) for line in lines if line["event"] == "alert_push"]
    assert said == [("status 500", 1.0), ("status 503", 2.0)]
    assert not any(word in pushing.log.getvalue() for word in ("hidden", "secret", "127.0.0.1"))


async def test_a_tier_that_is_entered_is_told_by_a_running_kvguard() -> None:
    """A full gauge is all it takes."""
    inbox = Inbox()
    async with serving(inbox, bind("127.0.0.1", 0)) as server, running_stub(Stub(page=exposition(0.99))) as stub:
        alerts = {"webhook_url": f"http://127.0.0.1:{server.port}/hook"}
        async with guarding(stub, alerts=alerts) as guard:
            await guard.until(lambda: guard.backend.tier.tier is Tier.REJECT)
            await guard.advance(LOOK_SECONDS)
            async with asyncio.timeout(30):
                path, _, body = await inbox.got.get()
    assert path == "/hook"
    (alert,) = body["alerts"]
    assert (alert["alert"], alert["status"], alert["backend"]) == ("KvguardTierReject", "firing", "b0")
