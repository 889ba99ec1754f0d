"""The snapshot says what the ledger holds."""

import msgspec

from kvguard.admission.tiers import TierPolicy
from kvguard.clock import ManualClock
from kvguard.pool.backend import Backend
from kvguard.telemetry.live.build import LEAST_STRIPS, STRIPS, Facts, snapshot
from kvguard.telemetry.live.record import Record
from kvguard.telemetry.live.view import Snapshot
from tests.admission.build import demand
from tests.kit.explaining import NOW, backend_at

FACTS = Facts(
    version="1",
    phase="serving",
    ready=True,
    settings_hash="abc",
    tiers=TierPolicy(),
    shadowed=frozenset({"dark"}),
    waiting=2,
    waiting_most=8,
)


def seen(*backends: Backend) -> Snapshot:
    clock = ManualClock(NOW)
    taken = snapshot(backends, Record(clock.now, clock.wall), FACTS, now=NOW, wall=1e9)
    return msgspec.json.decode(msgspec.json.encode(taken), type=Snapshot)


def test_a_strip_is_prompt_produced_and_still_to_come() -> None:
    """In blocks; the three come to what the ledger expects of the request."""
    backend = backend_at("b0", 0.0)
    reservation = backend.reserve(demand(32, cap=64), NOW)
    backend.ledger.progress(reservation, 20)
    (server,) = seen(backend).servers
    assert server.memory.strips == (
        (2, reservation.held_blocks - 2, reservation.reserved_blocks - reservation.held_blocks),
    )
    assert sum(server.memory.strips[0]) == backend.ledger.reserved_blocks
    assert (server.requests, server.sequences, server.tier) == (1, 1, 0)
    assert server.usage.projected > 0
    assert server.demand_ratio == server.usage.reserved


def test_of_many_requests_the_largest_are_told_one_by_one() -> None:
    """The sums of the others come to what is left, and no server has too few strips."""
    backend = backend_at("b0", 0.0)
    for number in range(STRIPS + 50):
        backend.reserve(demand(16 + number % 7 * 16, cap=16), NOW)
    memory = seen(backend).servers[0].memory
    assert (len(memory.strips), memory.rest_requests) == (STRIPS, 50)
    assert sum(map(sum, memory.strips)) + sum(memory.rest) == backend.ledger.reserved_blocks
    assert min(map(sum, memory.strips)) >= max(1, sum(memory.rest) // 50)
    crowd = seen(backend, *(backend_at(f"b{number}", 0.0) for number in range(1, 400)))
    assert len(crowd.servers[0].memory.strips) == LEAST_STRIPS


def test_what_is_not_known_is_none() -> None:
    """A server without a capacity has neither usage nor a map, and the page can still be drawn."""
    (server,) = seen(backend_at("b0", None)).servers
    assert (server.usage, server.memory, server.capacity_tokens, server.demand_ratio) == (None, None, None, None)


def test_facts_beside_the_servers() -> None:
    """Thresholds, who waits, which settings, and what is in shadow mode."""
    backend = backend_at("dark", 0.4)
    taken = seen(backend)
    assert (taken.thresholds, taken.waiting, taken.waiting_most) == ((0.7, 0.85, 0.95), 2, 8)
    assert (taken.settings_hash, taken.phase, taken.ready, taken.moment) == ("abc", "serving", True, None)
    assert taken.servers[0].shadow
    assert taken.servers[0].memory.foreign_blocks > 0
