"""Metrics of the settings: which are in force, and whether the last change of their file could be taken over."""

from collections.abc import Callable
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Info

from kvguard.admission.lengths import LengthPolicy
from kvguard.admission.tiers import TierPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class InForce:
    """Settings that metrics speak of. Each of `tenants` has series of its own; decisions of the `shadowed` groups of
    backends are only reported.
    """

    config_hash: str = ""
    tiers: TierPolicy = field(default_factory=TierPolicy)
    lengths: LengthPolicy = field(default_factory=LengthPolicy)
    tenants: frozenset[str] = frozenset()
    shadowed: frozenset[str] = frozenset()


class SettingsMetrics:
    """Shows settings as they are put in force. The start counts as a change that was taken over."""

    def __init__(self, registry: CollectorRegistry, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._info = Info("kvguard_config", "Hash of the settings in force", registry=registry)
        self._thresholds = Gauge(
            "kvguard_tier_threshold_ratio",
            "Share of the KV cache at which a tier begins, by the plain settings",
            ("tier",),
            registry=registry,
        )
        self._quantile = Gauge(
            "kvguard_forecast_quantile_ratio",
            "Share of answers that are to stay within their forecast length",
            registry=registry,
        )
        self._failures = Counter(
            "kvguard_config_reload_failures", "Changes of the settings file that had faults", registry=registry
        )
        self._successful = Gauge(
            "kvguard_config_last_reload_successful",
            "1 unless the settings file, when last read, had faults",
            registry=registry,
        )
        self._succeeded_at = Gauge(
            "kvguard_config_last_reload_success_timestamp_seconds",
            "When the settings file was last read without faults",
            registry=registry,
        )
        self.put(InForce())
        self.reloaded()

    def put(self, settings: InForce) -> None:
        """These are in force now."""
        self.in_force = settings
        self._info.info({"hash": settings.config_hash})
        for tier, rule in settings.tiers.rules():
            self._thresholds.labels(tier.name.lower()).set(rule.enter)
        self._quantile.set(settings.lengths.quantile)

    def reloaded(self) -> None:
        """The file was read and had no faults, whether or not anything changed."""
        self._successful.set(1)
        self._succeeded_at.set(self._wall())

    def reload_failed(self) -> None:
        """A change of the file was not taken over."""
        self._failures.inc()
        self._successful.set(0)
