"""Engine numbers as Prometheus text: the series of vLLM 0.32 that proxies and dashboards read, name for name."""

from collections.abc import Iterator

from kvguard.simulator.config import SimConfig
from kvguard.simulator.engine import EngineStats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
ENGINE_LABEL = "0"


def render(config: SimConfig, stats: EngineStats, *, turned_away: int = 0) -> str:
    """One scrape of an engine that has `turned_away` so many requests."""
    return "".join((*_families(config, stats), _rejections(config, turned_away)))


def _families(config: SimConfig, stats: EngineStats) -> Iterator[str]:
    labels = {"engine": ENGINE_LABEL, "model_name": config.model}
    for name, kind, text, value in _plain(stats):
        yield _family(name, kind, text, [(labels, value)])
    yield _family(
        "num_requests_waiting_by_reason",
        "gauge",
        "Number of waiting requests by reason.",
        [(labels | {"reason": "capacity"}, stats.waiting), (labels | {"reason": "deferred"}, 0)],
    )
    yield _family(
        "request_success_total",
        "counter",
        "Count of successfully processed requests.",
        [(labels | {"finished_reason": reason}, count) for reason, count in _finished(stats).items()],
    )
    yield _family("cache_config_info", "gauge", "Information of the LLMEngine CacheConfig", [(_cache(config), 1)])


def _rejections(config: SimConfig, turned_away: int) -> str:
    """Counted before any engine is chosen, so the series names none."""
    reasons = {"max_num_queued_reqs": turned_away, "max_num_queued_tokens": 0}
    text = "Number of admission attempts rejected by a queue limit, by reason."
    samples: list[tuple[dict[str, str], float]] = [
        ({"model_name": config.model, "reason": reason}, count) for reason, count in reasons.items()
    ]
    return _family("admission_rejections_total", "counter", text, samples)


def _plain(stats: EngineStats) -> tuple[tuple[str, str, str, float], ...]:
    return (
        ("num_requests_running", "gauge", "Number of requests in model execution batches.", stats.running),
        ("num_requests_waiting", "gauge", "Number of requests waiting to be processed.", stats.waiting),
        ("kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", stats.usage_ratio),
        (
            "num_preemptions_total",
            "counter",
            "Cumulative number of preemption from the engine.",
            stats.preemptions_reported,
        ),
        ("prompt_tokens_total", "counter", "Number of prefill tokens processed.", stats.prompt_tokens),
        ("generation_tokens_total", "counter", "Number of generation tokens processed.", stats.generation_tokens),
        (
            "prefix_cache_queries_total",
            "counter",
            "Prefix cache queries, in terms of number of queried tokens.",
            stats.prefix_cache_queries,
        ),
        (
            "prefix_cache_hits_total",
            "counter",
            "Prefix cache hits, in terms of number of cached tokens.",
            stats.prefix_cache_hits,
        ),
    )


def _finished(stats: EngineStats) -> dict[str, int]:
    """A client that leaves counts nowhere, not even under abort."""
    return {
        "stop": stats.finished_stop,
        "length": stats.finished_length,
        "abort": 0,
        "error": 0,
        "repetition": 0,
    }


def _cache(config: SimConfig) -> dict[str, str]:
    return {
        "block_size": str(config.block_size),
        "cache_dtype": "auto",
        "enable_prefix_caching": str(config.enable_prefix_caching),
        "engine": ENGINE_LABEL,
        "kv_cache_size_tokens": str(config.num_gpu_blocks * config.block_size),
        "num_gpu_blocks": str(config.num_gpu_blocks),
        "sliding_window": "None",
    }


def _family(name: str, kind: str, text: str, samples: list[tuple[dict[str, str], float]]) -> str:
    lines = [f"# HELP vllm:{name} {text}", f"# TYPE vllm:{name} {kind}"]
    lines += [f"vllm:{name}{{{_labels(labels)}}} {float(value)!r}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _labels(labels: dict[str, str]) -> str:
    return ",".join(f'{name}="{_escape(value)}"' for name, value in sorted(labels.items()))


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
