"""Metrics of which backends are given new requests, and why others are not."""

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from kvguard.pool.backend import Backend
from kvguard.pool.health import Standing


def standing_families(backends: Sequence[Backend], now: float) -> Iterator[Metric]:
    """Every such metric of every backend."""
    standing = GaugeMetricFamily(
        "kvguard_backend_standing", "1 for what a backend is in for", labels=("backend", "standing")
    )
    shared = GaugeMetricFamily(
        "kvguard_backend_shared_address",
        "1 where several servers were seen to answer under the one address of a backend",
        labels=("backend",),
    )
    ejections = CounterMetricFamily(
        "kvguard_backend_ejections",
        "Times a backend was taken out because it failed several requests in a row",
        labels=("backend",),
    )
    for backend in backends:
        current = backend.health.standing(now)
        for state in Standing:
            standing.add_metric((backend.name, state.value), float(state is current))
        shared.add_metric((backend.name,), float(backend.identities.several))
        ejections.add_metric((backend.name,), backend.health.ejections)
    yield from (standing, shared, ejections)
