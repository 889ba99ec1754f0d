"""A real Prometheus reads kvguard."""

import subprocess
from pathlib import Path

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
