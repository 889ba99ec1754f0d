"""Metrics of the backends as they are, and that unknown has no sample."""

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from kvguard.admission.blocks import PoolLayout
from kvguard.admission.calibration import LengthForecast
from kvguard.admission.capacity import CapacityPolicy
from kvguard.admission.footprint import Demand
from kvguard.admission.ledger import ReservationState
from kvguard.admission.lengths import LengthPolicy, LengthSource
from kvguard.admission.occupancy import OccupancyPolicy
from kvguard.admission.reachability import ThresholdState
from kvguard.admission.tiers import TierPolicy
from kvguard.admission.usage import EngineUsage, UsageSample
from kvguard.pool.backend import Backend, new_backend
from kvguard.pool.pool import Pool
from kvguard.telemetry.collector import PoolCollector
from kvguard.telemetry.in_force import InForce
from tests.admission.build import demand, marks


def collected(backend: Backend, now: float) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(PoolCollector(Pool((backend,)), lambda: now))
    return registry


def test_a_backend_nothing_is_known_of_has_states_but_no_numbers() -> None:
    """Unknown capacity, gauge and age have no sample; what kvguard itself counts is 0."""
    value = collected(new_backend("b", "http://b", OccupancyPolicy(), LengthPolicy()), 0.0).get_sample_value
    for name in ("kvguard_kv_capacity_tokens", "kvguard_kv_capacity_bytes", "kvguard_scrape_age_seconds"):
        assert value(name, {"backend": "b"}) is None
    assert value("kvguard_demand_ratio", {"backend": "b"}) is None
    for kind in ("observed", "projected", "peak"):
        for engine in ("0", "all"):
            assert value("kvguard_kv_usage_ratio", {"backend": "b", "engine": engine, "kind": kind}) is None
    assert value("kvguard_telemetry_state", {"backend": "b", "state": "unreachable"}) == 1
    assert value("kvguard_telemetry_state", {"backend": "b", "state": "fresh"}) == 0
    assert value("kvguard_ledger_blocks", {"backend": "b"}) == 0


def test_a_backend_in_use_shows_every_number() -> None:
    """Gauge, projection, peak, capacity, demand and the ledger are read at the moment of the scrape."""
    capacity = CapacityPolicy(layout_of=lambda size: replace(PoolLayout.plain(size), block_bytes=16 * 1024))
    backend = new_backend("b", "http://b", OccupancyPolicy(capacity=capacity), LengthPolicy())
    engine = EngineUsage(engine="0", capacity_blocks=100, block_size=16, used_ratio=0.25)
    backend.occupancy.observe(UsageSample(engines=(engine,)), asked_at=9.0)
    demand = Demand(prompts=(32,), copies=2, output_cap=32, asked_cap=32, expected_output=32)
    reservation = backend.reserve(demand, 10.5)
    backend.refused_blocks.add(100, 11.0)
    value = collected(backend, 11.0).get_sample_value
    usage = {
        kind: value("kvguard_kv_usage_ratio", {"backend": "b", "engine": "all", "kind": kind})
        for kind in ("projected", "peak")
    }
    assert usage == {"projected": 0.29, "peak": 0.33}
    assert value("kvguard_kv_usage_ratio", {"backend": "b", "engine": "0", "kind": "observed"}) == 0.25
    assert value("kvguard_kv_capacity_tokens", {"backend": "b"}) == 1600
    assert value("kvguard_kv_capacity_bytes", {"backend": "b"}) == 1600 * 1024
    assert value("kvguard_demand_ratio", {"backend": "b"}) == pytest.approx(1.33)
    assert value("kvguard_inflight_requests", {"backend": "b"}) == 1
    assert value("kvguard_inflight_sequences", {"backend": "b"}) == 2
    assert value("kvguard_ledger_blocks", {"backend": "b"}) == 4
    assert value("kvguard_scrape_age_seconds", {"backend": "b"}) == 2.0
    backend.end(reservation, ReservationState.RELEASED, 11.0)
    backend.ledger.progress(reservation, 1)
    assert collected(backend, 11.0).get_sample_value("kvguard_ledger_violations_total", {"backend": "b"}) == 1


def threshold_states(backend: Backend) -> dict[str, list[str]]:
    """The states that read 1, by tier; every state has a sample."""
    value = collected(backend, 0.0).get_sample_value
    found: dict[str, list[str]] = {}
    for tier in ("trim", "restrict", "reject"):
        labels = {state.value: {"backend": "b", "tier": tier, "state": state.value} for state in ThresholdState}
        samples = {state: value("kvguard_threshold_state", labels[state]) for state in labels}
        assert set(samples.values()) <= {0.0, 1.0}
        found[tier] = [state for state, sample in samples.items() if sample == 1]
    return found


