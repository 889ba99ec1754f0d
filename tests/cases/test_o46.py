"""O-46: which paths get through."""

import pytest

from kvguard.proxy.app import GENERATING
from tests.kit.dialects import INVOCATIONS, MESSAGES, RESPONSES
from tests.kit.guard import CHAT, COMPLETIONS, guarding
from tests.kit.raw import raw_client
from tests.kit.stub import Stub, exposition, running_stub

pytestmark = pytest.mark.anyio

CONTROL = ("/sleep", "/collective_rpc", "/reset_prefix_cache", "/v1/load_lora_adapter", "/pause")
DISGUISED = (
    "//sleep",
    "/v1/../sleep",
    "/%73leep",
    "/./sleep",
    "/v1//../sleep",
    "/v1/%2e%2e/sleep",
    "/v1/completions/../../sleep",
    "/v1/completions%2f..%2f..%2fsleep",
    "/v1/models/../../sleep",
    "/sleep/",
    "/sleep?level=2",
    "/SLEEP",
    "http://kvguard/sleep",
)


async def test_a_control_route_is_not_there() -> None:
    """Control routes of the engine are 404 in every disguise and never reach it."""
    async with running_stub() as stub, guarding(stub) as guard, raw_client(guard.service.port) as client:
        for target in CONTROL + DISGUISED:
            for method, body in (("POST", {"level": 1}), ("GET", b"")):
                await client.request(target, body, method=method)
                answer = await client.answer()
                assert answer.status == 404, target
                assert answer.json["error"]["code"] == "not_found"
                assert not stub.hits, target


async def test_a_generating_route_has_one_spelling() -> None:
    """Another spelling of a generating route is 404, so that none gets around admission."""
    async with running_stub() as stub, guarding(stub) as guard, raw_client(guard.service.port) as client:
        disguised = ("//v1/completions", "/v1/%63ompletions", "/v1/../v1/completions", "/v1/completions/")
        for target in (
            *disguised,
            "/v1/messages/",
            "/v1/Messages",
            "/v1//responses",
            "/invocations/",
            "/./invocations",
        ):
            await client.request(target, {"prompt": [1]})
            assert (await client.answer()).status == 404, target
            assert not stub.hits, target


async def test_every_generating_route_goes_through_admission() -> None:
    """At 0.97 each generating route is 503 and nothing reaches the engine."""
    stub = Stub(page=exposition(0.97))
    async with running_stub(stub), guarding(stub) as guard, raw_client(guard.service.port) as client:
        for route in sorted({COMPLETIONS, CHAT, MESSAGES, RESPONSES, INVOCATIONS} | GENERATING.keys()):
            for target in (route, f"{route}?stream=true", f"http://kvguard{route}"):
                await client.request(target, {"prompt": [1], "messages": []})
                answer = await client.answer()
                assert answer.status == 503, target
                assert answer.json["error"]["code"] == "saturated"
                assert not stub.hits, target
