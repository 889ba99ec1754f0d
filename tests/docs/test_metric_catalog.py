"""What the page of metrics tells is true of what is exported."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from docs.metric_catalog import CATALOG, CONFIGURED
from docs.metrics_page import MetricRow, every_metric
from tests.kit.guard import guarding
from tests.kit.stub import Stub, exposition, running_stub

ROWS = tuple(every_metric())


def test_every_metric_says_when_to_look() -> None:
    """Each has its entry, and each entry its metric."""
    assert {row.name for row in ROWS} == CATALOG.keys()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_label_says_what_it_may_be(row: MetricRow) -> None:
    """Its values are listed, or come from the settings or the engine; and none is listed that there is not."""
    closed = CATALOG[row.name].labels
    assert set(row.labels) <= closed.keys() | CONFIGURED.keys()
    assert closed.keys() <= set(row.labels)


@pytest.mark.anyio
async def test_labels_have_no_other_values_than_those_listed() -> None:
    """After requests that were served, trimmed, refused, faulty and of backends that are gone."""
    async with running_stub(Stub(page=exposition(0.1))) as stub, guarding(stub) as guard:
        for ratio in (0.1, 0.75, 0.97):
            stub.page = exposition(ratio)
            await guard.scrape()
            await guard.complete([1] * 16, max_tokens=256)
        await guard.complete([], max_tokens=-1)
        page = (await guard.admin.get("/metrics")).text
    names = {row.name: CATALOG[row.name].labels for row in ROWS}
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    checked = 0
    for sample in samples:
        for label, values in names.get(sample.name, {}).items():
            assert sample.labels[label] in values, sample
            checked += 1
    assert checked > len(names)
