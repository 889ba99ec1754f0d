"""A real Prometheus reads kvguard."""

from pathlib import Path

from tests.monitoring.overload import ask
from tests.monitoring.process import eventually
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
