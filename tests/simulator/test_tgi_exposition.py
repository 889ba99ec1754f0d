import re
from collections import Counter

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvguard.simulator.engine import SimToken, StepResult
from kvguard.simulator.tgi_config import TgiSimConfig
from kvguard.simulator.tgi_engine import TgiStats
from kvguard.simulator.tgi_exposition import PREFILL, TgiMeters, Timing, render
from tests.kit.recordings import recorded

CONFIG = TgiSimConfig(max_batch_total_tokens=35_000, max_total_tokens=32_768, max_batch_prefill_tokens=32_768)


def busy_meters():
    """One of everything the recordings show."""
    meters = TgiMeters()
    token = SimToken(sequence_id=0, position=0)
    meters.count("request_count")
    meters.finished(Timing(queued=0.1, inference=2.0, tokens=20))
    for err in ("overloaded", "validation", "dropped"):
        meters.count("request_failure", err=err)
    meters.step(StepResult(seconds=0.5, admitted=(1, 2), tokens=(token, token)), decoded=True)
    return meters


def stats_of(**values):
    return TgiStats(
        input_lengths=Counter({6: 2}), max_new_tokens=Counter({20: 2}), generated=Counter({20: 1, 40: 1}), **values
    )


def lines_without_values(text):
    """Series, help and type lines: what a page is made of but for its numbers."""
    return {line if line.startswith("#") else line.rsplit(" ", 1)[0] for line in text.splitlines() if line}


def values(text):
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.parametrize(
    ("name", "gauges"),
    [
        ("metrics_v3_busy.txt", {"running": 12, "waiting": 9, "reserved_tokens": 31_250}),
        ("metrics_v3_full_queue.txt", {"running": 13, "waiting": 110, "reserved_tokens": 34_711}),
        ("metrics_v3_idle_after_traffic.txt", {}),
    ],
)
def test_a_page_has_what_the_recording_has(name, gauges):
    """Series, labels, bounds, help and types are the same, and so are the gauges."""
    page, reference = render(CONFIG, busy_meters(), stats_of(**gauges), begun=True), recorded(name).decode()
    assert lines_without_values(page) == lines_without_values(reference)
    for gauge in ("tgi_queue_size", "tgi_batch_current_size", "tgi_batch_current_max_tokens"):
        assert values(page)[(gauge,)] == values(reference)[(gauge,)]


def test_an_excerpt_is_part_of_the_page():
    """Every line of it but the numbers is there."""
    page = render(CONFIG, busy_meters(), stats_of(), begun=True)
    assert lines_without_values(recorded("metrics_v3_busy_excerpt.txt").decode()) <= lines_without_values(page)


def test_a_real_page_is_made_of_the_same():
    """Types and series of a captured server, whose longest prompt is of 511 tokens, are there too."""
    config = TgiSimConfig(max_total_tokens=512)
    page = lines_without_values(render(config, busy_meters(), stats_of(), begun=True))
    captured = lines_without_values(recorded("metrics_v3_real_capture_excerpt.txt").decode())
    assert {line for line in captured if line.startswith("# TYPE")} <= page
    series = {line for line in captured if not line.startswith("#")}
    assert {re.split(r"[{ ]", line)[0] for line in series} <= {re.split(r"[{ ]", line)[0] for line in page}
    assert 'tgi_request_input_length_bucket{le="5.11"}' in page


def test_a_cold_server_has_an_empty_page():
    """It has no series before the first event, not even gauges."""
    page = render(CONFIG, TgiMeters(), TgiStats(), begun=False)
    assert page.encode() == recorded("metrics_v3_cold.txt")


def test_gauges_come_with_the_first_batch():
    """Of a server that has only just begun there are only they."""
    page = render(CONFIG, TgiMeters(), TgiStats(waiting=1), begun=True)
    assert values(page) == {
        ("tgi_queue_size",): 1,
        ("tgi_batch_current_size",): 0,
        ("tgi_batch_current_max_tokens",): 0,
    }


def test_counters_and_sums():
    """A step that prefills beside a running batch counts as both; sums and counts are of all values."""
    page = values(render(CONFIG, busy_meters(), stats_of(), begun=True))
    assert page[("tgi_batch_inference_count_total", "prefill")] == 1
    assert page[("tgi_batch_inference_count_total", "decode")] == 1
    assert page[("tgi_request_generated_tokens_sum",)] == 60
    assert page[("tgi_request_generated_tokens_bucket", "327.68")] == 2
    assert page[("tgi_request_duration_sum",)] == 2.1
    assert page[("tgi_batch_next_size_bucket", "1")] == 0
    assert page[("tgi_batch_next_size_bucket", "2")] == 1
    assert page[("tgi_request_skipped_tokens_count",)] == 2


def test_a_step_without_a_running_batch():
    """The first prefill concatenates nothing and decodes nothing."""
    meters = TgiMeters()
    meters.step(StepResult(seconds=0.5, admitted=(1,)), decoded=False)
    page = render(CONFIG, meters, TgiStats(), begun=True)
    assert "concat" not in page
    assert 'method="decode"' not in page


def test_a_failed_step():
    """It is counted as a call and as a failure, not as a success."""
    meters = TgiMeters()
    meters.failed_step(PREFILL)
    page = values(render(CONFIG, meters, TgiStats(), begun=False))
    assert page == {
        ("tgi_batch_inference_count_total", "prefill"): 1,
        ("tgi_batch_inference_failure_total", "prefill"): 1,
    }


def test_nothing_counted_is_no_series():
    """Zero more is not an event."""
    meters = TgiMeters()
    meters.count("request_failure", 0, err="dropped")
    assert render(CONFIG, meters, TgiStats(), begun=False) == ""
