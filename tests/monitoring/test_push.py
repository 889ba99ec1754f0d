"""Alerts that kvguard sends itself reach a real Alertmanager, and through it the pager, without a Prometheus."""

from pathlib import Path

import yaml

from tests.deploy.rules import alerts
from tests.monitoring.alertmanager import running_alertmanager, running_inbox
from tests.monitoring.overload import overload
from tests.monitoring.process import eventually
from tests.vllm.kvguard_process import kvguard_process


def test_an_overload_is_told_without_prometheus(tmp_path: Path) -> None:
    """Under the name, the severity and the runbook of the rule that Prometheus would go by."""
    with running_inbox() as inbox, running_alertmanager(tmp_path, webhook=inbox.url) as alertmanager:
        config = tmp_path / "kvguard.yaml"
        settings = {"alertmanager_url": f"http://{alertmanager}", "instance": "here"}
        config.write_text(yaml.safe_dump({"backends": [{"url": "sim://"}], "alerts": settings}))
        with (
            kvguard_process(None, tmp_path / "kvguard.log", config=config) as kvguard,
            overload(kvguard.url),
        ):
            page = eventually(lambda: inbox.firing("KvguardTierReject"), seconds=30.0, what="the page for tier 3")
    rule = alerts()["KvguardTierReject"]
    assert page["labels"] == {
        "alertname": "KvguardTierReject",
        "backend": "sim",
        "instance": "here",
        "severity": rule["labels"]["severity"],
    }
    assert page["annotations"]["runbook_url"] == rule["annotations"]["runbook_url"]
