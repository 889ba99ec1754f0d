"""vLLM pages of several releases, in excerpts, to usage samples."""

import math
from dataclasses import fields

import pytest

from kvguard.admission.usage import EngineUsage, UsageSample
from kvguard.engines.exposition import ExpositionError
from kvguard.engines.vllm import METRIC_NAMES, parse_vllm

# vLLM 0.32.0, two data-parallel engines of 24 blocks each behind one front end; the config series carry the sum, 48.
TWO_ENGINES = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 2.0
vllm:num_requests_running{engine="1",model_name="tiny"} 2.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 2.0
vllm:num_requests_waiting{engine="1",model_name="tiny"} 3.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 2.0
vllm:num_requests_waiting_by_reason{engine="1",model_name="tiny",reason="capacity"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="deferred"} 0.0
vllm:num_requests_waiting_by_reason{engine="1",model_name="tiny",reason="deferred"} 1.0
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.6956521739130435
vllm:kv_cache_usage_perc{engine="1",model_name="tiny"} 0.782608695652174
vllm:cache_config_info{block_size="128",effective_attention_block_size="128",engine="0",kv_cache_dtype_skip_layers="[]",\
num_cpu_blocks="None",num_gpu_blocks="48",num_gpu_blocks_override="24",sliding_window="None"} 1.0
vllm:cache_config_info{block_size="128",effective_attention_block_size="128",engine="1",kv_cache_dtype_skip_layers="[]",\
num_cpu_blocks="None",num_gpu_blocks="48",num_gpu_blocks_override="24",sliding_window="None"} 1.0
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="tiny"} 0.0
vllm:num_preemptions_total{engine="1",model_name="tiny"} 7.0
vllm:num_preemptions_created{engine="0",model_name="tiny"} 1.796033052e+09
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 2400.0
vllm:prompt_tokens_total{engine="1",model_name="tiny"} 2400.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="local_compute"} 2400.0
vllm:generation_tokens_total{engine="0",model_name="tiny"} 980.0
vllm:generation_tokens_total{engine="1",model_name="tiny"} 1320.0
"""

# vLLM 0.6.6 (V0): no engine label, no reasons, the old gauge name.
OLD_RELEASE = """\
vllm:cache_config_info{block_size="16",cache_dtype="auto",num_cpu_blocks="2048",num_gpu_blocks="1001"} 1.0
vllm:num_requests_running{model_name="tiny"} 3.0
vllm:num_requests_swapped{model_name="tiny"} 0.0
vllm:num_requests_waiting{model_name="tiny"} 1.0
vllm:gpu_cache_usage_perc{model_name="tiny"} 0.25
vllm:cpu_cache_usage_perc{model_name="tiny"} 0.99
vllm:num_preemptions_total{model_name="tiny"} 0.0
vllm:prompt_tokens_total{model_name="tiny"} 10.0
vllm:generation_tokens_total{model_name="tiny"} 20.0
"""


def engine(text: str, kv_usage_metric: str | None = None) -> EngineUsage:
    (usage,) = parse_vllm(text, kv_usage_metric=kv_usage_metric).engines
    return usage


def config(labels: str) -> EngineUsage:
    return engine(f"vllm:cache_config_info{{{labels}}} 1.0")


def test_reads_a_page_of_two_engines() -> None:
    """Every field comes from its series, per engine, and each engine has its share of the summed blocks less one."""
    first, second = parse_vllm(TWO_ENGINES).engines
    assert first == EngineUsage(
        engine="0",
        capacity_blocks=23,
        block_size=128,
        pool_block_size=128,
        used_ratio=0.6956521739130435,
        running=2,
        waiting=2,
        waiting_for_capacity=2,
        preemptions_total=0.0,
        prompt_tokens_total=2400.0,
        generation_tokens_total=980.0,
    )
    assert (second.engine, second.waiting, second.waiting_for_capacity) == ("1", 3, 2)
    assert (first.used_ratio, second.used_ratio) == (pytest.approx(16 / 23), pytest.approx(18 / 23))


@pytest.mark.parametrize(
    ("label", "prefix_caching"),
    [("True", True), ("False", False), ("None", None), ("true", None), ("", None)],
)
def test_whether_prefixes_are_cached(label: str, prefix_caching: bool | None) -> None:
    """As vLLM writes the two values; anything else, like a page without the label, does not say."""
    assert config(f'num_gpu_blocks="11",enable_prefix_caching="{label}"').prefix_caching is prefix_caching
    assert config('num_gpu_blocks="11"').prefix_caching is None


def test_reads_a_page_of_an_old_release() -> None:
    """Without engine labels the page is engine 0; a series the release does not have is None."""
    assert engine(OLD_RELEASE) == EngineUsage(
        engine="0",
        capacity_blocks=1000,
        block_size=16,
        pool_block_size=16,
        used_ratio=0.25,
        running=3,
        waiting=1,
        waiting_for_capacity=None,
        preemptions_total=0.0,
        prompt_tokens_total=10.0,
        generation_tokens_total=20.0,
    )


@pytest.mark.parametrize(
    "page",
    [
        "vllm:gpu_cache_usage_perc 0.5",
        "vllm:kv_cache_usage_perc 0.5",
        "vllm:gpu_cache_usage_perc 0.2\nvllm:kv_cache_usage_perc 0.5",
        "vllm:kv_cache_usage_perc 0.5\nvllm:gpu_cache_usage_perc 0.2",
        "vllm:kv_cache_usage_perc NaN\nvllm:gpu_cache_usage_perc 0.5",
    ],
)
def test_o01_either_gauge_name_is_read_and_the_newer_wins(page: str) -> None:
    """O-01: one name, the other, or both give the same usage; an unusable newer one does not hide the older."""
    assert engine(page).used_ratio == 0.5


def test_o01_without_a_gauge_usage_is_unknown() -> None:
    """O-01: a page with neither name has no usage, not usage 0."""
    assert engine("vllm:num_requests_running 0").used_ratio is None


def test_o01_the_operator_can_name_the_gauge() -> None:
    """O-01: the override is the only name looked at; when it is missing, usage is unknown."""
    page = "vllm:kv_cache_usage_perc 0.2\nmy:usage 0.5"
    assert engine(page, kv_usage_metric="my:usage").used_ratio == 0.5
    assert engine(page, kv_usage_metric="no:usage").used_ratio is None


def test_o01_the_newer_name_wins_engine_by_engine() -> None:
    """O-01: an engine that has only the old name keeps it beside one that has both."""
    page = (
        'vllm:kv_cache_usage_perc{engine="0"} 0.5\n'
        'vllm:gpu_cache_usage_perc{engine="0"} 0.1\n'
        'vllm:gpu_cache_usage_perc{engine="1"} 0.3\n'
    )
    assert [usage.used_ratio for usage in parse_vllm(page).engines] == [0.5, 0.3]


def test_o02_every_engine_is_kept_whatever_the_line_order() -> None:
    """O-02: a full engine does not hide behind an idle one that comes last, nor the other way round."""
    lines = ['vllm:kv_cache_usage_perc{engine="0"} 0.96', 'vllm:kv_cache_usage_perc{engine="1"} 0.10']
    forward, swapped = parse_vllm("\n".join(lines)), parse_vllm("\n".join(reversed(lines)))
    assert forward == swapped
    assert [(usage.engine, usage.used_ratio) for usage in forward.engines] == [("0", 0.96), ("1", 0.10)]


def test_engines_are_in_numeric_order() -> None:
    """Engine 10 comes after engine 2."""
    page = "\n".join(f'vllm:num_requests_running{{engine="{label}"}} 1' for label in ("10", "2", "0"))
    assert [usage.engine for usage in parse_vllm(page).engines] == ["0", "2", "10"]


def test_several_series_of_one_engine_are_one_engine() -> None:
    """Counts and counters of several model names add up; the gauge of the shared pool is the highest."""
    page = "\n".join(
        f'{name}{{engine="0",model_name="{model}"}} {value}'
        for model, ratio, count in (("base", 0.5, 2), ("lora", 0.75, 3))
        for name, value in (
            ("vllm:kv_cache_usage_perc", ratio),
            ("vllm:num_requests_running", count),
            ("vllm:num_requests_waiting", count),
            ("vllm:generation_tokens_total", count),
        )
    )
    usage = engine(page)
    assert (usage.used_ratio, usage.running, usage.waiting, usage.generation_tokens_total) == (0.75, 5, 5, 5.0)


@pytest.mark.parametrize(
    ("value", "used_ratio"),
    [
        ("0", 0.0),
        ("1", 1.0),
        ("1.0001", 1.0),
        ("1.0002", None),
        ("70.5", None),
        ("-0.0001", None),
        ("NaN", None),
        ("+Inf", None),
        ("-Inf", None),
    ],
)
def test_a_gauge_outside_0_to_1_is_absent(value: str, used_ratio: float | None) -> None:
    """A percentage or a non-finite number is not taken for a ratio; rounding at a full cache is."""
    assert engine(f"vllm:kv_cache_usage_perc {value}").used_ratio == used_ratio


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1"])
def test_counts_that_cannot_be_counts_are_absent(value: str) -> None:
    """A non-finite or negative count or counter is unknown."""
    usage = engine(f"vllm:num_requests_running {value}\nvllm:num_preemptions_total {value}")
    assert usage == EngineUsage(engine="0")


def test_waiting_for_capacity_needs_its_reason() -> None:
    """Requests deferred for other reasons do not count, and alone they leave the number unknown."""
    name = "vllm:num_requests_waiting_by_reason"
    assert engine(f'{name}{{reason="deferred"}} 4').waiting_for_capacity is None
    assert engine(f'{name}{{reason="deferred"}} 4\n{name}{{reason="capacity"}} 0').waiting_for_capacity == 0


@pytest.mark.parametrize(
    ("labels", "capacity_blocks"),
    [
        ('num_gpu_blocks="512"', 511),
        ('num_gpu_blocks="2"', 1),
        ('num_gpu_blocks="1"', None),
        ('num_gpu_blocks="0"', None),
        ('num_gpu_blocks="None"', None),
        ('num_gpu_blocks="-5"', None),
        ('num_gpu_blocks="5.0"', None),
        ('num_gpu_blocks="٣"', None),
        (f'num_gpu_blocks="{"9" * 5000}"', None),
        ('block_size="16"', None),
    ],
)
def test_capacity_is_the_blocks_less_the_null_block(labels: str, capacity_blocks: int | None) -> None:
    """Usable blocks are one less than reported; a label that is no count, or leaves nothing, makes capacity unknown."""
    assert config(labels).capacity_blocks == capacity_blocks


def test_an_engine_without_config_has_no_share_of_the_blocks() -> None:
    """A gauge of the operator's own without an engine label does not halve the capacity of the one real engine."""
    page = 'vllm:cache_config_info{engine="3",num_gpu_blocks="512"} 1.0\nmy:usage 0.5'
    unlabelled, real = parse_vllm(page, kv_usage_metric="my:usage").engines
    assert (unlabelled.capacity_blocks, real.capacity_blocks) == (None, 511)


