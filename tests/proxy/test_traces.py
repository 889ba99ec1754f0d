"""One trace id joins what a client sent, what kvguard says of it, and what the engine got."""

import pytest

from tests.kit.guard import guarding
from tests.kit.stub import Stub, exposition, running_stub

pytestmark = pytest.mark.anyio

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01", "tracestate": "vendor=1"}


async def test_a_trace_goes_through_unchanged_and_is_named_in_logs_and_exemplars() -> None:
    """Of a request that was answered; one without a trace names none."""
    async with running_stub(Stub(page=exposition(0.1))) as stub, guarding(stub) as guard:
        await guard.complete("hi", max_tokens=5, headers={**PARENT, "x-request-id": "mine"})
        await guard.complete("hi", max_tokens=5)
        sent = [dict(hit.headers) for hit in stub.hits]
        assert {name: sent[0][name] for name in PARENT} == PARENT
        assert "traceparent" not in sent[1]
        told = [line for line in guard.logs if line["event"] in ("decision", "end")]
        assert [(line["request_id"], line.get("trace_id")) for line in told[:2]] == [("mine", TRACE)] * 2
        assert all("trace_id" not in line for line in told[2:])
        page = await guard.admin.get("/metrics", headers={"accept": "application/openmetrics-text"})
        assert f'# {{trace_id="{TRACE}"}}' in page.text


async def test_a_refusal_names_its_trace() -> None:
    """Before the body is read, and of a body that is no request."""
    async with running_stub(Stub(page=exposition(0.99))) as stub, guarding(stub) as guard:
        assert (await guard.complete("hi", headers=PARENT)).status_code == 503
    async with running_stub(Stub(page=exposition(0.1))) as stub, guarding(stub) as other:
        assert (await other.complete(7.5, headers=PARENT)).status_code == 400
    for each in (guard, other):
        (line,) = [line for line in each.logs if line["event"] == "decision"]
        assert line["trace_id"] == TRACE
