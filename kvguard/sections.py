"""Every group of settings: names, defaults, what they mean and what they make. `settings` puts them together."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from kvguard.admission.condition import SignalPolicy
from kvguard.admission.decision import BlindPolicy
from kvguard.admission.footprint import Trait
from kvguard.admission.lengths import LengthPolicy
from kvguard.admission.occupancy import EngineRule, Signal
from kvguard.admission.policy import DegradePolicy, TrimMode
from kvguard.admission.reasons import RejectReason
from kvguard.admission.retry import RetryPolicy
from kvguard.admission.tiers import TierPolicy, TierRule
from kvguard.section import PositiveInt, Ratio, Seconds, SecondsOrZero, Section, Threshold, together
from kvguard.telemetry.decision_log import DecisionLogPolicy

Port = Annotated[int, Field(ge=0, le=65535)]
Status = Annotated[int, Field(ge=400, le=599)]
Signals = Annotated[tuple[Signal, ...], Field(min_length=1)]


class ListenSettings(Section):
    """Where kvguard listens."""

    host: str = "0.0.0.0"  # noqa: S104  a proxy in a pod serves every interface
    """Address of both ports."""
    port: Port = 8080
    """Traffic."""
    admin_port: Port = 9090
    """Metrics, health, readiness. Keep it inside the cluster."""
    prestop_seconds: SecondsOrZero = 5.0
    """How long kvguard goes on as usual after SIGTERM, but not ready, so that load balancers can take it out first; an
    interrupt from a terminal, or a second signal, skips it."""
    drain_seconds: SecondsOrZero = 30.0
    """How long running answers may go on after that, while new requests are refused; a second signal ends them at
    once."""
    ready_without_backend: bool = False
    """Stay ready, once ready, while no backend can be reached: for load balancers that would rather have kvguard's own
    502 than an empty list of pods."""

    @model_validator(mode="after")
    def _apart(self) -> "ListenSettings":
        if self.port == self.admin_port != 0:
            raise together("port and admin_port must differ", "port", "admin_port")
        return self


class TierSettings(Section):
    """Thresholds as shares of KV capacity, and which number each looks at."""

    trim_at: Threshold = 0.70
    """TRIM: answers are shortened."""
    restrict_at: Threshold = 0.85
    """RESTRICT: also one sequence only."""
    reject_at: Threshold = 0.95
    """REJECT: 503 with `Retry-After`."""
    trim_signals: Signals = (Signal.PROJECTED,)
    """The largest of these decides TRIM: observed, projected, reserved, peak."""
    restrict_signals: Signals = (Signal.PROJECTED,)
    """The same for RESTRICT."""
    reject_signals: Signals = (Signal.PROJECTED, Signal.PEAK)
    """The same for REJECT."""
    exit_margin: Ratio = 0.02
    """A tier is left only below its threshold minus this."""
    min_dwell_seconds: SecondsOrZero = 0.0
    """A tier is kept at least this long; at REJECT that refuses everybody meanwhile, so the margin alone is better."""

    @model_validator(mode="after")
    def _rising(self) -> "TierSettings":
        if not self.trim_at < self.restrict_at < self.reject_at:
            raise together("trim_at < restrict_at < reject_at must hold", "trim_at", "restrict_at", "reject_at")
        if self.exit_margin >= self.trim_at:
            text = "exit_margin must be below trim_at, or a tier that was entered is never left"
            raise together(text, "exit_margin", "trim_at")
        return self

    def policy(self) -> TierPolicy:
        """The core's value."""
        return TierPolicy(
            trim=TierRule(enter=self.trim_at, signals=self.trim_signals),
            restrict=TierRule(enter=self.restrict_at, signals=self.restrict_signals),
            reject=TierRule(enter=self.reject_at, signals=self.reject_signals),
            exit_margin=self.exit_margin,
            min_dwell_seconds=self.min_dwell_seconds,
        )


