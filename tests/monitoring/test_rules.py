"""Prometheus' and Alertmanager's own tools on what `deploy/prometheus/` holds."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.rules import PROMETHEUS, RULES, alerts
from tests.monitoring.alert_cases import CASES, AlertCase, one, tokens
from tests.monitoring.process import program


def checked(*command: str) -> str:
    """What the command prints. Fails with it when the command does."""
    ran = subprocess.run(command, cwd=PROMETHEUS, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def try_rules(test: dict[str, Any], directory: Path) -> None:
    """Run one test of the rules."""
    path = directory / "test.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "15s", "tests": [test]}))
    checked(program("promtool"), "test", "rules", str(path))


@pytest.mark.parametrize(
    "command",
    [
        ("promtool", "check", "rules", "--lint=all", "--lint-fatal", RULES.name),
        ("promtool", "check", "config", "prometheus.yml"),
        ("amtool", "check-config", "alertmanager.yml"),
    ],
    ids=lambda command: command[-1],
)
def test_the_tools_find_nothing_wrong(command: tuple[str, ...]) -> None:
    """Rules with every lint on, and both example configurations."""
    assert "SUCCESS" in checked(program(command[0]), *command[1:])


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.alert}: {case.about}")
def test_an_alert_fires_when_it_should_and_says_what_it_should(case: AlertCase, tmp_path: Path) -> None:
    """With exactly these labels and this text, or not at all."""
    rule = alerts()[case.alert]
    expected = []
    if case.labels is not None:
        annotations = rule["annotations"] | {"description": case.says}
        expected = [{"exp_labels": {**case.labels, **rule["labels"]}, "exp_annotations": annotations}]
    test = {
        "interval": case.interval,
        "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
        "alert_rule_test": [{"eval_time": case.at, "alertname": case.alert, "exp_alerts": expected}],
    }
    try_rules(test, tmp_path)


def test_demand_in_tokens_adds_up(tmp_path: Path) -> None:
    """Offered is all that was asked for; admitted, trimmed and refused are its parts, and nothing is clipped at 1."""
    seen = {"prompt": "0+300x40", "requested": "0+600x40", "trimmed": "0+150x40", "rejected": "0+1500x40"}
    series = {tokens(kind): values for kind, values in seen.items()}
    for backend, replica, ratio in (("b", "a", "1.5"), ("b", "z", "1.25"), ("c", "a", "2")):
        series[one("kvguard_demand_ratio", backend=backend, instance=replica)] = f"{ratio}x40"
    expected = {
        "job:kvguard_tokens_offered:rate5m": 160,
        "job:kvguard_tokens_admitted:rate5m": 50,
        "job:kvguard_tokens_trimmed:rate5m": 10,
        "job:kvguard_tokens_refused:rate5m": 100,
        "job:kvguard_demand_ratio:sum": 3.5,
    }
    labels = '{job="kvguard", namespace="llm"}'
    test = {
        "interval": "15s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {"expr": name, "eval_time": "10m", "exp_samples": [{"labels": name + labels, "value": value}]}
            for name, value in expected.items()
        ],
    }
    try_rules(test, tmp_path)
