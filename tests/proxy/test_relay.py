"""The relay and the pipeline on real sockets: what reaches the client when answers are odd."""

import asyncio
import contextlib
import json
from pathlib import Path

import pytest

from tests.kit.guard import COMPLETIONS, guarding
from tests.kit.raw import raw_client, request_head
from tests.kit.stub import Call, Stub, completion, hold, hold_until, running_stub
from tests.kit.tokenizer import write_tokenizer

pytestmark = pytest.mark.anyio


async def test_a_big_answer_passes_whole_although_its_usage_is_not_kept() -> None:
    """Above the size that is kept for reading, the body still arrives byte for byte; only its usage is unknown."""
    big = json.dumps({**completion(), "padding": "x" * 400_000}).encode()

    async def answer(call: Call) -> None:
        await call.reply(200, big)

    async with running_stub(Stub(answer=answer)) as stub, guarding(stub) as guard:
        answered = await guard.complete([1, 2], max_tokens=1)
        assert answered.content == big
        assert guard.metric("kvguard_prompt_error_tokens_count", source="ids") == 0
        assert guard.metric("kvguard_exchanges_total", route=COMPLETIONS, end="complete") == 1


async def test_an_empty_answer_passes() -> None:
    """A 204 without a body ends like any other answer."""

    async def answer(call: Call) -> None:
        await call.raw(b"HTTP/1.1 204 No Content\r\n\r\n")

    async with running_stub(Stub(answer=answer)) as stub, guarding(stub) as guard:
        answered = await guard.complete([1], max_tokens=1)
        assert (answered.status_code, answered.content) == (204, b"")


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
async def test_a_backends_own_refusal_passes_and_teaches_nothing(status: int) -> None:
    """Status and body are the backend's; 429 and 503 get a Retry-After if they have none."""

    async def answer(call: Call) -> None:
        await call.reply(status, {"error": {"message": "no", "code": status}})

    async with running_stub(Stub(answer=answer)) as stub, guarding(stub) as guard:
        answered = await guard.complete([1], max_tokens=1)
        assert (answered.status_code, answered.json()["error"]["code"]) == (status, status)
        assert ("retry-after" in answered.headers) == (status in (429, 503))
        assert guard.backend.occupancy.lengths.expected(cap=1, produced=0) is None
        assert guard.telemetry() == "fresh"


