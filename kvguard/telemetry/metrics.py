"""Prometheus metrics that events move. What is read off the backends at a scrape is in `collector`.

Every label comes from a closed set: backends, engines and routes are configured, the rest are enums.
"""

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from kvguard.admission.reasons import RejectReason
from kvguard.admission.tiers import Tier
from kvguard.pool.backend import TierChange
from kvguard.telemetry.demand import UsualRequest
from kvguard.telemetry.events import DecisionEvent, End, EndEvent, Mode, Outcome, WaitEnd
from kvguard.telemetry.in_force import SettingsMetrics

OTHER = "other"
TRACE_ID_CHARACTERS = 32
TOKEN_KINDS = ("prompt", "requested", "trimmed", "generated", "rejected")
FAST = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
SLOW = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)


class Metrics:
    """Counters and histograms fed by events. Tenants that `settings` do not name are one, `other`; `wall` is the clock
    on the wall. Where an event belongs to a trace, its samples have an exemplar that says which.
    """

    def __init__(self, registry: CollectorRegistry, *, version: str, wall: Callable[[], float]) -> None:
        self.settings = SettingsMetrics(registry, wall)
        self._usual = UsualRequest()
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
        self._lines_dropped = Counter(
            "kvguard_decision_log_dropped", "Lines of the decision log that were lost", registry=registry
        )
        self._alerts_failed = Counter(
            "kvguard_alert_push_failures", "Alert messages their receiver did not take", registry=registry
        )

    def alert_push_failed(self) -> None:
        """Count an alert message that its receiver did not take."""
        self._alerts_failed.inc()

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
        for kind in TOKEN_KINDS:
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
        labels = (event.route, event.outcome.value, int(event.tier), reason, mode)
        self._requests.labels(*labels).inc(exemplar=_exemplar(event.trace_id))
        tenant = event.tenant if event.tenant in self.settings.in_force.tenants else OTHER
        self._callers.labels(tenant, event.priority, event.outcome.value, mode).inc()
        enforced = event.mode is Mode.ENFORCE
        if event.outcome is Outcome.REJECTED and enforced:
            self._tokens.labels("rejected").inc(self._usual.rejected_tokens(event))
            if event.retry_after_seconds is not None:
                self._retry_after.observe(event.retry_after_seconds)
        elif event.outcome is not Outcome.FAILED:
            self._tokens.labels("prompt").inc(event.prompt_tokens)
            self._tokens.labels("requested").inc(event.requested_tokens)
            self._tokens.labels("trimmed").inc(event.trimmed_tokens if enforced else 0)
        self._usual.learn(event)

    def end(self, event: EndEvent) -> None:
        """Count how an admitted request ended."""
        self._ends.labels(event.route, event.end.value).inc()
        exemplar = _exemplar(event.trace_id)
        self._upstream.observe(event.seconds, exemplar)
        if event.first_byte_seconds is not None:
            self._first_byte.observe(event.first_byte_seconds, exemplar)
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


def _exemplar(trace_id: str) -> dict[str, str] | None:
    # Prometheus refuses a page with longer exemplars, so what is no trace id is left out.
    return {"trace_id": trace_id} if len(trace_id) == TRACE_ID_CHARACTERS else None
