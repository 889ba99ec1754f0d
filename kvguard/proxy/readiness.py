"""Whether anything can be decided here, and if not, why. Full is not unready: that is what refusals are for."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvguard.admission.occupancy import TelemetryState
from kvguard.pool.backend import Backend
from kvguard.proxy.controller import Controller


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """What `/readyz` says: `why` has a line for each thing that is in the way."""

    ready: bool
    status: str
    backends: Mapping[str, str]
    why: tuple[str, ...] = ()


def usable(backend: Backend, now: float) -> bool:
    """Whether requests for this backend can be decided on."""
    occupancy = backend.occupancy
    known = occupancy.capacity is not None and occupancy.telemetry(now) is not TelemetryState.UNREACHABLE
    return known and backend.health.wanted


def obstacles(controller: Controller, troubles: Mapping[str, str], now: float) -> tuple[str, ...]:
    """Why each backend that is not usable is not; `troubles` are those of the last scrapes."""
    if not controller.backends:
        return ("no server has been found yet",)
    unusable = (backend for backend in controller.backends if not usable(backend, now))
    return tuple(f"{backend.name}: {_obstacle(backend, troubles.get(backend.name, ''), now)}" for backend in unusable)


def _obstacle(backend: Backend, trouble: str, now: float) -> str:
    detail = f" ({trouble})" if trouble else ""
    if not backend.health.wanted:
        return f"takes no new requests ({backend.health.standing(now).value})"
    if backend.occupancy.telemetry(now) is TelemetryState.UNREACHABLE:
        return f"cannot be reached{detail}"
    return f"answers, but the size of its KV cache is neither on its /metrics nor in the settings{detail}"
