import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvguard.simulator.config import SimConfig
from kvguard.simulator.engine import EngineStats
from kvguard.simulator.exposition import render

from .serving import parsed

STATS = EngineStats(
    usable_blocks=511,
    used_blocks=36,
    running=4,
    waiting=3,
    preemptions=9,
    preemptions_reported=7,
    prompt_tokens=185044,
    generation_tokens=6149,
    prefix_cache_queries=184946,
    prefix_cache_hits=159872,
    finished_stop=9,
    finished_length=377,
)


def test_every_number_has_its_series():
    """A scrape carries the engine's numbers under vLLM's names."""
    assert parsed(render(SimConfig(), STATS, turned_away=5)) == {
        ("vllm:num_requests_running",): 4,
        ("vllm:num_requests_waiting",): 3,
        ("vllm:num_requests_waiting_by_reason", "capacity"): 3,
        ("vllm:num_requests_waiting_by_reason", "deferred"): 0,
        ("vllm:kv_cache_usage_perc",): pytest.approx(36 / 511),
        ("vllm:num_preemptions_total",): 7,
        ("vllm:prompt_tokens_total",): 185044,
        ("vllm:generation_tokens_total",): 6149,
        ("vllm:prefix_cache_queries_total",): 184946,
        ("vllm:prefix_cache_hits_total",): 159872,
        ("vllm:admission_rejections_total", "max_num_queued_reqs"): 5,
        ("vllm:admission_rejections_total", "max_num_queued_tokens"): 0,
        ("vllm:request_success_total", "stop"): 9,
        ("vllm:request_success_total", "length"): 377,
        ("vllm:request_success_total", "abort"): 0,
        ("vllm:request_success_total", "error"): 0,
        ("vllm:request_success_total", "repetition"): 0,
        ("vllm:cache_config_info", "16", "auto", "False", "8192", "512", "None"): 1,
    }


def test_labels_are_those_of_vllm():
    """Every series names engine and model, but the cache settings no model, and what no engine took no engine."""
    for family in text_string_to_metric_families(render(SimConfig(), STATS)):
        for sample in family.samples:
            assert sample.labels.get("engine") == (None if "admission_rejections" in sample.name else "0")
            named = "model_name" in sample.labels
            assert named is (sample.name != "vllm:cache_config_info")


def test_lines_look_as_vllm_writes_them():
    """HELP, TYPE and the sample line have the recorded form."""
    text = render(SimConfig(model="tiny"), STATS)
    assert "# TYPE vllm:num_requests_running gauge\n" in text
    assert 'vllm:num_requests_running{engine="0",model_name="tiny"} 4.0\n' in text
    assert 'vllm:request_success_total{engine="0",finished_reason="stop",model_name="tiny"} 9.0\n' in text
    assert text.count("# HELP") == text.count("# TYPE") == 12


def test_a_model_name_is_escaped():
    """Quotes, backslashes and newlines in a name survive the exposition."""
    text = render(SimConfig(model='a"b\\c\nd'), STATS)
    names = {s.labels.get("model_name") for f in text_string_to_metric_families(text) for s in f.samples}
    assert names == {'a"b\\c\nd', None}


def test_the_page_says_whether_prefixes_are_shared():
    """The label reads as Python writes it, which is how vLLM does."""
    text = render(SimConfig(enable_prefix_caching=True), STATS)
    assert 'enable_prefix_caching="True"' in text
