import asyncio

import pytest

from kvguard.clock import ManualClock
from kvguard.simulator.app import create_app
from kvguard.simulator.config import SimConfig
from kvguard.simulator.text import token_ids

from .serving import FAST, events, samples, serving

pytestmark = pytest.mark.anyio

USER = [{"role": "user", "content": "hello"}]


async def test_a_plain_completion():
    """Choices come prompt by prompt with exact usage, and the text has as many tokens as it says."""
    async with serving() as client:
        body = {"prompt": ["a", "a b"], "n": 2, "max_tokens": 6, "ignore_eos": True}
        answer = (await client.post("/v1/completions", json=body, headers={"x-request-id": "r1"})).json()
    assert (answer["id"], answer["object"], answer["model"]) == ("cmpl-r1", "text_completion", "sim-tiny")
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert [len(token_ids(choice["text"])) for choice in answer["choices"]] == [6] * 4
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"length"}
    usage = {key: answer["usage"][key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")}
    assert usage == {"prompt_tokens": 3, "completion_tokens": 24, "total_tokens": 27}


async def test_a_plain_chat():
    """The message is the assistant's and the prompt is counted once for n."""
    async with serving() as client:
        body = {"messages": USER, "n": 3, "max_completion_tokens": 4, "ignore_eos": True}
        answer = (await client.post("/v1/chat/completions", json=body)).json()
    assert answer["id"].startswith("chatcmpl-")
    assert [choice["message"]["role"] for choice in answer["choices"]] == ["assistant"] * 3
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (5, 12)


async def test_a_streamed_chat_is_framed_as_vllm_does():
    """Role chunks of all choices, one chunk per token, finish reasons, usage, end mark."""
    async with serving() as client:
        body = {
            "messages": USER,
            "n": 2,
            "max_tokens": 3,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        response = await client.post("/v1/chat/completions", json=body, headers={"x-request-id": "r2"})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    *chunks, usage, done = events(response.text)
    assert done == "[DONE]"
    assert [chunk["choices"][0]["delta"].get("role") for chunk in chunks] == ["assistant"] * 2 + [None] * 6
    assert [chunk["choices"][0]["index"] for chunk in chunks] == [0, 1] * 4
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 6 + ["length"] * 2
    assert {chunk["id"] for chunk in [*chunks, usage]} == {"chatcmpl-r2"}
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 5, "total_tokens": 11, "completion_tokens": 6}


async def test_a_streamed_completion_without_usage():
    """One chunk per token and the end mark, nothing else."""
    async with serving() as client:
        body = {"prompt": "a", "max_tokens": 5, "ignore_eos": True, "stream": True}
        *chunks, done = events((await client.post("/v1/completions", json=body)).text)
    assert len(chunks) == 5
    assert done == "[DONE]"
    assert all("usage" not in chunk for chunk in chunks)


async def test_a_stream_says_what_a_plain_answer_says():
    """The same request on a fresh engine of the same seed has the same text and ending either way."""
    body = {"messages": USER, "max_tokens": 2000}
    async with serving() as client:
        choice = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]
    async with serving() as client:
        response = await client.post("/v1/chat/completions", json=body | {"stream": True})
    chunks = [chunk["choices"][0] for chunk in events(response.text)[:-1]]
    assert "".join(chunk["delta"]["content"] for chunk in chunks) == choice["message"]["content"]
    assert chunks[-1]["finish_reason"] == choice["finish_reason"] == "stop"


async def test_clients_see_every_token_through_preemption():
    """A pool too small for all of them preempts, and each client still gets its whole answer."""
    config = SimConfig(block_size=4, num_gpu_blocks=20, max_model_len=70, **FAST)
    async with serving(config) as client:
        body = {"prompt": [1] * 8, "max_tokens": 40, "ignore_eos": True, "n": 4}
        answers = await asyncio.gather(*(client.post("/v1/completions", json=body) for _ in range(3)))
        scrape = await samples(client)
    texts = [choice["text"] for answer in answers for choice in answer.json()["choices"]]
    assert [len(token_ids(text)) for text in texts] == [40] * 12
    assert scrape[("vllm:num_preemptions_total",)] > 0
    assert scrape[("vllm:generation_tokens_total",)] == 480
    assert scrape[("vllm:request_success_total", "length")] == 12
    assert scrape[("vllm:kv_cache_usage_perc",)] == 0


async def test_a_beam_search_is_answered_as_n_sequences():
    """The width is n, and without a stream every beam is a choice."""
    async with serving() as client:
        body = {"prompt": "a", "n": 3, "use_beam_search": True, "max_tokens": 4}
        answer = (await client.post("/v1/completions", json=body)).json()
    assert len(answer["choices"]) == 3


async def test_the_small_routes():
    """Models, tokenize, health and version answer as vLLM's do."""
    clock = ManualClock(start=1234.9)
    async with serving(clock=clock) as client:
        model = (await client.get("/v1/models")).json()["data"][0]
        assert (model["id"], model["max_model_len"], model["created"]) == ("sim-tiny", 4096, 1234)
        tokens = (await client.post("/tokenize", json={"prompt": "hello"})).json()
        assert (tokens["count"], tokens["max_model_len"], len(tokens["tokens"])) == (2, 4096, 2)
        spoken = {"model": "sim-tiny", "messages": USER}
        counted = (await client.post("/v1/messages/count_tokens", json=spoken)).json()
        assert counted == {"input_tokens": (await client.post("/tokenize", json=spoken)).json()["count"]}
        lost = await client.post("/v1/messages/count_tokens", json=spoken | {"model": "nope"})
        assert (lost.status_code, lost.json()["type"]) == (404, "error")
        health = await client.get("/health")
        assert (health.status_code, health.content) == (200, b"")
        assert "version" in (await client.get("/version")).json()
        metrics = await client.get("/metrics")
        assert metrics.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


async def test_created_is_the_clocks_time():
    """Answers carry whole seconds of the injected clock."""
    clock = ManualClock(start=99.5)
    async with serving(clock=clock) as client:
        posting = asyncio.create_task(client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}))
        while not posting.done():
            await clock.advance(0)
    assert posting.result().json()["created"] == 99


