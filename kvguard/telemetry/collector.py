"""Metrics that are read off the backends when a scrape asks for them."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvguard.admission.calibration import Calibration
from kvguard.admission.lengths import LengthSource
from kvguard.admission.occupancy import TelemetryState
from kvguard.admission.reachability import ThresholdState
from kvguard.admission.tiers import Tier
from kvguard.pool.backend import Backend
from kvguard.pool.pool import Pool
from kvguard.telemetry.conditions import condition_families
from kvguard.telemetry.in_force import InForce
from kvguard.telemetry.metrics import OTHER
from kvguard.telemetry.standings import standing_families

THRESHOLDS = (Tier.TRIM, Tier.RESTRICT, Tier.REJECT)


class PoolCollector(Collector):
    """Reads every backend's state at the moment of a scrape. What is unknown has no sample."""

    def __init__(
        self,
        pool: Pool,
        now: Callable[[], float],
        settings: Callable[[], InForce] = InForce,
    ) -> None:
        self._pool = pool
        self._now = now
        self._settings = settings

    def describe(self) -> Iterator[Metric]:
        """Nothing: names are checked by the tests, and state may not exist yet."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Every gauge of every backend."""
        now = self._now()
        yield from (
            self._usage(now),
            self._capacity_tokens(),
            self._capacity_bytes(),
            self._per_backend("kvguard_tier", "Tier in force, 0 to 3", lambda b: int(b.tier.tier)),
            self._demand(now),
            self._per_backend("kvguard_inflight_requests", "Admitted requests in flight", lambda b: b.ledger.live),
            self._per_backend("kvguard_inflight_sequences", "Sequences in flight", lambda b: b.ledger.sequences),
            self._per_backend("kvguard_ledger_blocks", "Blocks held by the ledger", lambda b: b.ledger.held_blocks),
            self._per_backend(
                "kvguard_shared_prefix_blocks",
                "Blocks of common beginnings that several requests in flight hold, in the ledger once",
                lambda b: b.ledger.shared_blocks,
            ),
            self._tenant_blocks(),
            self._shadow(),
            self._violations(),
            self._per_backend(
                "kvguard_scrape_age_seconds", "Age of the last good gauge", lambda b: b.occupancy.age_seconds(now)
            ),
            self._telemetry(now),
            *condition_families(self._pool.backends, now),
            *standing_families(self._pool.backends, now),
            self._thresholds(),
            self._forecasts(
                "kvguard_forecast_answers",
                "Whole answers whose length was forecast, by where the forecast came from",
                lambda calibration: calibration.answers,
            ),
            self._forecasts(
                "kvguard_forecast_exceeded",
                "Those of them that got longer than forecast",
                lambda calibration: calibration.exceeded,
            ),
            self._per_backend(
                "kvguard_footprint_error_ratio",
                "Blocks of generating requests by the ledger over those by the gauge, less 1",
                lambda b: b.occupancy.footprint_error_ratio,
            ),
            self._per_backend(
                "kvguard_block_rule_ratio",
                "Blocks of a request of full context, by the block rule over by the engine; 1 is right",
                lambda b: b.rule_fit.ratio if b.rule_fit else None,
            ),
        )

    def _per_backend(self, name: str, text: str, value: Callable[[Backend], float | None]) -> Metric:
        family = GaugeMetricFamily(name, text, labels=("backend",))
        for backend in self._pool.backends:
            known = value(backend)
            if known is not None:
                family.add_metric((backend.name,), known)
        return family

    def _usage(self, now: float) -> Metric:
        family = GaugeMetricFamily(
            "kvguard_kv_usage_ratio", "Share of the KV cache in use", labels=("backend", "engine", "kind")
        )
        for backend in self._pool.backends:
            ratios = backend.occupancy.ratios(now)
            if ratios is None:
                continue
            if ratios.observed is not None and backend.occupancy.sample is not None:
                for engine in backend.occupancy.sample.engines:
                    family.add_metric((backend.name, engine.engine, "observed"), engine.used_ratio or 0.0)
            family.add_metric((backend.name, "all", "projected"), ratios.projected)
            family.add_metric((backend.name, "all", "peak"), ratios.peak)
        return family

    def _capacity_tokens(self) -> Metric:
        return self._per_backend("kvguard_kv_capacity_tokens", "Tokens the KV cache holds", _tokens)

    def _capacity_bytes(self) -> Metric:
        def size(backend: Backend) -> int | None:
            capacity = backend.occupancy.capacity
            return capacity.bytes if capacity else None

        return self._per_backend(
            "kvguard_kv_capacity_bytes", "Bytes of the KV cache on one GPU; needs the model's geometry", size
        )

    def _demand(self, now: float) -> Metric:
        return self._per_backend(
            "kvguard_demand_ratio",
            "KV cache that everything admitted and lately refused would fill, not clipped at 1",
            lambda b: b.demand_ratio(now),
        )

    def _tenant_blocks(self) -> Metric:
        family = GaugeMetricFamily(
            "kvguard_tenant_blocks",
            "Blocks a tenant's requests in flight come to at full length; those the settings do not name are other",
            labels=("backend", "tenant"),
        )
        known = self._settings().tenants
        for backend in self._pool.backends:
            blocks = dict.fromkeys((*sorted(known), OTHER), 0)
            for tenant, tally in backend.ledger.tenants.items():
                blocks[tenant if tenant in known else OTHER] += tally.reserved_blocks
            for tenant, held in blocks.items():
                family.add_metric((backend.name, tenant), held)
        return family

    def _shadow(self) -> Metric:
        shadowed = self._settings().shadowed
        return self._per_backend(
            "kvguard_shadow_mode",
            "1 where every decision is only reported and nothing changed or refused",
            lambda backend: float(backend.group in shadowed),
        )

    def _violations(self) -> Metric:
        family = CounterMetricFamily(
            "kvguard_ledger_violations", "Ledger entries that did not add up", labels=("backend",)
        )
        for backend in self._pool.backends:
            family.add_metric((backend.name,), backend.ledger.violations)
        return family

    def _forecasts(self, name: str, text: str, counts: Callable[[Calibration], Mapping[LengthSource, int]]) -> Metric:
        family = CounterMetricFamily(name, text, labels=("backend", "source"))
        for backend in self._pool.backends:
            for source in LengthSource:
                family.add_metric((backend.name, source.value), counts(backend.calibration)[source])
        return family

    def _telemetry(self, now: float) -> Metric:
        family = GaugeMetricFamily(
            "kvguard_telemetry_state", "1 for the state the gauge is in", labels=("backend", "state")
        )
        for backend in self._pool.backends:
            current = backend.occupancy.telemetry(now)
            for state in TelemetryState:
                family.add_metric((backend.name, state.value), float(state is current))
        return family

    def _thresholds(self) -> Metric:
        family = GaugeMetricFamily(
            "kvguard_threshold_state",
            "1 for what is known of whether the threshold can be reached",
            labels=("backend", "tier", "state"),
        )
        for backend in self._pool.backends:
            states = {verdict.tier: verdict.state for verdict in backend.verdicts}
            for tier in THRESHOLDS:
                for state in ThresholdState:
                    current = states.get(tier, ThresholdState.UNKNOWN)
                    family.add_metric((backend.name, tier.name.lower(), state.value), float(state is current))
        return family


def _tokens(backend: Backend) -> int | None:
    capacity = backend.occupancy.capacity
    return capacity.tokens if capacity else None
