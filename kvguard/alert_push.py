"""Sends alerts to an Alertmanager or a webhook, in a task of its own. The address may hold a password: it is never
logged, and neither is what the receiver answers.
"""

import asyncio
import datetime
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx

from kvguard.clock import Clock
from kvguard.telemetry.alerts import Alert, TierAlerts, alertmanager_body, webhook_body

LOOK_SECONDS = 1.0
MAX_BACKOFF_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """Where alerts go. `alertmanager` says that its API v2 is spoken at `url`, else plain JSON."""

    url: str = field(repr=False)
    instance: str
    alertmanager: bool = True
    timeout_seconds: float = 5.0


class AlertPush:
    """Holds one batch at a time; what happens until that has arrived is folded by `alerts`."""

    def __init__(
        self, alerts: TierAlerts, receiver: Receiver, clock: Clock, logger: logging.Logger, failed: Callable[[], None]
    ) -> None:
        self._alerts = alerts
        self._receiver = receiver
        self._clock = clock
        self._logger = logger
        self._failed = failed

    async def run(self) -> None:
        """Send what is due until cancelled."""
        async with httpx.AsyncClient(timeout=self._receiver.timeout_seconds, trust_env=False) as client:
            while True:
                if batch := self._alerts.take(self._clock.now()):
                    await self._deliver(client, batch)
                await self._clock.sleep(LOOK_SECONDS)

    async def _deliver(self, client: httpx.AsyncClient, batch: list[Alert]) -> None:
        """Until it is taken, ever more rarely: an ending must not be lost, nor overtake its beginning."""
        body, pause = self._body(batch), LOOK_SECONDS
        while (fault := await self._post(client, body)) is not None:
            self._failed()
            self._logger.warning("alert_push", extra={"fields": {"why": fault, "again_in_seconds": pause}})
            await self._clock.sleep(pause)
            pause = min(pause * 2, MAX_BACKOFF_SECONDS)

    async def _post(self, client: httpx.AsyncClient, body: bytes) -> str | None:
        """None, or why it was not taken."""
        headers = {"content-type": "application/json"}
        try:
            async with (
                asyncio.timeout(self._receiver.timeout_seconds),
                client.stream("POST", self._target(), content=body, headers=headers) as response,
            ):
                return None if response.is_success else f"status {response.status_code}"
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            return type(error).__name__

    def _target(self) -> str:
        return self._receiver.url.rstrip("/") + "/api/v2/alerts" if self._receiver.alertmanager else self._receiver.url

    def _body(self, batch: list[Alert]) -> bytes:
        form = alertmanager_body if self._receiver.alertmanager else webhook_body
        return json.dumps(form(batch, instance=self._receiver.instance, stamp=self._stamp)).encode()

    def _stamp(self, moment: float) -> str:
        wall = moment + self._clock.wall() - self._clock.now()
        return datetime.datetime.fromtimestamp(wall, datetime.UTC).isoformat(timespec="milliseconds")
