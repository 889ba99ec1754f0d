"""An overload of a real kvguard becomes an alert at a real Alertmanager, by the rules as they are shipped."""
# ruff: noqa: TID251 - measures how long it really takes

import time
from pathlib import Path

from tests.deploy.rules import RULES, alerts
from tests.monitoring.alertmanager import running_alertmanager, running_inbox
from tests.monitoring.overload import ask, overload
from tests.monitoring.process import eventually
from tests.monitoring.prometheus import running_prometheus
from tests.vllm.kvguard_process import KvguardProcess

PAGED_WITHIN_SECONDS = 30.0


def test_an_overload_pages_within_half_a_minute(kvguard: KvguardProcess, tmp_path: Path) -> None:
    """Served requests are no alert; once clients outgrow the cache, the pager is told what, where, and what to do."""
    address = f"127.0.0.1:{kvguard.admin_port}"
    with (
        running_inbox() as inbox,
        running_alertmanager(tmp_path, webhook=inbox.url) as alertmanager,
        running_prometheus(
            tmp_path, targets={"kvguard": [address]}, rules=[RULES], alertmanager=alertmanager
        ) as prometheus,
    ):
        assert ask(kvguard.url, max_tokens=8) == 200
        calm = 'kvguard_tier == 0 and on () sum(kvguard_requests_total{outcome="admitted"}) == 1'
        eventually(lambda: prometheus.query(calm), seconds=20, what="a served request is seen, in tier 0")
        assert not prometheus.alerts()
        began = time.monotonic()
        with overload(kvguard.url):
            page = eventually(
                lambda: inbox.firing("KvguardTierReject"), seconds=PAGED_WITHIN_SECONDS, what="the page for tier 3"
            )
        assert time.monotonic() - began < PAGED_WITHIN_SECONDS
        refused = prometheus.query('sum(kvguard_requests_total{outcome="rejected", reason="saturated"})')
    rule = alerts()["KvguardTierReject"]
    assert page["labels"] == {
        "alertname": "KvguardTierReject",
        "backend": "sim",
        "job": "kvguard",
        "severity": "critical",
    }
    assert page["annotations"]["runbook_url"] == rule["annotations"]["runbook_url"]
    assert page["annotations"]["description"].startswith("Backend sim of kvguard reached tier 3")
    assert refused[0].value > 0