@pytest.mark.parametrize(
    ("labels", "block_size"),
    [
        ('block_size="16"', 16),
        ('block_size="16",effective_attention_block_size="16"', 16),
        ('block_size="4",effective_attention_block_size="256"', 256),
        ('block_size="16",effective_attention_block_size="None"', 16),
        ('block_size="None",effective_attention_block_size="None"', None),
        ('num_gpu_blocks="512"', None),
    ],
)
def test_block_size_is_that_of_full_attention(labels: str, block_size: int | None) -> None:
    """The full-attention block is preferred over the smallest block of all groups; without it, that one is used."""
    assert config(labels).block_size == block_size


def test_an_empty_page_names_no_engine() -> None:
    """A server with statistics switched off gives an empty sample."""
    assert parse_vllm("python_gc_objects_collected_total 1\n") == UsageSample()


def test_a_cut_off_page_is_an_error() -> None:
    """A page that ends inside a wanted line is refused, not half believed."""
    with pytest.raises(ExpositionError, match="line 15 "):
        parse_vllm(TWO_ENGINES[: TWO_ENGINES.index("effective_attention")])


def test_every_name_in_the_table_belongs_to_a_field() -> None:
    """The table of names speaks of the fields of EngineUsage and UsageSample and of the config, nothing else."""
    known = {field.name for each in (EngineUsage, UsageSample) for field in fields(each)}
    assert set(METRIC_NAMES) - {"config"} <= known


