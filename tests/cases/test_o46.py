"""O-46: which paths get through."""

import json
from typing import Any

import pytest

from kvguard.protocols.routes import VLLM
from tests.kit.guard import guarding
from tests.kit.raw import raw_client
from tests.kit.stub import Stub, completion, exposition, running_stub

pytestmark = pytest.mark.anyio

# Every path in vLLM 0.32's own description of itself, and those it leaves out.
DESCRIBED = (
    *("/load", "/version", "/kv_event_sources", "/health", "/metrics", "/tokenize", "/detokenize", "/v1/models"),
    *("/v1/systemone", "/ping", "/invocations", "/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache"),
    *("/collective_rpc", "/server_info", "/sleep", "/release_kv_cache_memory", "/wake_up", "/is_sleeping", "/pause"),
    *("/resume", "/abort_requests", "/is_paused", "/init_weight_transfer_engine", "/shutdown_weight_transfer_engine"),
    *("/start_weight_update", "/start_draft_weight_update", "/update_weights", "/finish_weight_update"),
    *("/update_weight_version", "/weight_info", "/weight_checker", "/get_world_size", "/v1/chat/completions"),
    *("/v1/chat/completions/batch", "/v1/responses", "/v1/responses/resp_1", "/v1/responses/resp_1/cancel"),
    *("/v1/completions", "/v1/messages", "/v1/messages/count_tokens", "/generative_scoring", "/scale_elastic_ep"),
    "/is_scaling_elastic_ep",
)
LEFT_OUT = (
    *("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/start_profile", "/stop_profile", "/openapi.json", "/docs"),
    *("/v1/completions/derender", "/v1/chat/completions/derender", "/inference/v1/abort_requests", "/cohere/v2/chat"),
    *("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/realtime", "/redoc", "/"),
)
CONTROL = tuple(path for path in (*DESCRIBED, *LEFT_OUT) if path not in VLLM.generating and path not in VLLM.reads)
# What no table may ever let through.
NEVER = (
    *("/sleep", "/wake_up", "/pause", "/resume", "/collective_rpc", "/reset_prefix_cache", "/abort_requests"),
    *("/update_weights", "/scale_elastic_ep", "/server_info", "/metrics", "/v1/load_lora_adapter"),
    *("/v1/completions/derender", "/inference/v1/abort_requests", "/v1/responses/resp_1", "/start_profile"),
)
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

CONVERSATION = [{"role": "user", "content": "hi"}]
# The least that each generating route takes.
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": [1]},
    "/v1/chat/completions": {"messages": CONVERSATION},
    "/v1/chat/completions/batch": {"messages": [CONVERSATION]},
    "/v1/messages": {"messages": CONVERSATION, "max_tokens": 1},
    "/v1/responses": {"input": "hi"},
    "/invocations": {"prompt": [1]},
    "/inference/v1/generate": {"token_ids": [1], "sampling_params": {}},
    "/generative_scoring": {"query": "q", "items": ["a"], "label_token_ids": [1]},
    "/v1/embeddings": {"input": "hi"},
    "/v2/embed": {"texts": ["hi"]},
    "/pooling": {"input": "hi"},
    "/classify": {"input": "hi"},
    "/score": {"queries": "q", "documents": ["d"]},
    "/v1/score": {"queries": "q", "documents": ["d"]},
    "/rerank": {"query": "q", "documents": ["d"]},
    "/v1/rerank": {"query": "q", "documents": ["d"]},
    "/v2/rerank": {"query": "q", "documents": ["d"]},
}


async def always(call: Any) -> None:
    await call.reply(200, completion())


def test_what_must_stay_out_is_in_no_table() -> None:
    """Control, debug, weights, adapters, stored answers and what undoes a rendering are neither served nor passed."""
    assert set(NEVER) <= set(CONTROL)
    assert not VLLM.generating.keys() & VLLM.reads.keys()


async def test_a_control_route_is_not_there() -> None:
    """All that is in neither table is 404 in every disguise and never reaches the engine."""
    async with running_stub() as stub, guarding(stub) as guard, raw_client(guard.service.port) as client:
        for target in (*CONTROL, *DISGUISED):
            for method, body in (("POST", {"level": 1}), ("GET", b""), ("DELETE", b"")):
                await client.request(target, body, method=method)
                answer = await client.answer()
                assert answer.status == 404, target
                assert answer.json["error"]["code"] == "not_found"
                assert not stub.hits, target


