"""O-48: headers that clients must not set."""

import pytest

from kvguard.proxy.identity import ANONYMOUS, fingerprint
from tests.kit.guard import Guard, guarding
from tests.kit.stub import Call, Stub, completion, running_stub

pytestmark = pytest.mark.anyio

NAMES = {"tenant_header": "X-Tenant-Id", "priority_header": "x-priority"}
KEY = "sk-canary-48"


async def ten_tenants(guard: Guard) -> set[str]:
    """Tenants that ten requests with ten names of their own count as."""
    for number in range(10):
        headers = {"x-tenant-id": f"t{number}", "x-priority": "exempt", "X-KVGuard-Tier": "0"}
        assert (await guard.complete(headers=headers)).status_code == 200
    return {line["tenant"] for line in guard.logs if line["event"] == "decision"}


def identity_headers(stub: Stub) -> set[str]:
    """Headers about who is asking that reached the backend."""
    return {
        f"{name}: {value}"
        for hit in stub.hits
        for name, value in hit.headers.items()
        if name in ("x-tenant-id", "x-priority") or name.startswith("x-kvguard")
    }


@pytest.mark.parametrize("trusted", [[], ["10.0.0.0/8"]])
async def test_what_a_client_says_of_itself_is_ignored_and_goes_nowhere(trusted: list[str]) -> None:
    """Ten names are one tenant of the normal class, and the backend sees none of them."""
    async with running_stub() as stub, guarding(stub, identity={**NAMES, "trusted_proxies": trusted}) as guard:
        assert await ten_tenants(guard) == {ANONYMOUS}
        assert {line["priority"] for line in guard.logs if line["event"] == "decision"} == {"normal"}
        await guard.client.get("/v1/models", headers={"x-tenant-id": "me"})
        assert identity_headers(stub) == set()


async def test_a_trusted_hop_names_tenants() -> None:
    """Ten names are ten tenants, and the hop's headers go on; kvguard's own never do. None becomes a label."""
    async with running_stub() as stub, guarding(stub, identity={**NAMES, "trusted_proxies": ["127.0.0.1"]}) as guard:
        assert await ten_tenants(guard) == {f"t{number}" for number in range(10)}
        assert identity_headers(stub) == {f"x-tenant-id: t{number}" for number in range(10)} | {"x-priority: exempt"}
        labels = {"priority": "exempt", "outcome": "admitted", "mode": "enforce"}
        assert guard.metric("kvguard_caller_requests_total", tenant="other", **labels) == 10
        assert guard.metric("kvguard_caller_requests_total", tenant="t1", **labels) is None


async def test_a_client_cannot_pick_its_keys_tenant() -> None:
    """A known key is its holder whatever else the client says, and shows nowhere but in the request itself."""
    keys = {fingerprint(KEY.encode()): {"tenant": "lab", "priority": "critical"}}
    async with running_stub() as stub, guarding(stub, identity={**NAMES, "keys": keys}) as guard:
        for key in (KEY, "sk-made-up-1", "sk-made-up-2"):
            headers = {"authorization": f"Bearer {key}", "x-tenant-id": "someone"}
            assert (await guard.complete(headers=headers)).status_code == 200
        said = [(line["tenant"], line["priority"]) for line in guard.logs if line["event"] == "decision"]
        assert said == [("lab", "critical"), (ANONYMOUS, "normal"), (ANONYMOUS, "normal")]
        assert stub.hits[0].headers["authorization"] == f"Bearer {KEY}"
        page = (await guard.admin.get("/metrics")).text
        assert 'tenant="lab"' in page
        assert "sk-" not in guard.log_stream.getvalue() + page


async def test_a_backend_cannot_speak_for_kvguard_either() -> None:
    """An answer's own x-kvguard headers never reach the client."""

    async def boastful(call: Call) -> None:
        await call.reply(200, completion(), "content-type: application/json\r\nx-kvguard-reason: saturated\r\n")

    async with running_stub(Stub(answer=boastful)) as stub, guarding(stub) as guard:
        answer = await guard.complete()
        assert answer.status_code == 200
        assert "x-kvguard-reason" not in answer.headers
