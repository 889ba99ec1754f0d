"""One OpenTelemetry span for each request that generates: what was asked, what was decided, how it ended.

Needs the extra `otel`. Where spans go and which are sampled is read by the SDK from the OTEL_ variables. Nothing of a
prompt or an answer becomes an attribute, and no text of an exception, which may quote one.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode, format_trace_id, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from kvguard.telemetry.events import DecisionEvent, End, EndEvent, Outcome

FLUSH_SECONDS: Final = 5.0
MAX_MODEL_CHARACTERS: Final = 256
_HEADERS: Final = (b"traceparent", b"tracestate")
_OPERATIONS: Final = {"/v1/completions": "text_completion", "/v1/embeddings": "embeddings"}
_CONTEXT: Final = TraceContextTextMapPropagator()


def exporting() -> TracerProvider:
    """Batches over OTLP/HTTP in a thread of the SDK's; full queues drop spans, and no request waits."""
    named = Resource({"service.name": "kvguard"}).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=named, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


class Traces:
    """Opens the span of a request, and writes what is reported into the one that is open."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("kvguard")

    @contextlib.contextmanager
    def serving(
        self, route: str, headers: list[tuple[bytes, bytes]], status: Callable[[], int | None]
    ) -> Iterator[tuple[str, list[tuple[bytes, bytes]]]]:
        """A span around a request: its trace id, and the headers that make the engine's span its child."""
        came = {name.decode(): value.decode("latin-1") for name, value in headers if name in _HEADERS}
        with self._tracer.start_as_current_span(
            f"POST {route}",
            context=_CONTEXT.extract(came),
            kind=SpanKind.SERVER,
            attributes={
                "http.request.method": "POST",
                "http.route": route,
                "gen_ai.operation.name": _OPERATIONS.get(route, "chat" if "chat" in route else "generate_content"),
            },
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            carried: dict[str, str] = {}
            _CONTEXT.inject(carried)
            kept = [(name, value) for name, value in headers if name not in _HEADERS]
            trace_id = format_trace_id(span.get_span_context().trace_id)
            try:
                yield trace_id, [*kept, *((name.encode(), value.encode("latin-1")) for name, value in carried.items())]
            finally:
                answered = status()
                if answered is not None:
                    span.set_attribute("http.response.status_code", answered)
                    if answered >= 500:
                        span.set_status(Status(StatusCode.ERROR))

    def read(self, model: str, *, stream: bool) -> None:
        """The request's body was read."""
        _set({"gen_ai.request.model": model[:MAX_MODEL_CHARACTERS], "gen_ai.request.stream": stream})

    def decision(self, event: DecisionEvent) -> None:
        """A trim and a refusal are events of the span as well: in its middle, and when they were."""
        ratios = event.ratios
        _set(
            {
                "kvguard.request_id": event.request_id,
                "kvguard.outcome": event.outcome.value,
                "kvguard.tier": int(event.tier),
                "kvguard.reason": event.reason.value if event.reason else None,
                "kvguard.mode": event.mode.value,
                "kvguard.backend": event.backend or None,
                "kvguard.predicted_blocks": event.blocks or None,
                "kvguard.trimmed_tokens": event.trimmed_tokens or None,
                "kvguard.projected_ratio": ratios.projected if ratios else None,
                "kvguard.peak_ratio": ratios.peak if ratios else None,
                "kvguard.retry_after_seconds": event.retry_after_seconds,
                "gen_ai.request.max_tokens": event.requested_tokens or None,
            }
        )
        if event.outcome is Outcome.DEGRADED:
            get_current_span().add_event("kvguard.trim", {"kvguard.changes": event.changes})
        elif event.outcome is Outcome.REJECTED:
            reason = event.reason.value if event.reason else ""
            get_current_span().add_event("kvguard.refusal", {"kvguard.reason": reason})

    def end(self, event: EndEvent) -> None:
        """What the engine said it used. One that broke off makes the span an error, whatever its status was."""
        _set(
            {
                "kvguard.end": event.end.value,
                "kvguard.upstream_seconds": event.seconds,
                "gen_ai.response.time_to_first_chunk": event.first_byte_seconds,
                "gen_ai.usage.input_tokens": event.prompt_tokens,
                "gen_ai.usage.output_tokens": event.generated_tokens,
            }
        )
        if event.end is End.UPSTREAM_ERROR:
            get_current_span().set_status(Status(StatusCode.ERROR))

    async def close(self) -> None:
        """Send what is left, for a moment at most: a thread that hangs on its collector is left behind."""
        last = threading.Thread(target=self._provider.shutdown, daemon=True)
        last.start()
        await asyncio.to_thread(last.join, FLUSH_SECONDS)


def _set(attributes: Mapping[str, AttributeValue | None]) -> None:
    known = {name: value for name, value in attributes.items() if value is not None}
    get_current_span().set_attributes(known)