class DegradeSettings(Section):
    """What TRIM and RESTRICT take."""

    mode: TrimMode = TrimMode.STEP
    """How TRIM cuts: `step` all at once, `proportional` from nothing at `trim_at` to all of it at `restrict_at`."""
    trim_factor: Annotated[float, Field(gt=0, le=1)] = 0.5
    """TRIM lowers a cap to this share of itself."""
    max_output_tokens: PositiveInt = 512
    """TRIM lowers a cap to at most this."""
    floor_tokens: PositiveInt = 64
    """No cap is ever lowered below this."""
    trim_tools: bool = False
    """Trim requests with tools too; a cut tool call is useless."""
    trim_structured_output: bool = False
    """Trim requests with `response_format` or a grammar too; cut JSON is useless."""
    reasoning_models: tuple[str, ...] = ()
    """Models that think before they answer; never trimmed, as no request is that asks to think (`thinking`)."""
    collapse_n: bool = False
    """RESTRICT also lowers `n` of plain sampling; clients that index into `choices` break."""
    allow_opt_out: bool = False
    """Honour `x-kvguard-degrade: none`: such a request is refused rather than degraded."""

    @model_validator(mode="after")
    def _floor(self) -> "DegradeSettings":
        if self.floor_tokens > self.max_output_tokens:
            raise together("floor_tokens must not exceed max_output_tokens", "floor_tokens", "max_output_tokens")
        return self

    def policy(self) -> DegradePolicy:
        """The core's value."""
        untrimmed = {Trait.REASONING}
        untrimmed |= set() if self.trim_tools else {Trait.TOOLS}
        untrimmed |= set() if self.trim_structured_output else {Trait.STRUCTURED_OUTPUT}
        return DegradePolicy(
            trim_factor=self.trim_factor,
            max_output_tokens=self.max_output_tokens,
            floor_tokens=self.floor_tokens,
            untrimmed=frozenset(untrimmed),
            collapse_n=self.collapse_n,
            mode=self.mode,
            reasoning_models=frozenset(self.reasoning_models),
            allow_opt_out=self.allow_opt_out,
        )


class RejectSettings(Section):
    """What a refusal looks like."""

    status: dict[RejectReason, Status] = Field(default_factory=dict)
    """HTTP status per reason, over the defaults (saturated 503, too_large 400, body_too_large 413, ...)."""
    retry_min_seconds: Seconds = 1.0
    """Least `Retry-After`."""
    retry_max_seconds: Annotated[Seconds, Field(le=75)] = 30.0
    """Most `Retry-After` before the spread; clients give up on long ones."""
    retry_unknown_seconds: Seconds = 5.0
    """`Retry-After` while nothing tells how fast the cache drains."""
    retry_spread: Ratio = 0.1
    """`Retry-After` is stretched by up to this share; each refused client is told a time of its own as it is."""

    @model_validator(mode="after")
    def _bounds(self) -> "RejectSettings":
        if self.retry_min_seconds > self.retry_max_seconds:
            text = "retry_min_seconds must not exceed retry_max_seconds"
            raise together(text, "retry_min_seconds", "retry_max_seconds")
        return self

    def policy(self) -> RetryPolicy:
        """The core's value."""
        return RetryPolicy(
            min_seconds=self.retry_min_seconds,
            max_seconds=self.retry_max_seconds,
            unknown_seconds=self.retry_unknown_seconds,
            spread=self.retry_spread,
        )


class TelemetrySettings(Section):
    """Reading the engine's gauge."""

    interval_seconds: Seconds = 0.5
    """Pause between scrapes."""
    timeout_seconds: Seconds = 2.0
    """Longest scrape."""
    stale_after_seconds: Seconds = 5.0
    """A gauge older than this is stale."""
    failures_before_unreachable: PositiveInt = 3
    """Refused connections in a row that make a backend unreachable."""
    when_blind: BlindPolicy = BlindPolicy.LEDGER
    """Without a fresh gauge: decide on kvguard's own ledger, let everything pass (open), refuse everything (closed)."""
    queue_floor_ratio: Ratio = 0.85
    """Occupancy counts as at least this while a queue for blocks in the engine lasts over two scrapes."""
    count_shared_once: bool = True
    """Count blocks that requests share through the engine's prefix cache once: where prompts begin alike, and where the
    gauge steadily shows less than the ledger. False counts every sequence in full."""
    engine_rule: EngineRule = EngineRule.WORST
    """How data-parallel engines behind one URL make one number: the worst or the mean."""

    @model_validator(mode="after")
    def _patience(self) -> "TelemetrySettings":
        if self.stale_after_seconds < 2 * self.interval_seconds:
            text = "stale_after_seconds must be at least twice interval_seconds"
            raise together(text, "stale_after_seconds", "interval_seconds")
        return self


class SignalSettings(Section):
    """What the engine shows besides its gauge."""

    stall_seconds: Seconds = 30.0
    """Work that makes no token for this long is a stall, and new requests are refused as `backend_stalled`: an engine
    that froze behind a healthy API server took traffic for 85 minutes. Longer than one prompt may take to compute."""
    probe_seconds: Seconds = 10.0
    """While the engine is stalled, or its gauge says full though nothing runs, one request passes this often to find
    out: a gauge that sticks would keep everybody out for ever."""
    max_preemptions_per_second: Annotated[float, Field(ge=0)] | None = None
    """More preemptions than this count as `telemetry.queue_floor_ratio`: the engine took in more than it can hold and
    computes answers twice, whatever its gauge shows."""
    max_prefill_backlog_tokens: PositiveInt | None = None
    """Most prompt tokens that may wait for their first token on one backend, beyond which requests are refused as
    `saturated`: a burst of long prompts makes everybody's first token late long before the cache is full."""

    def policy(self, *, full_ratio: float) -> SignalPolicy:
        """The core's value; from `full_ratio` on a gauge keeps everybody out."""
        return SignalPolicy(
            stall_seconds=self.stall_seconds,
            probe_seconds=self.probe_seconds,
            max_preemptions_per_second=self.max_preemptions_per_second,
            full_ratio=full_ratio,
        )


