"""One scrape of an engine, as values."""

import pytest

from kvguard.admission.usage import EngineUsage, UsageSample


def test_a_page_that_names_no_engine_is_an_empty_sample() -> None:
    """What was not there is None or empty, never a number."""
    assert UsageSample() == UsageSample(engines=())
    usage = EngineUsage(engine="0")
    assert (usage.queue, UsageSample(engines=(usage,)).queue, UsageSample().queue) == (None,) * 3
    assert (usage.used_ratio, usage.waiting, usage.waiting_for_capacity, usage.preemptions_total) == (None,) * 4


@pytest.mark.parametrize(
    ("engines", "queue"),
    [
        ([{"waiting": 3}], 3),
        ([{"waiting": 3, "waiting_for_capacity": 0}], 0),
        ([{"waiting_for_capacity": 1}], 1),
        ([{"waiting": 3}, {"waiting": 5, "waiting_for_capacity": 2}, {}], 5),
    ],
)
def test_the_queue_is_what_waits_for_blocks(engines: list[dict[str, int]], queue: int) -> None:
    """Over all engines that say; all that wait where one does not say for what."""
    sample = UsageSample(engines=tuple(EngineUsage(engine=str(n), **fields) for n, fields in enumerate(engines)))
    assert sample.queue == queue
