"""One scrape of an engine, as values."""

from kvguard.admission.usage import EngineUsage, UsageSample


def test_a_page_that_names_no_engine_is_an_empty_sample() -> None:
    """What was not there is None or empty, never a number."""
    assert UsageSample() == UsageSample(engines=())
    usage = EngineUsage(engine="0")
    assert (usage.used_ratio, usage.waiting, usage.waiting_for_capacity, usage.preemptions_total) == (None,) * 4
