"""What is told to whom, beside logs and metrics: alerts that kvguard sends itself."""

import socket
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from kvguard.admission.tiers import Tier
from kvguard.alert_push import Receiver
from kvguard.section import Seconds, Section, together
from kvguard.telemetry.alerts import AlertPolicy


class AlertSettings(Section):
    """Alerts on tiers sent by kvguard itself, for where no Prometheus evaluates the alerting rules. Off by default."""

    alertmanager_url: SecretStr | None = None
    """Alertmanager, such as `http://alertmanager:9093`; a user and a password in it are used and never shown."""
    webhook_url: SecretStr | None = None
    """Instead of it, whatever takes JSON."""
    min_tier: Literal[1, 2, 3] = 3
    """The lowest tier that is told."""
    interval_seconds: Seconds = 60.0
    """Shortest time between two messages of one backend, and how often an alert that lasts is repeated. Below
    Alertmanager's `resolve_timeout`, or it takes the alert for over."""
    timeout_seconds: Seconds = 5.0
    """How long the receiver may take."""
    instance: Annotated[str, Field(max_length=253)] | None = None
    """Label `instance`; by default the name of the host."""

    @field_validator("alertmanager_url", "webhook_url")
    @classmethod
    def _http(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None and not url.get_secret_value().startswith(("http://", "https://")):
            raise ValueError("must begin with http:// or https://")
        return url

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.alertmanager_url is not None and self.webhook_url is not None:
            raise together("set one of the two", "alertmanager_url", "webhook_url")
        return self

    def policy(self) -> AlertPolicy:
        """When something is told."""
        return AlertPolicy(min_tier=Tier(self.min_tier), interval_seconds=self.interval_seconds)

    def receiver(self) -> Receiver | None:
        """Who is told, if anybody."""
        url = self.alertmanager_url or self.webhook_url
        if url is None:
            return None
        return Receiver(
            url=url.get_secret_value(),
            instance=self.instance or socket.gethostname(),
            alertmanager=self.alertmanager_url is not None,
            timeout_seconds=self.timeout_seconds,
        )