def test_every_threshold_is_in_exactly_one_state() -> None:
    """Unknown before the first review; afterwards as judged."""
    backend = new_backend("b", "http://b", OccupancyPolicy(), LengthPolicy())
    assert threshold_states(backend) == {tier: ["unknown"] for tier in ("trim", "restrict", "reject")}
    engine = EngineUsage(engine="0", capacity_blocks=100, block_size=16, used_ratio=0.25)
    backend.occupancy.observe(UsageSample(engines=(engine,)), asked_at=0.0)
    backend.max_num_seqs, backend.context_tokens = 8, 160
    backend.review(TierPolicy())
    assert threshold_states(backend) == {"trim": ["reachable"], "restrict": ["unreachable"], "reject": ["unreachable"]}


def test_the_block_rule_has_a_ratio_once_the_engine_publishes_its_tokens() -> None:
    """Absent when unknown, 1 when right."""
    backend = new_backend("b", "http://b", OccupancyPolicy(), LengthPolicy())
    backend.context_tokens = 160
    for tokens, ratio in ((None, None), (1600, 1.0), (3200, 2.0)):
        engine = EngineUsage(engine="0", capacity_blocks=100, capacity_tokens=tokens, block_size=16, used_ratio=0.25)
        backend.occupancy.observe(UsageSample(engines=(engine,)), asked_at=0.0)
        backend.review(TierPolicy())
        assert collected(backend, 0.0).get_sample_value("kvguard_block_rule_ratio", {"backend": "b"}) == ratio


def test_blocks_of_tenants_are_read_off_the_ledger() -> None:
    """Known ones apart, 0 included; all others together."""
    backend, registry = new_backend("b", "http://b", OccupancyPolicy(), LengthPolicy()), CollectorRegistry()
    registry.register(PoolCollector(Pool((backend,)), lambda: 0.0, lambda: InForce(tenants=frozenset({"lab", "idle"}))))
    for tenant in ("lab", "x", "y"):
        backend.reserve(Demand(prompts=(3,), output_cap=1, asked_cap=1, expected_output=1), 0.0, tenant)
    held = {
        tenant: registry.get_sample_value("kvguard_tenant_blocks", {"backend": "b", "tenant": tenant})
        for tenant in ("lab", "idle", "other", "x")
    }
    assert held == {"lab": 4, "idle": 0, "other": 8, "x": None}


def test_forecasts_are_counted_by_their_source() -> None:
    """From 0 on, so that a rate can be taken of the first."""
    backend = new_backend("b", "http://b", OccupancyPolicy(), LengthPolicy())
    demand = Demand(prompts=(32,), output_cap=100, asked_cap=100, expected_output=100)
    for length in (20, 21, 22):
        backend.learn(demand, length, LengthForecast(tokens=20, source=LengthSource.PRIOR))
    value = collected(backend, 0.0).get_sample_value
    for source, answers, exceeded in (("learned", 0, 0), ("prior", 3, 2), ("cap", 0, 0)):
        labels = {"backend": "b", "source": source}
        assert value("kvguard_forecast_answers_total", labels) == answers
        assert value("kvguard_forecast_exceeded_total", labels) == exceeded


def test_blocks_that_are_shared_show_apart() -> None:
    """Two requests that begin alike hold their beginning together, and the ledger counts it once."""
    backend = new_backend("b", "http://b", OccupancyPolicy(), LengthPolicy())
    engine = EngineUsage(engine="0", capacity_blocks=100, block_size=16, used_ratio=0.0)
    backend.occupancy.observe(UsageSample(engines=(engine,)), asked_at=0.0)
    for _ in range(2):
        backend.reserve(demand(160, cap=32, prefix=marks(0, 0)), 0.0)
    value = collected(backend, 0.0).get_sample_value
    names = ("kvguard_shared_prefix_blocks", "kvguard_ledger_blocks")
    assert [value(name, {"backend": "b"}) for name in names] == [8, 12]


@pytest.mark.parametrize(("shadowed", "shown"), [(frozenset(), 0), (frozenset({"pool"}), 1), (frozenset({"b"}), 0)])
def test_shadow_mode_shows_by_backend(shadowed: frozenset[str], shown: float) -> None:
    """The setting names a group of backends, and each server of the group shows it."""
    backend, registry = new_backend("b", "http://b", OccupancyPolicy(), LengthPolicy()), CollectorRegistry()
    backend.group = "pool"
    registry.register(PoolCollector(Pool((backend,)), lambda: 0.0, lambda: InForce(shadowed=shadowed)))
    assert registry.get_sample_value("kvguard_shadow_mode", {"backend": "b"}) == shown