@pytest.mark.parametrize(
    ("path", "content", "status", "kind"),
    [
        ("/v1/completions", b"{", 400, "Bad Request"),
        ("/v1/completions", b'{"prompt": "a", "model": "nope"}', 404, "NotFoundError"),
        ("/v1/chat/completions", b'{"messages": [], "max_tokens": 0}', 400, "BadRequestError"),
        ("/tokenize", b'{"model": "nope", "prompt": "a"}', 404, "NotFoundError"),
        ("/v1/completions", b'{"prompt": [' + b"9" * 5000 + b"]}", 400, "Bad Request"),
        ("/tokenize", rb'{"model": "\ud800", "prompt": "a"}', 404, "NotFoundError"),
    ],
)
async def test_errors_have_vllms_shape(path, content, status, kind):
    """Every refusal is an error object whose code is the status."""
    async with serving() as client:
        response = await client.post(path, content=content, headers={"content-type": "application/json"})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["type"]) == (status, status, kind)


async def test_only_json_is_taken():
    """Another content type is a 400; parameters after the type do not matter."""
    async with serving() as client:
        wrong = await client.post("/v1/completions", content=b'{"prompt":"a"}', headers={"content-type": "text/plain"})
        content_type = {"content-type": "application/json; charset=utf-8"}
        right = await client.post("/v1/completions", content=b'{"prompt":"a"}', headers=content_type)
    assert (wrong.status_code, right.status_code) == (400, 200)


async def test_unknown_paths_and_methods():
    """They are FastAPI's 404 and 405 with a detail."""
    async with serving() as client:
        missing, wrong = await client.post("/v1/nothing"), await client.get("/v1/completions")
    assert (missing.status_code, missing.json()) == (404, {"detail": "Not Found"})
    assert (wrong.status_code, wrong.json()) == (405, {"detail": "Method Not Allowed"})


async def test_a_full_queue_is_vllms_503():
    """More sequences than the engine's bound are refused in its own words and leave nothing behind."""
    async with serving(SimConfig(max_num_queued_reqs=2, **FAST)) as client:
        response = await client.post("/v1/completions", json={"prompt": "a", "n": 3})
        assert (response.status_code, response.json()["error"]["type"]) == (503, "Service Unavailable")
        assert (await client.post("/v1/completions", json={"prompt": "a", "n": 2})).status_code == 200


async def test_health_says_when_the_engine_does_not_run():
    """Outside the lifespan no engine runs and health is 503."""
    app = create_app(SimConfig(), ManualClock())
    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/health", "headers": [], "query_string": b""}
    await app(scope, None, send)
    assert sent[0]["status"] == 503


async def test_a_body_has_a_bound(monkeypatch):
    """A body past the bound is refused while it is read."""
    monkeypatch.setattr("kvguard.simulator.app.MAX_BODY_BYTES", 10)
    async with serving() as client:
        response = await client.post("/v1/completions", json={"prompt": "a" * 20})
    assert (response.status_code, response.json()["error"]["code"]) == (413, 413)


async def test_the_scrape_counts_what_the_prefix_cache_served():
    """An equal chat hits all its full blocks but that of the last token; queries are whole prompts."""
    async with serving(SimConfig(**FAST, block_size=4, max_model_len=512, enable_prefix_caching=True)) as client:
        body = {"messages": [{"role": "user", "content": "a b c d e f g h"}], "max_tokens": 2, "ignore_eos": True}
        for _ in range(2):
            await client.post("/v1/chat/completions", json=body)
        seen = await samples(client)
    assert seen[("vllm:prefix_cache_queries_total",)] == 22
    assert seen[("vllm:prefix_cache_hits_total",)] == 8
    assert seen[("vllm:kv_cache_usage_perc",)] == 0