@pytest.mark.parametrize("path", [path for path in NEVER if path != "/sleep"])
async def test_every_control_route_is_disguised_in_vain(path: str) -> None:
    """Doubled and trailing slashes, steps up, and escaped letters make no route of it."""
    escaped = f"/%{ord(path[1]):02x}{path[2:]}"
    async with running_stub() as stub, guarding(stub) as guard, raw_client(guard.service.port) as client:
        for target in (f"/{path}", f"/v1/..{path}", escaped, f"{path}/", f"{path}?x=1", f"{path};x=1", path.upper()):
            await client.request(target, {})
            assert (await client.answer()).status == 404, target
        assert not stub.hits


async def test_a_generating_route_has_one_spelling() -> None:
    """Another spelling of any of them is 404, so that none gets around admission."""
    async with running_stub() as stub, guarding(stub) as guard, raw_client(guard.service.port) as client:
        for route in VLLM.generating:
            escaped = f"/%{ord(route[1]):02x}{route[2:]}"
            for target in (f"/{route}", escaped, f"/v1/..{route}", f"{route}/"):
                await client.request(target, BODIES[route])
                assert (await client.answer()).status == 404, target
                assert not stub.hits, target


async def test_every_generating_route_goes_through_admission() -> None:
    """At 0.97 each generating route is 503 and nothing reaches the engine."""
    stub = Stub(page=exposition(0.97))
    async with running_stub(stub), guarding(stub) as guard, raw_client(guard.service.port) as client:
        for route in VLLM.generating:
            for target in (route, f"{route}?stream=true", f"http://kvguard{route}"):
                await client.request(target, BODIES[route])
                answer = await client.answer()
                assert (answer.status, answer.headers["x-kvguard-reason"]) == (503, "saturated"), target
                assert "error" in answer.json
                assert not stub.hits, target
        assert not stub.tokenized


async def test_every_generating_route_is_served_below() -> None:
    """At 0.10 each passes with its own bytes, is counted under its path and holds nothing afterwards."""
    stub = Stub(page=exposition(0.10), answer=always)
    async with running_stub(stub), guarding(stub) as guard, raw_client(guard.service.port) as client:
        for number, route in enumerate(VLLM.generating, 1):
            await client.request(route, BODIES[route])
            answer = await client.answer()
            assert (answer.status, answer.headers["x-kvguard-tier"]) == (200, "0"), route
            assert len(stub.hits) == number, route
            assert (stub.hits[-1].target, stub.hits[-1].body) == (route, json.dumps(BODIES[route]).encode())
            labels = {"route": route, "outcome": "admitted", "tier": "0", "reason": "", "mode": "enforce"}
            assert guard.metric("kvguard_requests_total", **labels) == 1, route
        await guard.until(lambda: guard.backend.ledger.live == 0)


async def test_a_body_that_is_none_of_its_route_is_told_so() -> None:
    """Each generating route names what is wrong in its own error shape, and nothing reaches the engine."""
    async with running_stub() as stub, guarding(stub) as guard, raw_client(guard.service.port) as client:
        for route in VLLM.generating:
            await client.request(route, {})
            answer = await client.answer()
            assert (answer.status, answer.headers["x-kvguard-reason"]) == (400, "invalid_request"), route
            assert "error" in answer.json
            assert not stub.hits, route


@pytest.mark.parametrize("gauge", [0.10, 0.75, 0.90, 0.99])
async def test_harmless_reads_pass_at_any_tier(gauge: float) -> None:
    """They take no KV: with their one method they reach the engine as they came, however full its cache is."""
    stub = Stub(page=exposition(gauge), answer=always)
    async with running_stub(stub), guarding(stub) as guard, raw_client(guard.service.port) as client:
        for path, method in VLLM.reads.items():
            body: dict[str, Any] | bytes = {"prompt": "hi", "messages": []} if method == "POST" else b""
            await client.request(path, body, method=method)
            assert (await client.answer()).status == 200, path
            await client.request(path, body, method="GET" if method == "POST" else "POST")
            assert (await client.answer()).status == 405, path
        passed = [*stub.hits, *stub.tokenized]
        assert {hit.target for hit in passed} == VLLM.reads.keys() - {"/v1/models"}
        assert {hit.body for hit in passed if hit.method == "POST"} == {b'{"prompt": "hi", "messages": []}'}
        assert guard.backend.ledger.live == 0
