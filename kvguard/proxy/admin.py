"""The admin port: metrics, health, explanations, backends. Saturation is neither death nor unreadiness."""

import dataclasses
from collections.abc import Callable
from typing import Annotated

from fastapi import FastAPI, Header, Query, Request, Response
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from kvguard.proxy.admin_backends import backend_routes
from kvguard.proxy.controller import Controller
from kvguard.proxy.exchange import ClientGone
from kvguard.proxy.explain import ExplainPort
from kvguard.proxy.readiness import Readiness
from kvguard.telemetry.reporter import Reporter


def create_admin(
    controller: Controller,
    registry: CollectorRegistry,
    now: Callable[[], float],
    explain: ExplainPort,
    reporter: Reporter,
    readiness: Callable[[], Readiness],
) -> FastAPI:
    """The admin application."""
    app = FastAPI(title="kvguard admin", docs_url="/docs", redoc_url=None)
    app.include_router(backend_routes(controller, now, reporter))

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Alive: depends on this process alone."""
        return {"status": "alive"}

    @app.get("/readyz")
    async def readyz(response: Response) -> dict[str, object]:
        """Ready: not shutting down and some backend can be decided on. A full backend stays ready."""
        state = readiness()
        response.status_code = 200 if state.ready else 503
        return dataclasses.asdict(state)

    @app.get("/metrics")
    async def metrics(accept: Annotated[str, Header()] = "") -> Response:
        """Prometheus or OpenMetrics text, as asked for."""
        encode, content_type = choose_encoder(accept)
        return Response(encode(registry), media_type=content_type)

    @app.post("/debug/explain")
    async def debug_explain(request: Request, route: Annotated[str | None, Query()] = None) -> Response:
        """What would happen to the request in the body, and why. Nothing is forwarded, reserved or counted."""
        try:
            answer = await explain.answer(request.scope, request.receive, route)
        except ClientGone:
            return Response(status_code=400)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in answer.headers}
        return Response(answer.body, answer.status, headers)

    return app
