"""Which alerts are sent of a backend's tiers, and when."""

import pytest

from kvguard.admission.tiers import Tier
from kvguard.telemetry.alerts import RUNBOOK, Alert, AlertPolicy, TierAlerts, alertmanager_body, webhook_body

FIRING = Alert(backend="b", tier=Tier.REJECT, since=10.0)
OVER = Alert(backend="b", tier=Tier.REJECT, since=10.0, until=15.0)


def said(*steps: tuple[float, Tier | None], min_tier: Tier = Tier.REJECT) -> list[tuple[float, Alert]]:
    """Each step is a moment and the tier entered then; None only looks what is due."""
    alerts = TierAlerts(AlertPolicy(min_tier=min_tier, interval_seconds=60.0))
    told = []
    for now, tier in steps:
        if tier is None:
            told += [(now, alert) for alert in alerts.take(now)]
        else:
            alerts.change("b", tier, now=now)
    return told


def test_a_tier_that_lasts_is_told_at_once_and_repeated_every_interval() -> None:
    """The repetition has the same beginning, and comes neither earlier than the interval nor later."""
    steps = [(10.0, Tier.REJECT), (11.0, None), (12.0, None), (70.9, None), (71.0, None)]
    assert said(*steps) == [(11.0, FIRING), (71.0, FIRING)]


def test_the_end_is_told_once_after_a_whole_interval_without_the_tier() -> None:
    """It names the moment the tier was left; nothing follows."""
    steps = [(10.0, Tier.REJECT), (11.0, None), (15.0, Tier.NORMAL), (71.0, None), (131.0, None), (191.0, None)]
    assert said(*steps) == [(11.0, FIRING), (71.0, FIRING), (131.0, OVER)]


def test_flapping_is_one_alert() -> None:
    """Twenty changes in an interval are one repetition, with the beginning of the first."""
    flaps = [(12.0 + each, (Tier.NORMAL, Tier.REJECT)[each % 2]) for each in range(20)]
    assert said((10.0, Tier.REJECT), (11.0, None), *flaps, (71.0, None)) == [(11.0, FIRING), (71.0, FIRING)]


def test_a_tier_between_two_looks_is_told() -> None:
    """A peak that is over when it is looked at is no secret."""
    told = said((10.0, Tier.REJECT), (10.1, Tier.NORMAL), (11.0, None), (71.0, None))
    assert told == [(11.0, FIRING), (71.0, Alert(backend="b", tier=Tier.REJECT, since=10.0, until=10.1))]


@pytest.mark.parametrize("tier", [Tier.NORMAL, Tier.TRIM, Tier.RESTRICT])
def test_tiers_below_the_lowest_told_are_silent(tier: Tier) -> None:
    """Neither a beginning nor an end is sent."""
    assert said((10.0, tier), (11.0, None), (12.0, Tier.NORMAL), (71.0, None)) == []


def test_another_tier_ends_the_alert_of_the_one_before() -> None:
    """The ending comes first, at the moment the next one begins."""
    told = said((10.0, Tier.RESTRICT), (11.0, None), (20.0, Tier.REJECT), (71.0, None), min_tier=Tier.RESTRICT)
    restrict = Alert(backend="b", tier=Tier.RESTRICT, since=10.0)
    over = Alert(backend="b", tier=Tier.RESTRICT, since=10.0, until=20.0)
    assert told == [(11.0, restrict), (71.0, over), (71.0, Alert(backend="b", tier=Tier.REJECT, since=20.0))]


def test_alertmanager_gets_the_names_and_severities_of_the_rules() -> None:
    """A firing alert has no end, a resolved one has."""
    first, second = alertmanager_body([FIRING, OVER], instance="pod-1", stamp=str)
    labels = {"alertname": "KvguardTierReject", "backend": "b", "instance": "pod-1", "severity": "critical"}
    assert first["labels"] == second["labels"] == labels
    assert (first["startsAt"], second["startsAt"], second["endsAt"]) == ("10.0", "10.0", "15.0")
    assert "endsAt" not in first


def test_a_webhook_gets_status_and_tier() -> None:
    """Every value is there for each alert."""
    body = webhook_body([FIRING, OVER], instance="pod-1", stamp=str)
    same = {"alert": "KvguardTierReject", "severity": "critical", "backend": "b", "instance": "pod-1", "tier": 3}
    same["runbook_url"] = f"{RUNBOOK}kvguardtierreject"
    assert body == {
        "alerts": [
            {**same, "status": "firing", "since": "10.0", "until": None},
            {**same, "status": "resolved", "since": "10.0", "until": "15.0"},
        ]
    }