def test_a_page_says_when_its_server_started() -> None:
    """The start of the process, which is no engine's; none where the page has none."""
    page = 'process_start_time_seconds 1.5e+09\nvllm:kv_cache_usage_perc{engine="0"} 0.5\n'
    assert parse_vllm(page).started_at == 1.5e9
    assert [engine.engine for engine in parse_vllm(page).engines] == ["0"]
    assert parse_vllm(page.split("\n", 1)[1]).started_at is None


@pytest.mark.parametrize(
    ("engines", "blocks", "size", "tokens"),
    [
        # One null block of 512: (512 - 1) * 128 of the 65,536 tokens published.
        (1, 512, "65536", 65_408),
        # Two engines of 24 blocks: the blocks are their sum, the tokens one engine's.
        (2, 48, "3072", 2_944),
        (1, 1, "128", None),
        (1, 512, "None", None),
        (1, 512, "0", None),
    ],
)
def test_tokens_are_one_engines_less_the_null_block(engines: int, blocks: int, size: str, tokens: int | None) -> None:
    """The published token capacity counts a block that holds nothing."""
    labels = f'block_size="128",num_gpu_blocks="{blocks}",kv_cache_size_tokens="{size}"'
    page = "\n".join(f'vllm:cache_config_info{{engine="{n}",{labels}}} 1.0' for n in range(engines)) + "\n"
    assert [engine.capacity_tokens for engine in parse_vllm(page).engines] == [tokens] * engines


