"""A real Prometheus reads kvguard."""

import subprocess
from pathlib import Path

from prometheus_client import CollectorRegistry, disable_created_metrics, start_http_server

from kvguard.telemetry.events import End, EndEvent
from kvguard.telemetry.metrics import Metrics
from tests.monitoring.overload import ask, overload
from tests.monitoring.process import eventually, program
from tests.monitoring.prometheus import running_prometheus
from tests.vllm.kvguard_process import KvguardProcess


def test_prometheus_stores_what_kvguard_exports(kvguard: KvguardProcess, tmp_path: Path) -> None:
    """Every sample of a page is a series of the job, and a request that was served is counted."""
    assert ask(kvguard.url, max_tokens=8) == 200
    with running_prometheus(tmp_path, targets={"kvguard": [f"127.0.0.1:{kvguard.admin_port}"]}) as prometheus:
        admitted = 'sum(kvguard_requests_total{job="kvguard", outcome="admitted"})'
        eventually(lambda: prometheus.query(f"{admitted} == 1"), seconds=20, what="one request is counted")
        samples = [line for line in kvguard.metrics_text().splitlines() if line.startswith("kvguard_")]
        (stored,) = prometheus.query('count({__name__=~"kvguard_.+"})')
    assert stored.value == len(samples)


def test_the_exposition_has_no_fault_by_promtool(kvguard: KvguardProcess) -> None:
    """Names, units and help texts, after requests that were served and refused."""
    assert ask(kvguard.url, max_tokens=8) == 200
    with overload(kvguard.url):
        eventually(lambda: 'outcome="rejected",reason="saturated"' in refusals(kvguard), seconds=30, what="a refusal")
    ran = subprocess.run(
        [program("promtool"), "check", "metrics"],
        input=kvguard.metrics_text(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout + ran.stderr) == (0, "")


def refusals(kvguard: KvguardProcess) -> str:
    """The series of refused requests that have counted any."""
    lines = kvguard.metrics_text().splitlines()
    return "\n".join(line for line in lines if line.startswith("kvguard_requests_total") and not line.endswith(" 0.0"))


def test_prometheus_keeps_the_trace_of_a_request(tmp_path: Path) -> None:
    """What is exported of a request in a trace is taken over as an exemplar with the id of the trace."""
    disable_created_metrics()
    registry, trace = CollectorRegistry(), "4bf92f3577b34da6a3ce929d0e0e4736"
    metrics = Metrics(registry, version="0", wall=lambda: 0.0)
    metrics.end(
        EndEvent(
            request_id="", route="r", backend="b", end=End.COMPLETE, seconds=1.0, first_byte_seconds=0.1, trace_id=trace
        )
    )
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
    try:
        targets = {"kvguard": [f"127.0.0.1:{server.server_port}"]}
        with running_prometheus(tmp_path, targets=targets) as prometheus:
            kept = eventually(
                lambda: prometheus.exemplars("kvguard_time_to_first_byte_seconds_bucket"),
                seconds=20,
                what="an exemplar is kept",
            )
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert [each["labels"] for series in kept for each in series["exemplars"]] == [{"trace_id": trace}]
