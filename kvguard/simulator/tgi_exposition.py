"""TGI's metrics page. A series is there from its first event on: a server that has done nothing has an empty page."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Final

from kvguard.simulator.engine import StepResult
from kvguard.simulator.tgi_config import TgiSimConfig
from kvguard.simulator.tgi_engine import TgiStats

CONTENT_TYPE: Final = "text/plain; charset=utf-8"
PREFILL, DECODE = METHODS = ("prefill", "decode")
_DURATIONS: Final = tuple(accumulate([0.0001] + [1.5] * 35, mul))[1:]  # multiplied up as TGI does, to the last digit
_LENGTH_BUCKETS: Final = 100
_LARGEST_BATCH: Final = 1024
_QUANTILES: Final = ("0", "0.5", "0.9", "0.95", "0.99", "0.999", "1")

_HELP: Final = {
    "tgi_request_count": "Total number of requests",
    "tgi_request_success": "Number of successful requests",
    "tgi_batch_inference_count": "Inference calls per method (prefill or decode)",
    "tgi_batch_inference_success": "Number of successful inference calls per method (prefill or decode)",
    "tgi_queue_size": "Current queue size",
    "tgi_batch_current_size": "Current batch size",
    "tgi_batch_current_max_tokens": "Maximum tokens for the current batch",
    "tgi_request_input_length": "Input token length per request",
    "tgi_request_max_new_tokens": "Maximum new tokens per request",
    "tgi_request_generated_tokens": "Generated tokens per request",
    "tgi_request_duration": "Request duration",
    "tgi_request_validation_duration": "Request validation duration",
    "tgi_request_queue_duration": "Request queue duration",
    "tgi_request_inference_duration": "Request inference duration",
    "tgi_request_mean_time_per_token_duration": "Mean time per token per request",
    "tgi_batch_inference_duration": "Batch inference duration",
    "tgi_batch_forward_duration": "Batch forward duration per method (prefill or decode)",
    "tgi_batch_decode_duration": "Time spent decoding a batch per method (prefill or decode)",
    "tgi_batch_filter_duration": "Time spent filtering batches and sending generated tokens per method "
    "(prefill or decode)",
    "tgi_batch_next_size": "Batch size of the next batch",
    "tgi_request_skipped_tokens": "Speculated tokens per request",
}

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long a finished generation took, in seconds, and how many tokens it came to."""

    queued: float
    inference: float
    tokens: int


