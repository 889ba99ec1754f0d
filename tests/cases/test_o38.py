"""O-38: dashboards with "No data"."""

import json
import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from grafana.generate import FILE
from grafana.reading import choices, filled, panels, read
from tests.grafana.promql import reads
from tests.kit.guard import guarding
from tests.kit.stub import Stub, exposition, running_stub


@pytest.mark.anyio
async def test_every_metric_of_the_dashboard_is_exported() -> None:
    """After one request that was served, one that was trimmed and one that was refused, each is on kvguard's page."""
    async with running_stub(Stub(page=exposition(0.1))) as stub, guarding(stub) as guard:
        statuses = []
        for ratio in (0.1, 0.75, 0.97):
            stub.page = exposition(ratio)
            await guard.scrape()
            statuses.append((await guard.complete([1] * 16, max_tokens=256)).status_code)
        page = (await guard.admin.get("/metrics")).text
    assert statuses == [200, 200, 503]
    families = {family.name for family in text_string_to_metric_families(page)}
    board = read(FILE)
    asked = [filled(target["expr"], choices(board)) for panel in panels(board) for target in panel["targets"]]
    named = {each.metric for expression in asked for each in reads(expression) if each.metric.startswith("kvguard_")}
    assert len(named) > 40
    assert {re.sub("_(total|bucket|count|sum)$", "", name) for name in named} - families == set()


def test_no_datasource_is_named() -> None:
    """Nothing in the file holds for one Grafana only."""
    text = FILE.read_text()
    uids = set(re.findall(r'"uid": "([^"]*)"', text))
    assert uids == {"kvguard", "${datasource}"}
    chosen = next(each for each in json.loads(text)["templating"]["list"] if each["type"] == "datasource")
    assert chosen["current"] == {}
