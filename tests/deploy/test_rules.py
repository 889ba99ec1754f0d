"""The rules name what there is, and every alert says what to do and is tried both ways."""

import re
from collections.abc import Iterator

import pytest

from docs.metric_catalog import CATALOG
from docs.metrics_page import every_metric
from tests.deploy.rules import alerts, rules
from tests.monitoring.alert_cases import CASES

METRIC = re.compile(r"(?<![:\w])(kvguard_[a-z0-9_]+)(?:\{([^}]*)\})?")
LABEL = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
RECORDED = re.compile(r"\b[a-z_]+:kvguard_[a-z_]+:[a-z0-9_]+\b")
RUNBOOK = "https://github.com/kvguard/kvguard/blob/main/docs/runbook.md"
# What Prometheus and Kubernetes add to every series.
ADDED = {"namespace", "job", "instance", "le"}


def selectors() -> Iterator[tuple[str, str]]:
    """Every metric the rules name, and the labels it is chosen by."""
    for rule in rules():
        yield from METRIC.findall(RECORDED.sub("", rule["expr"]))


def exported() -> dict[str, set[str]]:
    """The labels of every series a metric has."""
    ends = {"histogram": ("_bucket", "_count", "_sum")}
    return {f"{row.name}{end}": {*row.labels, *ADDED} for row in every_metric() for end in ends.get(row.kind, ("",))}


def test_every_metric_and_label_in_the_rules_exists() -> None:
    """No rule waits for a series, or for a value of a label, that kvguard never exports."""
    known = exported()
    for metric, inside in selectors():
        assert metric in known
        closed = CATALOG.get(metric, CATALOG.get(metric.removesuffix("_bucket"))).labels
        for label, _, value in LABEL.findall(inside):
            assert label in known[metric], (metric, label)
            assert set(value.split("|")) <= set(closed.get(label, (value,))), (metric, label, value)


def test_every_recorded_series_that_is_used_is_recorded() -> None:
    """Under the name it is asked for by, and no two rules record the same."""
    recorded = [rule["record"] for rule in rules() if "record" in rule]
    assert len(recorded) == len(set(recorded))
    assert {name for rule in rules() for name in RECORDED.findall(rule["expr"])} <= set(recorded)


@pytest.mark.parametrize("name", alerts())
def test_every_alert_says_how_bad_it_is_and_where_help_is(name: str) -> None:
    """One of three severities, a fixed sentence, the details, and its section of the runbook."""
    rule = alerts()[name]
    assert name.startswith("Kvguard")
    assert rule["labels"].keys() == {"severity"}
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    notes = rule["annotations"]
    assert notes.keys() == {"summary", "description", "runbook_url"}
    assert notes["runbook_url"] == f"{RUNBOOK}#{name.lower()}"
    assert "{{" not in notes["summary"]


@pytest.mark.parametrize("name", alerts())
def test_every_alert_is_tried_both_ways(name: str) -> None:
    """There is a case in which it fires and one in which it does not."""
    assert {case.fires for case in CASES if case.alert == name} == {True, False}


def test_every_case_is_of_an_alert_there_is() -> None:
    """Names in the cases are names in the rules."""
    assert {case.alert for case in CASES} <= alerts().keys()
