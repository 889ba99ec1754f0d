"""Prometheus metrics. Events move counters; state is read from the backends when a scrape asks for it.

Every label comes from a closed set: backends, engines and routes are configured, the rest are enums.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvguard.admission.calibration import Calibration
from kvguard.admission.lengths import LengthSource
from kvguard.admission.occupancy import TelemetryState
from kvguard.admission.reachability import ThresholdState
from kvguard.admission.reasons import RejectReason
from kvguard.admission.tiers import Tier
from kvguard.pool.backend import Backend, TierChange
from kvguard.pool.pool import Pool
from kvguard.telemetry.conditions import condition_families
from kvguard.telemetry.events import DecisionEvent, End, EndEvent, Mode, Outcome, WaitEnd
from kvguard.telemetry.standings import standing_families

OTHER = "other"
THRESHOLDS = (Tier.TRIM, Tier.RESTRICT, Tier.REJECT)
FAST = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
SLOW = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)


class Metrics:
    """Counters and histograms fed by events. Tenants that `tenants` does not name are one, `other`."""

    def __init__(self, registry: CollectorRegistry, *, version: str, config_hash: str) -> None:
        self._requests = Counter(
            "kvguard_requests",
            "Decisions on requests; outcome failed counts admitted requests whose backend failed before it answered",
            ("route", "outcome", "tier", "reason", "mode"),
            registry=registry,
        )
        self._callers = Counter(
            "kvguard_caller_requests",
            "Decisions on requests by who sent them; tenants that the settings do not name are other",
            ("tenant", "priority", "outcome", "mode"),
            registry=registry,
        )
        self._ends = Counter("kvguard_exchanges", "How admitted requests ended", ("route", "end"), registry=registry)
        self._tokens = Counter(
            "kvguard_tokens", "Tokens by what became of them, summed over sequences", ("kind",), registry=registry
        )
        self._transitions = Counter(
            "kvguard_tier_transitions", "Changes of the tier in force", ("backend", "tier"), registry=registry
        )
        self._scrape_failures = Counter(
            "kvguard_scrape_failures", "Scrapes of a backend that gave no gauge", ("backend",), registry=registry
        )
        self._reroutes = Counter(
            "kvguard_reroutes",
            "Requests that another backend was given because no connection to this one could be made",
            ("backend",),
            registry=registry,
        )
        self._discovery_failures = Counter(
            "kvguard_discovery_failures",
            "Look-ups of the name of a backend that gave no addresses",
            ("backend",),
            registry=registry,
        )
        self._discovered = Gauge(
            "kvguard_discovered_backends",
            "Addresses in use behind the name of a backend",
            ("backend",),
            registry=registry,
        )
        self._counts = Counter("kvguard_token_counts", "Prompt counts by who made them", ("source",), registry=registry)
        self._prompt_error = Histogram(
            "kvguard_prompt_error_tokens",
            "Counted prompt tokens against the engine's own usage, absolute difference, by who counted",
            ("source",),
            buckets=(0, 1, 4, 16, 64, 256, 1024, 4096),
            registry=registry,
        )
        self._decision = Histogram(
            "kvguard_decision_seconds", "Time to decide on one request", buckets=FAST, registry=registry
        )
        self._tokenize = Histogram(
            "kvguard_tokenize_seconds", "Time to count one request's prompts", buckets=FAST, registry=registry
        )
        self._waits = Histogram(
            "kvguard_wait_seconds", "Time requests waited for blocks", ("end",), buckets=SLOW, registry=registry
        )
        for end in WaitEnd:
            self._waits.labels(end.value)
        self._waiting = Gauge("kvguard_waiting_requests", "Requests that wait for blocks", registry=registry)
        self._upstream = Histogram(
            "kvguard_upstream_seconds", "Time from forwarding to the end of the answer", buckets=SLOW, registry=registry
        )
        self._first_byte = Histogram(
            "kvguard_time_to_first_byte_seconds",
            "Time from receiving a request to its answer's first body byte",
            buckets=SLOW,
            registry=registry,
        )
        self._retry_after = Histogram(
            "kvguard_retry_after_seconds",
            "Retry-After given to refused requests",
            buckets=(1, 2, 4, 8, 16, 32, 64),
            registry=registry,
        )
        Info("kvguard_build", "Version of kvguard", registry=registry).info({"version": version})
        self._reload_failures = Counter(
            "kvguard_config_reload_failures", "Changes of the settings file that had faults", registry=registry
        )
        self._lines_dropped = Counter(
            "kvguard_decision_log_dropped", "Lines of the decision log that were lost", registry=registry
        )
        self._config = Info("kvguard_config", "Hash of the settings in force", registry=registry)
        self.configured(config_hash=config_hash, tenants=frozenset())

    def configured(self, *, config_hash: str, tenants: frozenset[str]) -> None:
        """These settings are in force; each of `tenants` has series of its own."""
        self._config.info({"hash": config_hash})
        self.tenants = tenants

    def reload_failed(self) -> None:
        """Count a change of the settings that was not taken over."""
        self._reload_failures.inc()

    def line_dropped(self) -> None:
        """Count a line of the decision log that was not written."""
        self._lines_dropped.inc()

    def prepare(self, *, routes: Sequence[str], backends: Sequence[str], sources: Sequence[str] = ()) -> None:
        """Start the series operators alert on at 0, so that the first event is seen as a change."""
        for route in routes:
            for outcome, tier in ((Outcome.ADMITTED, Tier.NORMAL), (Outcome.DEGRADED, Tier.TRIM)):
                self._requests.labels(route, outcome.value, int(tier), "", Mode.ENFORCE.value)
            reason = RejectReason.SATURATED.value
            self._requests.labels(route, "rejected", int(Tier.REJECT), reason, Mode.ENFORCE.value)
            for end in End:
                self._ends.labels(route, end.value)
        for kind in ("prompt", "requested", "trimmed", "generated", "rejected"):
            self._tokens.labels(kind)
        for source in sources:
            self._counts.labels(source)
            self._prompt_error.labels(source)
        for backend in backends:
            self.prepare_backend(backend)

    def prepare_backend(self, backend: str) -> None:
        """Start a backend's series at 0."""
        self._scrape_failures.labels(backend)
        self._reroutes.labels(backend)
        for tier in Tier:
            self._transitions.labels(backend, int(tier))

    def forget_backend(self, backend: str) -> None:
        """End the series of a backend that is gone."""
        for counter in (self._scrape_failures, self._reroutes, self._transitions):
            counter.remove_by_labels({"backend": backend})

    def prepare_discovery(self, backends: Sequence[str]) -> None:
        """The same for backends whose name is looked up."""
        for backend in backends:
            self._discovery_failures.labels(backend)
            self._discovered.labels(backend)

    def decision(self, event: DecisionEvent) -> None:
        """Count one decision, once a request. One that was only reported moves no tokens but those that passed."""
        if event.moved:
            return
        reason, mode = event.reason.value if event.reason else "", event.mode.value
        self._requests.labels(event.route, event.outcome.value, int(event.tier), reason, mode).inc()
        tenant = event.tenant if event.tenant in self.tenants else OTHER
        self._callers.labels(tenant, event.priority, event.outcome.value, mode).inc()
        enforced = event.mode is Mode.ENFORCE
        if event.outcome is Outcome.REJECTED and enforced:
            self._tokens.labels("rejected").inc(event.prompt_tokens + event.requested_tokens)
            if event.retry_after_seconds is not None:
                self._retry_after.observe(event.retry_after_seconds)
        elif event.outcome is not Outcome.FAILED:
            self._tokens.labels("prompt").inc(event.prompt_tokens)
            self._tokens.labels("requested").inc(event.requested_tokens)
            self._tokens.labels("trimmed").inc(event.trimmed_tokens if enforced else 0)

    def end(self, event: EndEvent) -> None:
        """Count how an admitted request ended."""
        self._ends.labels(event.route, event.end.value).inc()
        self._upstream.observe(event.seconds)
        if event.first_byte_seconds is not None:
            self._first_byte.observe(event.first_byte_seconds)
        if event.generated_tokens:
            self._tokens.labels("generated").inc(event.generated_tokens)
        if event.prompt_tokens is not None:
            error = abs(event.prompt_tokens - event.predicted_prompt_tokens)
            self._prompt_error.labels(event.count_source).observe(error)

    def tier_change(self, change: TierChange) -> None:
        """Count a change by the tier it led to."""
        self._transitions.labels(change.backend, int(change.after)).inc()

    def scrape_failed(self, backend: str) -> None:
        """Count a scrape that gave no gauge."""
        self._scrape_failures.labels(backend).inc()

    def rerouted(self, backend: str) -> None:
        """Count a request that went elsewhere because no connection to this backend could be made."""
        self._reroutes.labels(backend).inc()

    def discovered(self, backend: str, count: int) -> None:
        """Note how many addresses are in use behind a name."""
        self._discovered.labels(backend).set(count)

    def discovery_failed(self, backend: str) -> None:
        """Count a look-up that gave no addresses."""
        self._discovery_failures.labels(backend).inc()

    def counted(self, source: str, seconds: float) -> None:
        """Note who counted a prompt and how long it took."""
        self._counts.labels(source).inc()
        self._tokenize.observe(seconds)

    def decided(self, seconds: float) -> None:
        """Note how long a decision took."""
        self._decision.observe(seconds)

    def waited(self, end: WaitEnd, seconds: float) -> None:
        """Note how long a request waited for blocks, and how that ended."""
        self._waits.labels(end.value).observe(seconds)

    def watch_waiting(self, count: Callable[[], int]) -> None:
        """Ask this, at every scrape, how many requests wait."""
        self._waiting.set_function(count)


class PoolCollector(Collector):
    """Reads every backend's state at the moment of a scrape. What is unknown has no sample."""

    def __init__(
        self,
        pool: Pool,
        now: Callable[[], float],
        tenants: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        self._pool = pool
        self._now = now
        self._tenants = tenants

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
            self._tenant_blocks(),
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
        known = self._tenants()
        for backend in self._pool.backends:
            blocks = dict.fromkeys((*sorted(known), OTHER), 0)
            for tenant, tally in backend.ledger.tenants.items():
                blocks[tenant if tenant in known else OTHER] += tally.reserved_blocks
            for tenant, held in blocks.items():
                family.add_metric((backend.name, tenant), held)
        return family

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
