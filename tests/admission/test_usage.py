"""One scrape of an engine, as values."""

import pytest

from kvguard.admission.usage import EngineUsage, UsageSample


@pytest.mark.parametrize(
    ("ratio", "capacity", "blocks"),
    [(0.5, 100, 50.0), (0.0, 100, 0.0), (1.0, 100, 100.0), (None, 100, None), (0.5, None, None), (None, None, None)],
)
def test_used_blocks_need_gauge_and_capacity(ratio: float | None, capacity: int | None, blocks: float | None) -> None:
    """An idle engine holds nothing; an engine that did not say so is unknown, never zero."""
    assert EngineUsage(engine="0", used_ratio=ratio, capacity_blocks=capacity).used_blocks == blocks


def test_a_page_that_names_no_engine_is_an_empty_sample() -> None:
    """What was not there is None or empty, never a number."""
    assert UsageSample() == UsageSample(engines=())
    usage = EngineUsage(engine="0")
    assert (usage.used_ratio, usage.waiting, usage.waiting_for_capacity, usage.preemptions_total) == (None,) * 4