async def test_an_answer_cut_after_it_began_ends_with_its_connection() -> None:
    """A client can tell a broken plain answer from a whole one: the promised length never comes."""

    async def answer(call: Call) -> None:
        await call.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{")
        call.reset()

    async with (
        running_stub(Stub(answer=answer)) as stub,
        guarding(stub) as guard,
        raw_client(guard.service.port) as raw,
    ):
        await raw.request(COMPLETIONS, {"prompt": [1], "max_tokens": 1})
        with pytest.raises((EOFError, ConnectionError)):
            await raw.answer()
        await guard.until(lambda: guard.backend.ledger.live == 0)
        assert guard.metric("kvguard_exchanges_total", route=COMPLETIONS, end="upstream_error") == 1


async def test_harmless_reads_pass_whatever_the_tier() -> None:
    """Models and tokenisation are served by the backend even while generation is refused."""
    async with running_stub() as stub, guarding(stub) as guard:
        stub.page = stub.page.replace("} 0.0", "} 0.99", 1)
        await guard.scrape()
        assert (await guard.complete([1])).status_code == 503
        assert (await guard.client.get("/v1/models")).json()["data"][0]["id"] == "tiny"
        assert (await guard.client.post("/tokenize", json={"prompt": "x"})).json()["count"] == 16
        wrong = await guard.client.get(COMPLETIONS)
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")


async def test_a_read_of_a_dead_backend_is_an_explained_error() -> None:
    """Reads get the same error shape as everything else."""
    stub = Stub()
    async with running_stub(stub):
        pass
    async with guarding(stub) as guard:
        answered = await guard.client.get("/v1/models")
        assert (answered.status_code, answered.json()["error"]["code"]) == (502, "backend_unreachable")


async def test_a_read_with_a_huge_body_is_refused() -> None:
    """The body limit holds on every route."""
    async with running_stub() as stub, guarding(stub, limits={"max_body_bytes": 100}) as guard:
        answered = await guard.client.post("/tokenize", json={"prompt": "x" * 200})
        assert (answered.status_code, answered.json()["error"]["code"]) == (413, "body_too_large")
        assert stub.tokenized == []


async def test_a_fault_of_kvguards_own_is_a_500_without_its_insides(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client gets the API's error shape, the log type and place, and the next request is served."""
    async with running_stub() as stub, guarding(stub) as guard:
        monkeypatch.setattr(type(guard.service.controller), "admit", None)
        answered = await guard.complete([1], max_tokens=1)
        assert (answered.status_code, answered.json()["error"]["code"]) == (500, "internal_error")
        assert guard.logs[-1]["error"] == "TypeError"
        monkeypatch.undo()
        assert (await guard.complete([1], max_tokens=1)).status_code == 200


async def test_opting_out_means_refusal_instead_of_degradation() -> None:
    """Only where it is allowed: the request is then served unchanged or not at all."""
    page = Stub().page.replace("} 0.0", "} 0.75", 1)
    headers = {"x-kvguard-degrade": "none"}
    for allowed, changed in ((True, False), (False, True)):
        async with (
            running_stub(Stub(page=page)) as stub,
            guarding(stub, degrade={"allow_opt_out": allowed}) as guard,
        ):
            answered = await guard.complete([1], max_tokens=100, headers=headers)
            assert answered.status_code == 200
            assert ("x-kvguard-degraded" in answered.headers) is changed
            assert "x-kvguard-degrade" not in stub.hits[0].headers
            big = await guard.complete([1], max_tokens=400, headers=headers)
            assert big.status_code == (503 if allowed else 200)


async def test_a_reasoning_model_is_never_trimmed() -> None:
    """A model the operator flagged keeps its cap at TRIM."""
    page = Stub().page.replace("} 0.0", "} 0.75", 1)
    async with running_stub(Stub(page=page)) as stub, guarding(stub, degrade={"reasoning_models": ["tiny"]}) as guard:
        answered = await guard.complete([1], max_tokens=100)
        assert (answered.headers["x-kvguard-tier"], stub.hits[0].json["max_tokens"]) == ("1", 100)


async def test_the_model_a_header_names_is_the_one_that_counts() -> None:
    """Nobody gets past what holds for a model by naming another in the body, and the engine sees the header."""
    header = {"x-amzn-sagemaker-adapter-identifier": "tiny"}
    page = Stub().page.replace("} 0.0", "} 0.75", 1)
    async with running_stub(Stub(page=page)) as stub, guarding(stub, degrade={"reasoning_models": ["tiny"]}) as guard:
        body = {"model": "other", "prompt": [1], "max_tokens": 100}
        answered = await guard.client.post("/invocations", json=body, headers=header)
        assert (answered.headers["x-kvguard-tier"], stub.hits[0].json) == ("1", body)
        assert stub.hits[0].headers.items() >= header.items()


async def test_a_stream_in_which_the_backend_reports_an_error_is_not_an_answer() -> None:
    """It passes as it is, counts as an upstream error, and its length teaches nothing."""

    async def answer(call: Call) -> None:
        await call.start_stream()
        await call.event({"error": {"message": "no", "code": 500}})
        await call.event({"choices": [], "usage": completion(1, 2)["usage"]})
        await call.end_stream()

    sections = {"forecast": {"min_answers": 1}}
    async with running_stub(Stub(answer=answer)) as stub, guarding(stub, **sections) as guard:
        asked = {"stream_options": {"include_usage": True}}
        answered = await guard.complete([1], max_tokens=50, stream=True, **asked)
        assert answered.text.count("data: ") == 3
        assert guard.metric("kvguard_exchanges_total", route=COMPLETIONS, end="upstream_error") == 1
        assert guard.backend.occupancy.lengths.expected(cap=50, produced=0) is None


@pytest.mark.parametrize("usage", [True, False])
async def test_only_the_engines_own_figure_teaches_how_long_answers_are(usage: bool) -> None:
    """Events may carry many tokens each, so a stream without usage says nothing of its length."""

    async def answer(call: Call) -> None:
        await call.start_stream()
        await call.token()
        if usage:
            await call.event({"choices": [], "usage": completion(1, 40)["usage"]})
        await call.end_stream()

    sections = {"forecast": {"min_answers": 1}}
    async with running_stub(Stub(answer=answer)) as stub, guarding(stub, **sections) as guard:
        await guard.complete([1], max_tokens=50, stream=True)
        assert guard.backend.occupancy.lengths.expected(cap=50, produced=0) == (40 if usage else None)


async def test_lengths_are_learned_by_class_and_never_by_tenant() -> None:
    """Another class learns from what is common to all; a tenant makes no population."""

    async def answer(call: Call) -> None:
        await call.reply(200, completion(1, 40))

    sections = {
        "forecast": {"min_answers": 1},
        "identity": {"tenant_header": "x-tenant", "priority_header": "x-class", "trusted_proxies": ["127.0.0.1"]},
    }
    async with running_stub(Stub(answer=answer)) as stub, guarding(stub, **sections) as guard:
        for tenant, priority in (("lab", "sheddable"), ("shop", "critical"), ("shop", "made-up")):
            headers = {"x-tenant": tenant, "x-class": priority}
            assert (await guard.complete([1], max_tokens=50, headers=headers)).status_code == 200
        callers = {each.caller for each in guard.backend.occupancy.lengths.saved()}
        assert callers == {"", "sheddable", "critical", "normal"}


@pytest.mark.parametrize("status", [101, 600, 999])
async def test_a_status_that_is_no_answer_is_a_broken_backend(status: int) -> None:
    """Protocol switches and numbers out of range become a 502 in the API's shape."""

    async def answer(call: Call) -> None:
        await call.raw(f"HTTP/1.1 {status} Odd\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n".encode())
        call.closing = True

    async with running_stub(Stub(answer=answer)) as stub, guarding(stub) as guard:
        answered = await guard.complete([1], max_tokens=1)
        assert (answered.status_code, answered.json()["error"]["code"]) == (502, "backend_unreachable")
        assert guard.backend.ledger.live == 0


async def test_garbage_on_a_reused_connection_is_not_asked_for_again() -> None:
    """The backend had begun to answer, if badly: one request, one attempt."""
    calls = []

    async def answer(call: Call) -> None:
        calls.append(call)
        if len(calls) == 1:
            await call.reply(200, completion())
            return
        await call.raw(b"rubbish\r\n\r\n")
        call.closing = True

    async with running_stub(Stub(answer=answer)) as stub, guarding(stub) as guard:
        assert (await guard.complete([1], max_tokens=1)).status_code == 200
        assert (await guard.complete([1], max_tokens=1)).status_code == 502
        assert len(calls) == 2


async def test_requests_to_a_dead_backend_count_as_failed_scrapes() -> None:
    """After as many refused connections as scrapes would need, the backend is unreachable, before the gauge is old."""
    stub = Stub()
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(running_stub(stub))
        async with guarding(stub) as guard:
            assert guard.telemetry() == "fresh"
            await guard.scraper.aclose()
            await stack.aclose()
            for expected in ("fresh", "fresh", "unreachable"):
                answered = await guard.complete([1], max_tokens=1)
                assert answered.status_code == 502
                assert guard.telemetry() == expected


async def test_a_client_that_stops_reading_counts_as_gone() -> None:
    """It holds its place no longer than the limit, and the backend is let go."""

    async def answer(call: Call) -> None:
        await call.start_stream()
        while True:
            await call.chunk(b"data: " + b"x" * 65536 + b"\n\n")

    sections = {"limits": {"stall_seconds": 0.05}}
    async with (
        running_stub(Stub(answer=answer)) as stub,
        guarding(stub, **sections) as guard,
        raw_client(guard.service.port) as client,
    ):
        await client.request(COMPLETIONS, {"prompt": [1], "stream": True})
        await client.head()
        await stub.until(lambda: stub.left == 1)
        await guard.until(lambda: guard.backend.ledger.live == 0)
        assert guard.metric("kvguard_exchanges_total", route=COMPLETIONS, end="cancelled") == 1


@pytest.mark.parametrize("heartbeat_seconds", [0, 60])
async def test_a_client_may_leave_with_the_last_event(heartbeat_seconds: float) -> None:
    """Its answer is whole and teaches its length, although the backend has not closed it yet."""

    async def answer(call: Call) -> None:
        await call.start_stream()
        await call.token()
        await call.event({"choices": [], "usage": completion(1, 40)["usage"]})
        await call.chunk(b"data: [DONE]\n\n")
        await hold(call)

    sections = {"forecast": {"min_answers": 1}, "streams": {"heartbeat_seconds": heartbeat_seconds}}
    async with running_stub(Stub(answer=answer)) as stub, guarding(stub, **sections) as guard:
        async with raw_client(guard.service.port) as client:
            await client.request(COMPLETIONS, {"prompt": [1], "max_tokens": 50, "stream": True})
            await client.head()
            while b"[DONE]" not in await client.chunk():
                pass
        await guard.until(lambda: guard.backend.ledger.live == 0)
        assert guard.metric("kvguard_exchanges_total", route=COMPLETIONS, end="complete") == 1
        assert guard.backend.occupancy.lengths.expected(cap=50, produced=0) == 40


async def test_a_body_that_never_ends_is_given_up() -> None:
    """A client that promises a body and does not send it is told so, and nobody is asked."""
    sections = {"limits": {"body_seconds": 0.05}}
    async with running_stub() as stub, guarding(stub, **sections) as guard, raw_client(guard.service.port) as client:
        await client.send(request_head(COMPLETIONS, content_length="10") + b"{")
        answered = await client.answer()
        assert (answered.status, answered.json["error"]["code"]) == (400, "invalid_request")
        assert stub.hits == []


async def test_an_estimated_prompt_is_never_refused_for_good() -> None:
    """When the engine cannot count, a prompt that only seems larger than the cache is served by an idle engine."""
    async with running_stub() as stub, guarding(stub) as guard:
        stub.tokens = "broken"
        answered = await guard.complete("x" * 6000, max_tokens=1)
        assert answered.status_code == 200
        assert guard.metric("kvguard_token_counts_total", source="learned") == 1


async def test_a_prompt_too_large_to_wait_for_is_counted_while_it_runs(tmp_path: Path) -> None:
    """It is admitted by what usual text has, with headroom; the ledger then holds what the tokenizer counts."""
    released = asyncio.Event()
    tokens = {"tokenizer": write_tokenizer(tmp_path), "exact_max_bytes": 100, "counter": "local"}
    async with running_stub() as stub, guarding(stub, tokens=tokens) as guard:
        stub.answer = hold_until(released)
        asking = asyncio.ensure_future(guard.complete("the cache is full " * 60, max_tokens=16))
        await stub.until(lambda: len(stub.hits) == 1)
        (decision,) = [line for line in guard.logs if line["event"] == "decision"]
        assert decision["prompt_tokens"] == 60 * 18 // 4 + 1
        (live,) = guard.backend.ledger._live.values()
        await guard.until(lambda: not live.demand.estimated)
        exact = live.demand.prompt_tokens
        assert live.demand.prompts == (exact,)
        assert exact != decision["prompt_tokens"]
        released.set()
        assert (await asking).status_code == 200
        assert guard.backend.ledger.held_blocks == 0


async def test_a_client_that_leaves_ends_the_count_of_its_prompt(tmp_path: Path) -> None:
    """Nothing is left in the ledger, and nothing is amended that has ended."""
    tokens = {"tokenizer": write_tokenizer(tmp_path), "exact_max_bytes": 100, "counter": "local"}
    async with running_stub() as stub, guarding(stub, tokens=tokens) as guard:
        stub.answer = hold
        asking = asyncio.ensure_future(guard.complete("the cache is full " * 6000, max_tokens=16))
        await stub.until(lambda: len(stub.hits) == 1)
        asking.cancel()
        await guard.until(lambda: guard.backend.ledger.live == 0)
        assert (guard.backend.ledger.held_blocks, guard.backend.ledger.violations) == (0, 0)


async def test_only_answered_requests_teach_how_long_prompts_are(tmp_path: Path) -> None:
    """Their usage, or their exact count where they have none; a model nobody serves leaves no trace."""

    async def served(call: Call) -> None:
        if call.hit.json["model"] == "nope":
            await call.reply(404, {"error": {"message": "no such model"}})
        else:
            await call.reply(
                200, {"choices": []} if call.hit.json["model"] == "mute" else completion(prompt_tokens=100)
            )

    tokens = {"tokenizer": write_tokenizer(tmp_path), "exact_max_bytes": 2000}
    async with running_stub(Stub(answer=served)) as stub, guarding(stub, tokens=tokens) as guard:
        for model in ("tiny", "mute", "nope"):
            for _ in range(8):
                await guard.complete("the cache is full " * 50, max_tokens=1, model=model)
        stub.tokens = "broken"
        before = len(guard.logs)
        for model in ("tiny", "mute", "nope"):
            await guard.complete("the cache is full " * 500, max_tokens=1, model=model)
        counted = [line["prompt_tokens"] for line in guard.logs[before:] if line["event"] == "decision"]
        said, exact, prior = counted
        assert said == 1000
        assert exact not in (said, prior)
        assert prior == 500 * 18 // 4 + 1
