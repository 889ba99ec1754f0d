"""Clients of `app` that leave: before, while and after the engine took their request."""

import asyncio
import json

import pytest

from kvguard.clock import ManualClock
from kvguard.simulator.app import create_app
from kvguard.simulator.config import SimConfig

from .serving import opened, samples, serving

pytestmark = pytest.mark.anyio

USER = [{"role": "user", "content": "hello"}]
LONG = {"prompt": [1] * 100, "max_tokens": 3000, "ignore_eos": True, "n": 2}


async def scraped_until(client, clock, condition):
    """Let engine steps pass until a scrape meets the condition; far fewer steps than any answer here needs."""
    for _ in range(200):
        await clock.advance(0.02)
        scrape = await samples(client)
        if condition(scrape):
            return scrape
    raise AssertionError(scrape)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_its_blocks(path, stream):
    """Closing the connection aborts running and waiting sequences, streamed or not, and counts as no success."""
    clock = ManualClock()
    config = SimConfig(max_num_seqs=1, step_base_seconds=0.02, step_seconds_per_sequence=0, prefill_seconds_per_token=0)
    async with serving(config, clock) as client:
        body = LONG | {"messages": USER, "stream": stream}
        _, writer = await opened(client, body, path)
        before = await scraped_until(client, clock, lambda scrape: scrape[("vllm:num_requests_running",)] == 1)
        assert before[("vllm:num_requests_waiting",)] == 1
        assert before[("vllm:kv_cache_usage_perc",)] > 0
        writer.close()
        await writer.wait_closed()
        after = await scraped_until(client, clock, lambda scrape: scrape[("vllm:num_requests_running",)] == 0)
    assert after[("vllm:kv_cache_usage_perc",)] == 0
    assert after[("vllm:num_requests_waiting",)] == 0
    assert after[("vllm:generation_tokens_total",)] < 400
    assert after[("vllm:request_success_total", "length")] == 0


async def test_a_queued_stream_has_its_status_already():
    """A streamed request that waits for the engine got its 200 before its first token."""
    clock = ManualClock()
    config = SimConfig(max_num_seqs=1)
    async with serving(config, clock) as client:
        _, first = await opened(client, LONG)
        await scraped_until(client, clock, lambda scrape: scrape[("vllm:num_requests_running",)] == 1)
        reader, second = await opened(client, {"prompt": "a", "stream": True})
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        first.close()
        second.close()
        await scraped_until(client, clock, lambda scrape: scrape[("vllm:num_requests_waiting",)] == 0)


async def test_a_client_that_leaves_before_its_body_is_complete():
    """Half a request reaches no engine, and the server goes on."""
    async with serving() as client:
        _, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
        head = (
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{"
        )
        writer.write(head)
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert (await client.post("/v1/completions", json={"prompt": "a"})).status_code == 200


async def call(app, messages, path="/v1/completions"):
    """Speak ASGI to the app without a server: what it sent."""
    incoming, sent = iter(messages), []

    async def receive():
        return next(incoming)

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "headers": [(b"content-type", b"application/json")],
        "query_string": b"",
    }
    await app(scope, receive, send)
    return sent


@pytest.mark.parametrize(("path", "sent"), [("/v1/completions", 0), ("/tokenize", 2)])
async def test_a_disconnect_within_the_body_ends_quietly(path, sent):
    """A client that left while it was still sending raises nothing, gets no 200 and queues nothing."""
    app = create_app(SimConfig(), ManualClock())
    part = {"type": "http.request", "body": b"{", "more_body": True}
    messages = await call(app, [part, {"type": "http.disconnect"}], path)
    assert len(messages) == sent
    assert all(message.get("status", 400) == 400 for message in messages)
    assert not app.state.driver.engine.has_work


async def test_a_disconnect_right_after_the_body_leaves_nothing():
    """A request whose client is gone before the answer starts is taken back at once."""
    app = create_app(SimConfig(), ManualClock())
    whole = {"type": "http.request", "body": json.dumps(LONG).encode()}
    assert await call(app, [whole, {"type": "http.request"}, {"type": "http.disconnect"}]) == []
    assert not app.state.driver.engine.has_work
