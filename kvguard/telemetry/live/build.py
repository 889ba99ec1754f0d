"""The live snapshot out of what a kvguard knows. Reads, and changes nothing."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from kvguard.admission.blocks import BlockRule
from kvguard.admission.ledger import Reservation
from kvguard.admission.tiers import TierPolicy
from kvguard.pool.backend import Backend
from kvguard.telemetry.live.record import Record
from kvguard.telemetry.live.view import Memory, Server, Snapshot, Usage
from kvguard.telemetry.live.words import headline

# So many strips over all backends are sent one by one, of each backend at least the least.
STRIPS: Final = 1000
LEAST_STRIPS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the snapshot tells beside the backends."""

    version: str
    phase: str
    ready: bool
    settings_hash: str
    tiers: TierPolicy
    shadowed: frozenset[str]
    waiting: int
    waiting_most: int


def snapshot(backends: Sequence[Backend], record: Record, facts: Facts, *, now: float, wall: float) -> Snapshot:
    """Everything at this moment; `wall` in seconds since the epoch."""
    most = max(LEAST_STRIPS, STRIPS // max(1, len(backends)))
    servers = tuple(_server(backend, facts.shadowed, most, now) for backend in backends)
    thresholds = (facts.tiers.trim.enter, facts.tiers.restrict.enter, facts.tiers.reject.enter)
    traffic = record.traffic()
    return Snapshot(
        at=round(wall, 2),
        version=facts.version,
        phase=facts.phase,
        ready=facts.ready,
        settings_hash=facts.settings_hash,
        thresholds=thresholds,
        waiting=facts.waiting,
        waiting_most=facts.waiting_most,
        headline=headline(servers, traffic, thresholds, waiting=facts.waiting, phase=facts.phase),
        traffic=traffic,
        servers=servers,
        happenings=record.happenings,
        moment=record.moments[-1] if record.moments else None,
    )


def _server(backend: Backend, shadowed: frozenset[str], most: int, now: float) -> Server:
    occupancy, ratios = backend.occupancy, backend.occupancy.ratios(now)
    capacity, condition = occupancy.capacity, backend.condition(now)
    return Server(
        name=backend.name,
        tier=int(backend.tier.tier),
        shadow=backend.group in shadowed,
        standing=backend.health.standing(now).value,
        telemetry=occupancy.telemetry(now).value,
        condition=condition.state.value,
        requests=backend.ledger.live,
        sequences=backend.ledger.sequences,
        gauge_age_seconds=_rounded(occupancy.age_seconds(now), 1),
        engine_waiting=condition.queue,
        capacity_tokens=capacity.tokens if capacity else None,
        demand_ratio=_rounded(backend.demand_ratio(now), 3),
        half_free_seconds=_half_free(backend, now) if backend.tier.tier else None,
        usage=None
        if ratios is None
        else Usage(
            observed=_rounded(ratios.observed, 4),
            projected=round(ratios.projected, 4),
            reserved=round(ratios.reserved, 4),
            peak=round(ratios.peak, 4),
        ),
        memory=_memory(backend, capacity.blocks, most, now) if capacity else None,
    )


def _half_free(backend: Backend, now: float) -> float | None:
    half = max(backend.ledger.profile.peak, backend.ledger.held_blocks) / 2
    return _rounded(backend.drain_seconds(half, now) if half else None, 1)


def _memory(backend: Backend, capacity_blocks: int, most: int, now: float) -> Memory:
    ledger, occupancy = backend.ledger, backend.occupancy
    foreign = occupancy.beside(occupancy.capacity, now).foreign_blocks if occupancy.capacity else 0.0
    largest = heapq.nlargest(most, ledger.reservations, key=attrgetter("reserved_blocks"))
    held = ledger.held_blocks - ledger.shared_blocks - sum(each.held_blocks for each in largest)
    reserved = ledger.reserved_blocks - ledger.shared_blocks - sum(each.reserved_blocks for each in largest)
    return Memory(
        capacity_blocks=capacity_blocks,
        foreign_blocks=max(0, round(foreign)),
        shared_blocks=ledger.shared_blocks,
        strips=tuple(_strip(reservation, ledger.rule) for reservation in largest),
        rest_requests=ledger.live - len(largest),
        rest=(held, reserved - held),
    )


def _strip(reservation: Reservation, rule: BlockRule) -> tuple[int, int, int]:
    held = reservation.held_blocks
    prompt = min(held, reservation.demand.prompt_blocks(rule))
    return prompt, held - prompt, reservation.reserved_blocks - held


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
