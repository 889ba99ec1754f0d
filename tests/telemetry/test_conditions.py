"""Metrics of the engine's condition: one state at a time, and no number that is not known."""

import pytest
from prometheus_client import CollectorRegistry

from kvguard.admission.condition import EngineState
from kvguard.admission.footprint import Demand
from kvguard.admission.lengths import LengthPolicy
from kvguard.admission.occupancy import OccupancyPolicy
from kvguard.admission.usage import EngineUsage, UsageSample
from kvguard.pool.backend import Backend, new_backend
from kvguard.pool.pool import Pool
from kvguard.telemetry.collector import PoolCollector


def made() -> Backend:
    return new_backend("b", "http://b", OccupancyPolicy(), LengthPolicy())


def exported(backend: Backend, now: float, name: str, **labels: str) -> float | None:
    registry = CollectorRegistry()
    registry.register(PoolCollector(Pool((backend,)), lambda: now))
    return registry.get_sample_value(name, {"backend": "b", **labels})


def states(backend: Backend, now: float) -> list[str]:
    """Those that read 1; every state has a sample."""
    samples = {s.value: exported(backend, now, "kvguard_engine_condition", state=s.value) for s in EngineState}
    assert set(samples.values()) <= {0.0, 1.0}
    return [state for state, sample in samples.items() if sample]


def test_a_backend_nothing_is_known_of_has_a_condition_but_no_numbers() -> None:
    """What kvguard itself counts is 0."""
    backend = made()
    assert states(backend, 0.0) == ["unknown"]
    for name in ("kvguard_engine_waiting", "kvguard_engine_preemptions_total"):
        assert exported(backend, 0.0, name) is None
    assert exported(backend, 0.0, "kvguard_prefill_backlog_tokens") == 0
    assert [
        exported(backend, 0.0, "kvguard_engine_probes_total", state=state) for state in ("stalled", "contradiction")
    ] == [0, 0]


def test_a_backend_at_work_shows_every_number() -> None:
    """Queue, preemptions, backlog and probes; the condition and the queue only while the gauge is fresh."""
    backend = made()
    for now, preempted in ((0.0, 1), (1.0, 4)):
        usage = EngineUsage(
            engine="0",
            capacity_blocks=100,
            block_size=16,
            used_ratio=0.5,
            running=2,
            waiting=3,
            preemptions_total=preempted,
            prompt_tokens_total=now,
            generation_tokens_total=now,
        )
        backend.observe(UsageSample(engines=(usage,)), asked_at=now)
    backend.reserve(Demand(prompts=(40, 2), output_cap=1, asked_cap=1, expected_output=1), 1.0)
    assert states(backend, 6.0) == ["working"]
    assert exported(backend, 6.0, "kvguard_engine_waiting") == 3
    assert exported(backend, 6.0, "kvguard_engine_preemptions_total") == 3
    assert exported(backend, 6.0, "kvguard_prefill_backlog_tokens") == 42
    assert states(backend, 6.1) == ["unknown"]
    assert exported(backend, 6.1, "kvguard_engine_waiting") is None
    assert exported(backend, 6.1, "kvguard_engine_preemptions_total") == 3


@pytest.mark.parametrize("state", ["stalled", "contradiction"])
def test_probes_are_counted_by_what_they_test(state: str) -> None:
    """Each condition has its own."""
    backend = made()
    backend.watch.probes[EngineState(state)] += 2
    assert exported(backend, 0.0, "kvguard_engine_probes_total", state=state) == 2
