"""What one router came to with one kind of traffic on so many engines under one load, and who the routers are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.overload.slices import Slice
from bench.routing.routers import Kvguard, Router, least_requests, round_robin
from bench.routing.traffic import Turn
from bench.routing.world import Watched

ROUND_ROBIN, LEAST = "round-robin", "least-requests"
GUARDED_ROUND_ROBIN, GUARDED_LEAST = "guarded-round-robin", "guarded-least-requests"
KVGUARD = "kvguard"
RIVALS = (ROUND_ROBIN, LEAST, GUARDED_ROUND_ROBIN, GUARDED_LEAST)
ARMS = (*RIVALS, KVGUARD)

NewRouter = Callable[[int, Sequence[Turn], int], Router]

ROUTERS: dict[str, NewRouter] = {
    ROUND_ROBIN: lambda engines, known, seed: Router(engines, round_robin()),
    LEAST: lambda engines, known, seed: Router(engines, least_requests()),
    GUARDED_ROUND_ROBIN: lambda engines, known, seed: Kvguard(engines, round_robin(), known, seed),
    GUARDED_LEAST: lambda engines, known, seed: Kvguard(engines, least_requests(), known, seed),
    KVGUARD: lambda engines, known, seed: Kvguard(engines, None, known, seed),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """One visit: what clients saw, and what the engines did meanwhile."""

    engines: int
    seen: Slice
    watched: Watched
