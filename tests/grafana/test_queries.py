"""Every expression of the dashboard is PromQL that asks for what there is, and for counters as counters."""

import re
from dataclasses import dataclass
from typing import Any

import pytest

from docs.metric_catalog import CATALOG
from docs.metrics_page import every_metric
from grafana.generate import FILE
from grafana.reading import choices, filled, panels, read
from tests.grafana.promql import Read, reads

BOARD = read(FILE)
OURS = {row.name: row for row in every_metric()}
# TGI names counters without an ending.
COUNTER = re.compile(r"_(total|bucket|count|sum)$|^tgi_request_(count|success)$")
# Backends as they are configured: of a name, not of its addresses, which are what `$backend` offers.
OF_NAMES = {"kvguard_discovered_backends", "kvguard_discovery_failures_total"}


@dataclass(frozen=True)
class Asked:
    """An expression of a panel, as it is written and with the variables put in."""

    panel: str
    written: str
    filled: str

    def __str__(self) -> str:
        return self.panel


def _asked() -> list[Asked]:
    values = choices(BOARD)
    targets = [(panel["title"], target["expr"]) for panel in panels(BOARD) for target in panel["targets"]]
    targets += [(each["name"], each["expr"]) for each in BOARD["annotations"]["list"]]
    return [Asked(title, written, filled(written, values)) for title, written in targets]


ASKED = _asked()


def _base(selector: Read) -> str:
    return re.sub("_(bucket|count|sum)$", "", selector.metric)


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_counters_are_read_as_rates(asked: Asked) -> None:
    """A counter alone says nothing, and the rate of what is no counter neither."""
    for each in reads(asked.filled):
        innermost = each.functions[0] if each.functions else ""
        assert (innermost in ("rate", "increase")) == bool(COUNTER.search(each.metric)), each


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_ranges_follow_the_scrape_interval(asked: Asked) -> None:
    """No range is fixed, or a site that scrapes more slowly would see nothing."""
    ranges = re.findall(r"}\[([^\]]*)\]", asked.written)
    rates = [each for each in reads(asked.filled) if each.functions[:1] in (("rate",), ("increase",))]
    assert ranges.count("$__rate_interval") == len(rates)
    assert set(ranges) <= {"$__rate_interval", "$__range"}


@pytest.mark.parametrize("asked", [asked for asked in ASKED if "ALERTS" not in asked.written], ids=str)
def test_only_what_was_chosen_is_read(asked: Asked) -> None:
    """Every series is narrowed down to the jobs and instances chosen, of kvguard or of engines, and to the backends."""
    for selector in re.findall(r"([\w:]+){([^}]*)}", asked.written):
        metric, matchers = selector
        engine = "" if metric.startswith("kvguard_") or metric == "up" else "engine_"
        assert f'job=~"${engine}job", instance=~"${engine}instance"' in matchers
        labels = OURS[metric].labels if metric in OURS else ()
        assert ('backend=~"$backend"' in matchers) == ("backend" in labels and metric not in OF_NAMES)


def _of_ours() -> list[Any]:
    found = {f"{each.metric}{dict(each.matchers)}": each for asked in ASKED for each in reads(asked.filled)}
    return [pytest.param(each, id=name) for name, each in found.items() if name.startswith("kvguard_")]


@pytest.mark.parametrize("selector", _of_ours())
def test_metrics_labels_and_values_exist(selector: Read) -> None:
    """kvguard exports each metric, with each label, and each value it is held against is one it can have."""
    row = OURS[_base(selector)]
    assert (row.kind == "histogram") == (_base(selector) != selector.metric)
    for label, matcher in selector.matchers.items():
        if label in ("job", "instance", "le"):
            continue
        assert label in row.labels
        values = CATALOG[row.name].labels.get(label)
        if values is not None:
            assert set(matcher.lstrip("=!~").split("|")) <= set(values)


def test_every_metric_is_on_the_dashboard() -> None:
    """What kvguard exports can be seen."""
    shown = {_base(each) for asked in ASKED for each in reads(asked.filled)}
    assert OURS.keys() - shown == set()


def test_an_unknown_variable_is_a_fault() -> None:
    """A query cannot be sent with a hole in it."""
    with pytest.raises(KeyError):
        filled("up{job=~'$nobody'}", choices(BOARD))


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [("sum(", "unclosed"), ("rate(x)", "matrix"), ("x{", "inside braces"), ("sum by (le (x)", "unclosed")],
)
def test_what_is_not_promql_is_a_fault(wrong: str, fault: str) -> None:
    """The parser that looks at the queries is one that finds faults."""
    with pytest.raises(ValueError, match=fault):
        reads(wrong)