class TgiMeters:
    """Everything that is counted outside the engine."""

    def __init__(self) -> None:
        self.counters: dict[tuple[str, Labels], float] = {}
        self.values: dict[tuple[str, Labels], dict[float, int]] = {}

    def count(self, name: str, by: int = 1, **labels: str) -> None:
        """Add to a counter; nothing at all for 0."""
        if by:
            key = (f"tgi_{name}", tuple(labels.items()))
            self.counters[key] = self.counters.get(key, 0) + by

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add a value to a distribution, to a tenth of a millisecond."""
        seen = self.values.setdefault((f"tgi_{name}", tuple(labels.items())), {})
        rounded = round(value, 4)
        seen[rounded] = seen.get(rounded, 0) + 1

    def step(self, result: StepResult, *, decoded: bool) -> None:
        """Take note of a forward pass that went well; one that prefills beside a running batch counts as both."""
        methods = (*((PREFILL,) if result.admitted else ()), *((DECODE,) if decoded else ()))
        for method in methods:
            self.count("batch_inference_count", method=method)
            self.count("batch_inference_success", method=method)
            for part in ("inference", "forward"):
                self.observe(f"batch_{part}_duration", result.seconds, method=method)
            for part in ("decode", "filter"):
                self.observe(f"batch_{part}_duration", 0.0, method=method)
        if result.admitted:
            self.observe("batch_next_size", len(result.admitted))
        if result.admitted and decoded:
            self.count("batch_concat", reason="chunking")
            self.observe("batch_concat_duration", 0.0, method=DECODE)
        for _ in result.tokens:
            self.observe("request_skipped_tokens", 0)

    def failed_step(self, method: str) -> None:
        """Take note of a forward pass that ended the shard."""
        self.count("batch_inference_count", method=method)
        self.count("batch_inference_failure", method=method)

    def finished(self, timing: Timing) -> None:
        """Take note of a generation that has ended well."""
        self.count("request_success")
        self.observe("request_duration", timing.queued + timing.inference)
        self.observe("request_validation_duration", 0.0)
        self.observe("request_queue_duration", timing.queued)
        self.observe("request_inference_duration", timing.inference)
        self.observe("request_mean_time_per_token_duration", timing.inference / max(timing.tokens, 1))


def render(config: TgiSimConfig, meters: TgiMeters, stats: TgiStats, *, begun: bool) -> str:
    """One page: counters, gauges, distributions. The gauges are there once a batch has `begun`."""
    return "".join((*_counters(meters), *(_gauges(stats) if begun else ()), *_distributions(config, meters, stats)))


def _counters(meters: TgiMeters) -> Iterator[str]:
    for name in dict.fromkeys(name for name, _ in meters.counters):
        lines = [f"{name}{_braced(labels)} {total:g}" for (n, labels), total in meters.counters.items() if n == name]
        yield _family(name, "counter", lines)


def _gauges(stats: TgiStats) -> Iterator[str]:
    for name, value in (
        ("tgi_queue_size", stats.waiting),
        ("tgi_batch_current_size", stats.running),
        ("tgi_batch_current_max_tokens", stats.reserved_tokens),
    ):
        yield _family(name, "gauge", [f"{name} {value}"])


def _distributions(config: TgiSimConfig, meters: TgiMeters, stats: TgiStats) -> Iterator[str]:
    lengths = {
        "tgi_request_input_length": (stats.input_lengths, config.max_input_tokens),
        "tgi_request_max_new_tokens": (stats.max_new_tokens, config.max_total_tokens),
        "tgi_request_generated_tokens": (stats.generated, config.max_total_tokens),
    }
    for name, (seen, longest) in lengths.items():
        if seen:
            bounds = [longest / _LENGTH_BUCKETS * number for number in range(1, _LENGTH_BUCKETS + 1)]
            yield _family(name, "histogram", list(_histogram(name, (), bounds, seen)))
    for name in dict.fromkeys(name for name, _ in meters.values):
        found = [(labels, seen) for (n, labels), seen in meters.values.items() if n == name]
        if name == "tgi_request_skipped_tokens":
            yield _family(name, "summary", list(_summary(name, found[0][1])))
            continue
        sizes = [float(number) for number in range(1, _LARGEST_BATCH + 1)]
        bounds = sizes if name == "tgi_batch_next_size" else list(_DURATIONS)
        yield _family(
            name, "histogram", [line for each in found for line in _histogram(name, each[0], bounds, each[1])]
        )


def _histogram(
    name: str, labels: Labels, bounds: list[float], seen: Mapping[float, int] | Mapping[int, int]
) -> Iterator[str]:
    values = sorted(seen.items())
    total, place = 0, 0
    for bound in bounds:
        while place < len(values) and values[place][0] <= bound:
            total += values[place][1]
            place += 1
        yield f"{name}_bucket{_braced((*labels, ('le', _number(bound))))} {total}"
    count = sum(seen.values())
    yield f"{name}_bucket{_braced((*labels, ('le', '+Inf')))} {count}"
    yield f"{name}_sum{_braced(labels)} {_number(sum(value * times for value, times in values))}"
    yield f"{name}_count{_braced(labels)} {count}"


def _summary(name: str, seen: Mapping[float, int]) -> Iterator[str]:
    for quantile in _QUANTILES:
        yield f"{name}{_braced((('quantile', quantile),))} 0"
    yield f"{name}_sum 0"
    yield f"{name}_count {sum(seen.values())}"


def _family(name: str, kind: str, lines: list[str]) -> str:
    head = [f"# HELP {name} {_HELP[name]}"] if name in _HELP else []
    return "\n".join([*head, f"# TYPE {name} {kind}", *lines]) + "\n\n"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _braced(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels) + "}" if labels else ""
