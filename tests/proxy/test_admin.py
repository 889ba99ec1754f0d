"""The admin port and the edges of the traffic port."""

import pytest

from tests.kit.guard import guarding
from tests.kit.stub import Stub, exposition, refusing_stub, running_stub

pytestmark = pytest.mark.anyio


async def test_full_is_neither_dead_nor_unready() -> None:
    """At 99 % and with a request in flight both probes say yes."""
    async with running_stub(Stub(page=exposition(0.99))) as stub, guarding(stub) as guard:
        assert (await guard.admin.get("/healthz")).json() == {"status": "alive"}
        ready = await guard.admin.get("/readyz")
        assert (ready.status_code, ready.json()) == (
            200,
            {"ready": True, "status": "ready", "backends": {"b0": "fresh"}, "why": []},
        )


async def test_without_a_backend_kvguard_is_alive_but_not_ready() -> None:
    """Liveness depends on the process alone; readiness says which backend is missing."""
    with refusing_stub() as stub:
        async with guarding(stub) as guard:
            assert (await guard.admin.get("/healthz")).status_code == 200
            ready = await guard.admin.get("/readyz")
            assert ready.status_code == 503
            assert ready.json() == {
                "ready": False,
                "status": "starting",
                "backends": {"b0": "unreachable"},
                "why": ["b0: cannot be reached (ConnectError)"],
            }


@pytest.mark.parametrize(
    ("accept", "kind", "end"),
    [
        ("", "text/plain", ""),
        ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text", "# EOF\n"),
    ],
)
async def test_metrics_come_in_the_format_asked_for(accept: str, kind: str, end: str) -> None:
    """Prometheus text by default, OpenMetrics with its terminator when asked."""
    async with running_stub() as stub, guarding(stub) as guard:
        page = await guard.admin.get("/metrics", headers={"accept": accept})
        assert page.headers["content-type"].startswith(kind)
        assert 'kvguard_tier{backend="b0"} 0.0' in page.text
        assert page.text.endswith(end)
        assert "_created" not in page.text
