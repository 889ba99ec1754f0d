"""Backends on the admin port: what each is in for, and the operator's say in it."""

from collections.abc import Callable

from fastapi import APIRouter, Response

from kvguard.pool.backend import Backend
from kvguard.proxy.controller import Controller
from kvguard.telemetry.log import rounded
from kvguard.telemetry.reporter import Reporter

Json = dict[str, object]


def backend_routes(controller: Controller, now: Callable[[], float], reporter: Reporter) -> APIRouter:
    """The routes. Names may hold slashes: those of discovered servers do."""
    router = APIRouter(prefix="/backends")

    def want(name: str, response: Response, *, drained: bool) -> Json:
        backend = controller.pool.named(name)
        if backend is None:
            response.status_code = 404
            return {"error": "there is no backend of this name; GET /backends lists them"}
        reporter.standing(backend.drain(drained=drained, now=now()))
        controller.on_freed()
        return _described(backend, now())

    @router.get("")
    async def backends() -> list[Json]:
        """Every backend: what it is in for, how full it is, and what it serves."""
        return [_described(backend, now()) for backend in controller.backends]

    @router.post("/{name:path}/drain")
    async def drain(name: str, response: Response) -> Json:
        """Give a backend no new requests; what is in flight there runs to its end."""
        return want(name, response, drained=True)

    @router.post("/{name:path}/resume")
    async def resume(name: str, response: Response) -> Json:
        """Give a drained backend requests again."""
        return want(name, response, drained=False)

    return router


def _described(backend: Backend, now: float) -> dict[str, object]:
    capacity = backend.occupancy.capacity
    return {
        "name": backend.name,
        "url": backend.url,
        "standing": backend.health.standing(now).value,
        "telemetry": backend.occupancy.telemetry(now).value,
        "condition": backend.condition(now).state.value,
        "tier": int(backend.tier.tier),
        "usage": rounded(backend.occupancy.ratios(now)),
        "capacity_blocks": capacity.blocks if capacity else None,
        "inflight_requests": backend.ledger.live,
        "models": sorted(backend.models),
    }
