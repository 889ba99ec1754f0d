"""A vLLM metrics page -> `UsageSample`. Owns vLLM's metric names and what its labels mean, for releases 0.6.6 to 0.33.

A value that is not on the page, not finite or out of range is None.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Final

from kvguard.admission.usage import EngineUsage, LengthBuckets, UsageSample
from kvguard.engines.exposition import Sample, parse_samples

# What kvguard reads -> the metric names that carry it, the preferred one first.
METRIC_NAMES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "used_ratio": (
            "vllm:kv_cache_usage_perc",  # 0.9.2 on
            "vllm:gpu_cache_usage_perc",  # up to 0.10; in 0.11 only with --show-hidden-metrics-for-version
        ),
        "running": ("vllm:num_requests_running",),
        "waiting": ("vllm:num_requests_waiting",),
        "waiting_for_capacity": ("vllm:num_requests_waiting_by_reason",),  # 0.20 on
        "preemptions_total": ("vllm:num_preemptions_total",),
        "prompt_tokens_total": ("vllm:prompt_tokens_total",),
        "generation_tokens_total": ("vllm:generation_tokens_total",),
        "generation_lengths": ("vllm:request_generation_tokens_bucket",),
        "awake": ("vllm:engine_sleep_state",),  # 0.12 on
        "config": ("vllm:cache_config_info",),
        "started_at": ("process_start_time_seconds",),  # of the API server
    }
)

# Of the metrics with a label that tells kinds apart, the one kind that is read: "capacity" means "waits for KV blocks"
# (the other reason is "deferred"), and "awake" is 0 in every kind of sleep.
_KINDS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "vllm:num_requests_waiting_by_reason": ("reason", "capacity"),
        "vllm:engine_sleep_state": ("sleep_state", "awake"),
    }
)
_ONLY_ENGINE: Final = "0"  # old releases have no engine label
_RATIO_LIMIT: Final = 1.0001  # room for rounding at a full cache; above it the number is not a ratio
_MAX_DIGITS: Final = 18
_FLAGS: Final[Mapping[str, bool]] = MappingProxyType({"True": True, "False": False})
_MAX_BLOCK_SIZE: Final = 1 << 16  # hybrids reach 4128; anything far beyond is no block size


@dataclass(slots=True)
class _EngineSeries:
    """What the page says about one engine: values by metric name (one per model name), the config labels, and how many
    answers were no longer than each bound, summed over model names.
    """

    values: dict[str, list[float]] = field(default_factory=dict)
    lengths: dict[float, float] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)


def parse_vllm(text: str, *, kv_usage_metric: str | None = None) -> UsageSample:
    """Read one page. `kv_usage_metric` replaces the known gauge names. Raise ExpositionError on a broken line."""
    usage_names = (kv_usage_metric,) if kv_usage_metric else METRIC_NAMES["used_ratio"]
    wanted = frozenset(usage_names).union(*METRIC_NAMES.values())
    samples = parse_samples(text, wanted)
    started = [s.value for s in samples if s.name in METRIC_NAMES["started_at"] and _counts(s)]
    engines = _group_by_engine([s for s in samples if s.name not in METRIC_NAMES["started_at"]])
    num_engines = sum(1 for series in engines.values() if series.config)
    ordered = sorted(engines.items(), key=lambda item: (len(item[0]), item[0]))  # "2" before "10"
    return UsageSample(
        engines=tuple(
            _engine_usage(engine, series, usage_names=usage_names, num_engines=num_engines)
            for engine, series in ordered
        ),
        started_at=next(iter(started), None),
    )


def _group_by_engine(samples: Sequence[Sample]) -> dict[str, _EngineSeries]:
    engines: dict[str, _EngineSeries] = {}
    for sample in samples:
        series = engines.setdefault(sample.labels.get("engine") or _ONLY_ENGINE, _EngineSeries())
        if sample.name in METRIC_NAMES["config"]:
            series.config = sample.labels
        elif sample.name in METRIC_NAMES["generation_lengths"]:
            _add_bucket(series.lengths, sample)
        elif _counts(sample):
            series.values.setdefault(sample.name, []).append(sample.value)
    return engines


def _add_bucket(lengths: dict[float, float], sample: Sample) -> None:
    try:
        bound = float(sample.labels["le"])
    except (KeyError, ValueError):
        return
    if bound >= 0 and _counts(sample):
        lengths[bound] = lengths.get(bound, 0.0) + sample.value


def _counts(sample: Sample) -> bool:
    if not math.isfinite(sample.value) or sample.value < 0:
        return False
    read = _KINDS.get(sample.name)
    return read is None or sample.labels.get(read[0]) == read[1]


def _engine_usage(engine: str, series: _EngineSeries, *, usage_names: Sequence[str], num_engines: int) -> EngineUsage:
    return EngineUsage(
        engine=engine,
        capacity_blocks=_capacity_blocks(series.config, num_engines=num_engines),
        capacity_tokens=_capacity_tokens(series.config, num_engines=num_engines),
        block_size=_block_size(series.config),
        pool_block_size=_sane_block_size(series.config, "block_size"),
        used_ratio=_used_ratio(series, usage_names),
        running=_count(series, "running"),
        waiting=_count(series, "waiting"),
        waiting_for_capacity=_count(series, "waiting_for_capacity"),
        preemptions_total=_total(series, "preemptions_total"),
        prompt_tokens_total=_total(series, "prompt_tokens_total"),
        generation_tokens_total=_total(series, "generation_tokens_total"),
        generation_lengths=_generation_lengths(series.lengths),
        prefix_caching=_FLAGS.get(series.config.get("enable_prefix_caching", "")),
        awake=_awake(series),
    )


def _used_ratio(series: _EngineSeries, names: Sequence[str]) -> float | None:
    """Return the highest ratio under the first name that has one: every series of an engine describes the same pool."""
    for name in names:
        ratios = [value for value in series.values.get(name, ()) if value <= _RATIO_LIMIT]
        if ratios:
            return min(max(ratios), 1.0)
    return None


def _generation_lengths(lengths: Mapping[float, float]) -> LengthBuckets | None:
    """The buckets in order; None when there are none or when a higher one counts less, which no histogram does."""
    buckets = tuple(sorted(lengths.items()))
    falling = any(after < before for (_, before), (_, after) in pairwise(buckets))
    return None if falling else buckets or None


def _total(series: _EngineSeries, what: str) -> float | None:
    """Sum over model names; None, not 0, when there is no series."""
    values = [value for name in METRIC_NAMES[what] for value in series.values.get(name, ())]
    return sum(values) if values else None


def _count(series: _EngineSeries, what: str) -> int | None:
    total = _total(series, what)
    return None if total is None else round(total)


def _awake(series: _EngineSeries) -> bool | None:
    total = _total(series, "awake")
    return None if total is None else total > 0


def _capacity_blocks(config: Mapping[str, str], *, num_engines: int) -> int | None:
    """Usable blocks of one engine.

    A front end that serves several data-parallel engines adds their blocks up and writes the sum on each engine's
    series (vllm/v1/engine/core_client.py, `_apply_ready_response`; two engines of 24 blocks say 48 each). The ranks are
    built alike, so each gets an equal share. One block of every engine is the null block and never holds KV.
    """
    num_gpu_blocks = _positive(config.get("num_gpu_blocks"))
    if num_gpu_blocks is None:
        return None
    usable = num_gpu_blocks // num_engines - 1
    return usable if usable > 0 else None


def _capacity_tokens(config: Mapping[str, str], *, num_engines: int) -> int | None:
    """Tokens one engine's pool holds in requests of the full context, over all layer groups; the null block holds none.

    Unlike the blocks it is one engine's on every series, however many there are.
    """
    tokens, usable = _positive(config.get("kv_cache_size_tokens")), _capacity_blocks(config, num_engines=num_engines)
    return None if tokens is None or usable is None else tokens * usable // (usable + 1) or None


def _block_size(config: Mapping[str, str]) -> int | None:
    """Tokens per block of full attention.

    `block_size` is the smallest block of all layer groups (4 on DeepSeek-V4, whose full-attention block is 256: vLLM
    issue 51163) and leaves out decode context parallelism. `effective_attention_block_size` is the full-attention
    group's own, context parallelism included; it is "None" without such a group and missing in older releases.
    """
    if _positive(config.get("effective_attention_block_size")):
        return _sane_block_size(config, "effective_attention_block_size")
    return _sane_block_size(config, "block_size")


def _sane_block_size(config: Mapping[str, str], label: str) -> int | None:
    size = _positive(config.get(label))
    return size if size is not None and size <= _MAX_BLOCK_SIZE else None


def _positive(label: str | None) -> int | None:
    if label is None or not (label.isascii() and label.isdigit()) or len(label) > _MAX_DIGITS:
        return None
    return int(label) or None
