"""Alerts on tiers as a state: what is to be said of each backend, and when. Sends nothing and has no clock."""

from collections.abc import Callable
from dataclasses import dataclass, field

from kvguard.admission.tiers import Tier

SEVERITIES = {Tier.TRIM: "info", Tier.RESTRICT: "warning", Tier.REJECT: "critical"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertPolicy:
    """Tiers from `min_tier` on are told, each backend at most once per `interval_seconds`."""

    min_tier: Tier = Tier.REJECT
    interval_seconds: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A backend's tier, entered at `since`, over if it was left at `until`."""

    backend: str
    tier: Tier
    since: float
    until: float | None = None

    @property
    def name(self) -> str:
        """Begins as the names of the rules in deploy/prometheus do."""
        return f"KvguardTier{self.tier.name.capitalize()}"


@dataclass(slots=True)
class _Watched:
    """A backend: its tier, the highest since the last message, and what that message said."""

    tier: Tier = Tier.NORMAL
    highest: Tier = Tier.NORMAL
    since: float = 0.0
    left: float = 0.0
    told: Alert | None = None
    told_at: float | None = None


@dataclass(slots=True)
class TierAlerts:
    """Folds tier changes into messages. Of everything between two messages the highest tier counts, so a backend that
    flaps stays in one alert, which ends after a whole interval without the tier.
    """

    policy: AlertPolicy
    _backends: dict[str, _Watched] = field(default_factory=dict)

    def change(self, backend: str, tier: Tier, *, now: float) -> None:
        """The backend is in this tier from now on; NORMAL also when it is gone."""
        if tier is Tier.NORMAL and backend not in self._backends:
            return
        watched = self._backends.setdefault(backend, _Watched())
        if tier > watched.highest:
            watched.highest, watched.since = tier, now
        if tier < watched.tier:
            watched.left = now
        watched.tier = tier

    def take(self, now: float) -> list[Alert]:
        """What is to be sent now, endings first. Whoever takes it sees to it that it arrives."""
        taken = [alert for name in tuple(self._backends) for alert in self._due(name, now)]
        return sorted(taken, key=_ending_first)

    def _due(self, name: str, now: float) -> list[Alert]:
        watched = self._backends[name]
        if watched.told_at is not None and now - watched.told_at < self.policy.interval_seconds:
            return []
        alerts = self._alerts(name, watched)
        watched.told = next((alert for alert in alerts if alert.until is None), None)
        if watched.tier < watched.highest:
            watched.highest, watched.since = watched.tier, watched.left
        if alerts:
            watched.told_at = now
        elif watched.tier is Tier.NORMAL:
            del self._backends[name]
        return alerts

    def _alerts(self, name: str, watched: _Watched) -> list[Alert]:
        told, highest = watched.told, watched.highest
        if told is not None and told.tier is highest:
            return [told]
        alerts = [] if told is None else [_over(told, watched)]
        if highest >= self.policy.min_tier:
            alerts.append(Alert(backend=name, tier=highest, since=watched.since))
        return alerts


def _over(told: Alert, watched: _Watched) -> Alert:
    until = watched.since if watched.highest > told.tier else watched.left
    return Alert(backend=told.backend, tier=told.tier, since=told.since, until=until)


def _ending_first(alert: Alert) -> bool:
    return alert.until is None


RUNBOOK = "https://github.com/kvguard/kvguard/blob/main/docs/runbook.md#"
_SECTIONS = {
    Tier.TRIM: "kvguardtrimsustained",
    Tier.RESTRICT: "kvguardtierrestrictsustained",
    Tier.REJECT: "kvguardtierreject",
}


def alertmanager_body(alerts: list[Alert], *, instance: str, stamp: Callable[[float], str]) -> list[dict[str, object]]:
    """Alerts as Alertmanager's API v2 takes them."""
    return [
        {
            "labels": {
                "alertname": alert.name,
                "backend": alert.backend,
                "instance": instance,
                "severity": SEVERITIES[alert.tier],
            },
            "annotations": {
                "summary": f"Backend {alert.backend} is in tier {int(alert.tier)} ({_word(alert)}).",
                "runbook_url": RUNBOOK + _SECTIONS[alert.tier],
            },
            "startsAt": stamp(alert.since),
            **({} if alert.until is None else {"endsAt": stamp(alert.until)}),
        }
        for alert in alerts
    ]


def webhook_body(alerts: list[Alert], *, instance: str, stamp: Callable[[float], str]) -> dict[str, object]:
    """Alerts for any other receiver of JSON."""
    return {
        "alerts": [
            {
                "alert": alert.name,
                "status": "firing" if alert.until is None else "resolved",
                "severity": SEVERITIES[alert.tier],
                "backend": alert.backend,
                "instance": instance,
                "tier": int(alert.tier),
                "since": stamp(alert.since),
                "until": None if alert.until is None else stamp(alert.until),
                "runbook_url": RUNBOOK + _SECTIONS[alert.tier],
            }
            for alert in alerts
        ]
    }


def _word(alert: Alert) -> str:
    return alert.tier.name.lower()