class ForecastSettings(Section):
    """Foreseeing how long answers get, from those that ended. Until enough have, a request counts with its cap."""

    quantile: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Share of answers that end within what is forecast; lower admits more and risks preemptions."""
    min_answers: PositiveInt = 30
    """Answers under a class of caps before their lengths are believed."""
    half_life_answers: PositiveInt = 500
    """Answers after which an old one counts half."""
    state_file: Path | None = None
    """File in which learned lengths outlive a restart; lengths only, nothing of any request."""
    state_interval_seconds: Annotated[float, Field(ge=1)] = 60.0
    """Pause between two saves, at least 1; the last one is at the end."""

    def policy(self) -> LengthPolicy:
        """The core's value."""
        return LengthPolicy(
            quantile=self.quantile, min_answers=self.min_answers, half_life_answers=self.half_life_answers
        )


class LimitSettings(Section):
    """Bounds on what one client can make kvguard hold."""

    max_body_bytes: PositiveInt = 16 * 1024 * 1024
    """Largest request body."""
    body_seconds: Seconds = 60.0
    """Longest time a request body may take to arrive."""
    stall_seconds: Seconds = 60.0
    """Longest time a client may read nothing of its answer; then it counts as gone."""


class StreamSettings(Section):
    """What is done to streamed answers on their way."""

    ask_usage: bool = True
    """Ask the engine for the token counts of streams whose clients did not, and take them out again: lengths of answers
    are learned from them. Off, and in shadow mode, such requests are forwarded as they came and teach no lengths."""
    heartbeat_seconds: SecondsOrZero = 0.0
    """After this much silence a comment is sent, before the first event and between two, again and again; 0 sends none.
    A long prompt makes no bytes, and load balancers cut connections that are silent for a minute. Not switched off by
    shadow mode: clients skip comments."""
    first_event_seconds: SecondsOrZero = 30.0
    """TGI answers every stream with 200; how long a status waits for the first event, which tells whether it is true,
    and no longer than `heartbeat_seconds`. 0 passes it on at once, and failures as events."""


class UpstreamSettings(Section):
    """Connections to the backends."""

    connect_timeout_seconds: Seconds = 5.0
    """Longest TCP and TLS set-up."""
    idle_timeout_seconds: SecondsOrZero = 0.0
    """Longest silence of a backend, before and between bytes; 0 waits for ever."""
    keepalive_seconds: Seconds = 4.0
    """Idle connections are dropped after this; keep it below the backend's own limit (vLLM 5 s)."""
    max_connections: Annotated[int, Field(ge=0)] = 0
    """Connections per backend; 0 is no limit of kvguard's own."""
    pool_wait_seconds: Seconds = 1.0
    """Longest wait for one of `max_connections`, then 503 `queue_timeout`."""


class LogSettings(Section):
    """Structured logs on standard output."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Decisions above tier 0 are warnings."""
    format: Literal["json", "console"] = "json"
    """`json`: one object a line, for machines; `console`: `name=value`, for people."""
    sample: Ratio = 0.0
    """Share of the decisions at tier 0 that is logged too; by the request id, the same for every kvguard it passes."""


class TracingSettings(Section):
    """OpenTelemetry spans over OTLP/HTTP; needs the extra `otel`. Where they go and which are sampled is told by the
    standard variables, such as `OTEL_EXPORTER_OTLP_ENDPOINT` and `OTEL_TRACES_SAMPLER`."""

    enabled: bool = False
    """Whether there is a span for each request that generates. Off, a client's trace passes unchanged."""


class DecisionLogSettings(Section):
    """A file of decisions, each with all it rested on, for `kvguard replay`. Sizes and counts only, no content."""

    path: Path | None = None
    """File that lines are appended to; none writes none."""
    sample: Ratio = 1.0
    """Share of requests that are in it, chosen by their ids."""
    max_bytes: PositiveInt = 256 * 1024 * 1024
    """At this size the file becomes `path.1`, over the one before."""

    def policy(self) -> DecisionLogPolicy | None:
        """The writer's value; None without a path."""
        if self.path is None:
            return None
        return DecisionLogPolicy(path=self.path, sample=self.sample, max_bytes=self.max_bytes)
