"""Metrics of the settings in force."""

from prometheus_client import CollectorRegistry

from kvguard.admission.lengths import LengthPolicy
from kvguard.admission.tiers import Signal, TierPolicy, TierRule
from kvguard.telemetry.in_force import InForce, SettingsMetrics


class Wall:
    """The time of day, as the test sets it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_settings_in_force_are_shown_and_no_others() -> None:
    """Hash, thresholds and quantile are those that were put last."""
    registry = CollectorRegistry()
    settings, value = SettingsMetrics(registry, Wall()), registry.get_sample_value
    tiers = TierPolicy(trim=TierRule(enter=0.5, signals=(Signal.PROJECTED,)))
    for name in ("old", "new"):
        settings.put(InForce(config_hash=name, tiers=tiers, lengths=LengthPolicy(quantile=0.75)))
    assert [value("kvguard_config_info", {"hash": name}) for name in ("old", "new")] == [None, 1]
    tiers_shown = ("trim", "restrict", "reject")
    assert [value("kvguard_tier_threshold_ratio", {"tier": tier}) for tier in tiers_shown] == [0.5, 0.85, 0.95]
    assert value("kvguard_forecast_quantile_ratio") == 0.75


def test_a_faulty_change_shows_until_the_file_is_read_without_faults() -> None:
    """It is counted, from 0 on; the time is that of the last success, of which the start is one."""
    wall, registry = Wall(), CollectorRegistry()
    settings, seen = SettingsMetrics(registry, wall), []
    for now, change in ((100.0, None), (200.0, settings.reload_failed), (300.0, settings.reloaded)):
        wall.now = now
        if change is not None:
            change()
        names = ("reload_failures_total", "last_reload_successful", "last_reload_success_timestamp_seconds")
        seen.append([registry.get_sample_value(f"kvguard_config_{name}") for name in names])
    assert seen == [[0, 1, 100], [1, 0, 100], [1, 1, 300]]