# The end of a histogram of vLLM 0.32.0, served under two names.
LENGTHS = """\
# TYPE vllm:request_generation_tokens histogram
vllm:request_generation_tokens_bucket{engine="0",le="1.0",model_name="tiny"} 305.0
vllm:request_generation_tokens_bucket{engine="0",le="500.0",model_name="tiny"} 386.0
vllm:request_generation_tokens_bucket{engine="0",le="+Inf",model_name="tiny"} 386.0
vllm:request_generation_tokens_count{engine="0",model_name="tiny"} 386.0
vllm:request_generation_tokens_sum{engine="0",model_name="tiny"} 2637.0
vllm:request_generation_tokens_bucket{engine="0",le="1.0",model_name="lora"} 1.0
vllm:request_generation_tokens_bucket{engine="0",le="500.0",model_name="lora"} 4.0
vllm:request_generation_tokens_bucket{engine="0",le="+Inf",model_name="lora"} 5.0
vllm:request_generation_tokens_bucket{engine="1",le="+Inf",model_name="tiny"} 0.0
"""


def test_lengths_of_answers_are_read_from_the_histogram() -> None:
    """Per engine, in order of the bounds, summed over model names."""
    first, second = parse_vllm(LENGTHS).engines
    assert first.generation_lengths == ((1.0, 306.0), (500.0, 390.0), (math.inf, 391.0))
    assert second.generation_lengths == ((math.inf, 0.0),)


def bucket(le: str, count: str) -> str:
    return f'vllm:request_generation_tokens_bucket{{le="{le}"}} {count}\n'


@pytest.mark.parametrize(
    ("page", "lengths"),
    [
        (bucket("2.0", "3") + bucket("1.0", "2"), ((1.0, 2.0), (2.0, 3.0))),
        (bucket("1.0", "2") + bucket("2.0", "2"), ((1.0, 2.0), (2.0, 2.0))),
        (bucket("0", "2"), ((0.0, 2.0),)),
        # A higher bound that counts less is no histogram.
        (bucket("1.0", "3") + bucket("2.0", "2"), None),
        (bucket("many", "2"), None),
        (bucket("NaN", "2"), None),
        (bucket("-1", "2"), None),
        (bucket("1.0", "NaN"), None),
        (bucket("1.0", "-1"), None),
        ("vllm:request_generation_tokens_bucket 2\n", None),
        ("vllm:request_generation_tokens_count 2\nvllm:num_requests_running 1\n", None),
    ],
)
def test_buckets_that_are_none_are_left_out(page: str, lengths: tuple[tuple[float, float], ...] | None) -> None:
    """Bounds and counts must be numbers that are not negative, and must rise together."""
    assert engine(page + "vllm:num_requests_running 1\n").generation_lengths == lengths


@pytest.mark.parametrize(
    ("page", "awake"),
    [
        ("", None),
        ('{sleep_state="awake"} 1\nvllm:engine_sleep_state{sleep_state="discard_all"} 0', True),
        ('{sleep_state="awake"} 0\nvllm:engine_sleep_state{sleep_state="weights_offloaded"} 1', False),
        # Giving up the cache alone has no kind of its own.
        ('{sleep_state="awake"} 0\nvllm:engine_sleep_state{sleep_state="weights_offloaded"} 0', False),
        ('{sleep_state="weights_offloaded"} 0', None),
    ],
)
def test_an_engine_says_whether_it_is_awake(page: str, awake: bool | None) -> None:
    """By the one series that is 0 in every kind of sleep."""
    usage = engine(
        f"vllm:num_requests_running 0\nvllm:engine_sleep_state{page}" if page else "vllm:num_requests_running 0"
    )
    assert usage.awake is awake
