"""One span for each request that generates, between the client's and the engine's."""

import contextlib
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from kvguard.errors import SettingsError
from kvguard.telemetry.traces import Traces
from kvguard.trial import find_faults
from tests.kit.guard import Guard, guarding, settings_for
from tests.kit.stub import Stub, exposition, running_stub

pytestmark = pytest.mark.anyio

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADERS = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}
SECRET = "the patient is called Ada"


def traced(guard: Guard) -> InMemorySpanExporter:
    """Let `guard` write spans, into memory."""
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    guard.service.reporter.traces = Traces(provider)
    return exporter


def attributes(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


async def test_the_span_is_the_client_s_child_and_the_engine_s_parent() -> None:
    """And its trace is the one in the log, its attributes tell request, decision and end, and nothing of the prompt."""
    async with running_stub(Stub(page=exposition(0.1))) as stub, guarding(stub) as guard:
        exporter = traced(guard)
        await guard.complete(SECRET, max_tokens=5, headers=HEADERS)
        (span,) = exporter.get_finished_spans()
        sent = dict(stub.hits[0].headers)
        said = [line.get("trace_id") for line in guard.logs if line["event"] in ("decision", "end")]
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == PARENT
    assert sent["traceparent"] == f"00-{TRACE}-{span.context.span_id:016x}-01"
    assert sent["tracestate"] == "vendor=1"
    assert set(said) == {TRACE}
    told = attributes(span)
    assert (span.name, span.kind) == ("POST /v1/completions", SpanKind.SERVER)
    expected = {"gen_ai.operation.name": "text_completion", "gen_ai.request.model": "tiny", "kvguard.tier": 0}
    expected |= {"kvguard.outcome": "admitted", "kvguard.end": "complete", "http.response.status_code": 200}
    assert told.items() >= expected.items()
    assert SECRET not in span.to_json()


async def test_a_refusal_is_an_event_and_an_error() -> None:
    """Of a request without a trace, which gets one."""
    async with running_stub(Stub(page=exposition(0.99))) as stub, guarding(stub) as guard:
        exporter = traced(guard)
        assert (await guard.complete(SECRET)).status_code == 503
    (span,) = exporter.get_finished_spans()
    assert [event.name for event in span.events] == ["kvguard.refusal"]
    assert attributes(span)["kvguard.reason"] == "saturated"
    assert not span.status.is_ok
    assert SECRET not in span.to_json()


async def test_a_trim_is_an_event() -> None:
    """With what was changed."""
    async with running_stub(Stub(page=exposition(0.75))) as stub, guarding(stub) as guard:
        exporter = traced(guard)
        await guard.complete(SECRET, max_tokens=512)
    (span,) = exporter.get_finished_spans()
    (event,) = span.events
    assert (event.name, dict(event.attributes or {})) == (
        "kvguard.trim",
        {"kvguard.changes": ("max_tokens=512->256",)},
    )


@contextlib.contextmanager
def collector(status: int) -> Iterator[tuple[str, list[bytes]]]:
    """An OTLP/HTTP receiver on loopback that answers everything with `status`."""
    bodies: list[bytes] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", bodies
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("status", [200, 400])
async def test_what_is_left_is_sent_at_the_end(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uncompressed, as protobuf, under kvguard's name; a collector that refuses it costs no request anything."""
    with collector(status) as (url, bodies):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        stub = Stub(page=exposition(0.1))
        async with running_stub(stub), guarding(stub, tracing={"enabled": True}) as guard:
            assert (await guard.complete(SECRET)).status_code == 200
    (body,) = bodies
    (resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    named = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert named["service.name"] == "kvguard"
    assert [span.name for span in resource.scope_spans[0].spans] == ["POST /v1/completions"]
    assert SECRET.encode() not in body


async def test_without_the_extra_it_is_a_fault_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """That names what to install."""
    monkeypatch.delitem(sys.modules, "kvguard.telemetry.traces")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    async with running_stub(Stub()) as stub:
        with pytest.raises(SettingsError, match=r"kvguard\[otel\]"):
            find_faults(settings_for(stub, tracing={"enabled": True}))
