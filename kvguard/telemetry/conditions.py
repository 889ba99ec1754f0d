"""Metrics of what engines show besides their gauges. What is unknown has no sample."""

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from kvguard.admission.condition import EngineState
from kvguard.pool.backend import Backend

PROBED = (EngineState.STALLED, EngineState.CONTRADICTION)


def condition_families(backends: Sequence[Backend], now: float) -> Iterator[Metric]:
    """Every such metric of every backend."""
    condition = GaugeMetricFamily(
        "kvguard_engine_condition", "1 for the condition the engine is in", labels=("backend", "state")
    )
    waiting = GaugeMetricFamily(
        "kvguard_engine_waiting",
        "Requests that wait in the engine for KV blocks; all that wait where it does not say for what",
        labels=("backend",),
    )
    backlog = GaugeMetricFamily(
        "kvguard_prefill_backlog_tokens",
        "Prompt tokens of admitted requests whose first token has not come",
        labels=("backend",),
    )
    for backend in backends:
        current = backend.condition(now)
        for state in EngineState:
            condition.add_metric((backend.name, state.value), float(state is current.state))
        if current.queue is not None:
            waiting.add_metric((backend.name,), current.queue)
        backlog.add_metric((backend.name,), backend.ledger.prefill_tokens)
    yield from (condition, waiting, backlog, _preemptions(backends), _probes(backends))


def _preemptions(backends: Sequence[Backend]) -> Metric:
    family = CounterMetricFamily(
        "kvguard_engine_preemptions",
        "Preemptions the engine reported since kvguard started, over its restarts; vLLM reports them seconds late",
        labels=("backend",),
    )
    for backend in backends:
        if backend.watch.preemptions is not None:
            family.add_metric((backend.name,), backend.watch.preemptions)
    return family


def _probes(backends: Sequence[Backend]) -> Metric:
    family = CounterMetricFamily(
        "kvguard_engine_probes",
        "Requests let through to find out whether a condition that keeps others out still holds",
        labels=("backend", "state"),
    )
    for backend in backends:
        for state in PROBED:
            family.add_metric((backend.name, state.value), backend.watch.probes[state])
    return family
