"""The TGI twin over a real connection."""

import asyncio
import json

import pytest

from kvguard.clock import ManualClock, SystemClock
from kvguard.simulator.tgi_app import create_tgi_app
from kvguard.simulator.tgi_config import TgiSimConfig
from tests.kit.recordings import recorded, recorded_json

from .recorded_shapes import frames_of
from .serving import FAST, events, opened, samples, serving
from .test_app_disconnect import call

pytestmark = pytest.mark.anyio

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
STEP = {"step_base_seconds": 0.1, "step_seconds_per_sequence": 0.0, "prefill_seconds_per_token": 0.0}
CRASH = "Request failed during generation: Server error: CUDA out of memory. Tried to allocate 222.00 MiB."


def twin(clock=None, **settings):
    return serving(TgiSimConfig(**FAST | settings), clock or SystemClock(), create_tgi_app)


def native(cap, inputs="a b", **parameters):
    return {"inputs": inputs, "parameters": {"max_new_tokens": cap, **parameters}}


async def advanced_until(client, clock, condition, seconds=0.1, limit=100):
    """Let time pass until a scrape meets the condition."""
    for _ in range(limit):
        await clock.advance(seconds)
        scrape = await samples(client)
        if condition(scrape):
            return scrape
    raise AssertionError(scrape)


def reserved(scrape):
    return scrape.get(("tgi_batch_current_max_tokens",), 0)


async def test_a_whole_answer():
    """It is text alone, and its headers are those recorded, with the tokens in them."""
    async with twin() as client:
        answer = await client.post("/generate", json=native(3))
    assert list(answer.json()) == ["generated_text"]
    names = [line.partition(":")[0] for line in recorded_json("response_headers_v3.json")["generate_non_stream"]]
    assert [name for name in answer.headers if name.startswith("x-")] == names
    assert (answer.headers["x-prompt-tokens"], answer.headers["x-generated-tokens"]) == ("2", "3")
    assert answer.headers["x-compute-characters"] == "3"


async def test_headers_of_several_prompts():
    """They are sums, also of prompts of one length, and the time is not told; of copies the best counts."""
    async with twin() as client:
        both = await client.post("/v1/completions", json={"prompt": ["a b", "c d"], "max_tokens": 2})
        copies = await client.post("/generate", json=native(2, best_of=2, do_sample=True))
    assert (both.headers["x-prompt-tokens"], both.headers["x-generated-tokens"]) == ("4", "4")
    assert "x-compute-time" not in both.headers
    assert (copies.headers["x-prompt-tokens"], copies.headers["x-generated-tokens"]) == ("2", "2")


async def test_a_stream():
    """Its headers are those recorded, and it comes token by token."""
    async with twin() as client:
        answer = await client.post("/generate_stream", json=native(3, details=True))
    wanted = dict(line.split(": ") for line in recorded_json("response_headers_v3.json")["stream"])
    assert set(wanted) <= set(answer.headers)
    for name in ("content-type", "cache-control", "x-accel-buffering"):
        assert answer.headers[name] == wanted[name]
    *_, last = got = events(answer.text)
    assert [event["index"] for event in got] == [1, 2, 3]
    assert last["generated_text"] == "".join(event["token"]["text"] for event in got)
    assert last["details"]["input_length"] == 2


@pytest.mark.parametrize(
    ("path", "body", "end"),
    [
        ("/v1/chat/completions", CHAT, "[DONE]"),
        ("/v1/completions", {"prompt": "a"}, "[DONE]"),
        ("/invocations", CHAT, "[DONE]"),
        ("/invocations", {"prompt": "a"}, "[DONE]"),
    ],
)
async def test_openai_streams_end_with_a_mark(path, body, end):
    """On every route that speaks so; the model is named as it was asked for."""
    async with twin() as client:
        answer = await client.post(path, json={**body, "max_tokens": 2, "stream": True, "model": "m"})
    *chunks, last = events(answer.text)
    assert last == end
    assert {chunk["model"] for chunk in chunks} == {"m"}
    assert len(chunks) == 2


@pytest.mark.parametrize("path", ["/", "/invocations"])
async def test_the_body_says_whether_to_stream(path):
    """A whole native answer is a list here, with the prompt in the text; a streamed one is as everywhere."""
    async with twin() as client:
        whole = (await client.post(path, json=native(2))).json()
        stream = events((await client.post(path, json={**native(2), "stream": True})).text)
    assert whole[0]["generated_text"].startswith("a b")
    assert [event["index"] for event in stream] == [1, 2]


async def test_vertex():
    """One text for each instance; a refusal of one is a 500 for all and keeps no permit."""
    async with twin(max_concurrent_requests=2) as client:
        body = {"instances": [native(2), {**CHAT, "max_tokens": 2}]}
        assert [type(text) for text in (await client.post("/vertex", json=body)).json()["predictions"]] == [str, str]
        too_many = await client.post("/vertex", json={"instances": [native(2)] * 3})
        assert (too_many.status_code, too_many.json()["error_type"]) == (500, "overloaded")
        assert (await client.post("/vertex", json=body)).status_code == 200
        scrape = await samples(client)
    assert scrape[("tgi_request_success_total",)] == 4


async def test_counting():
    """One for a native call whatever its copies, two for a chat, one more than its prompts for a completion."""
    async with twin() as client:
        counts = []
        for path, body in (
            ("/generate", native(1)),
            ("/generate", native(1, best_of=2, do_sample=True)),
            ("/generate", native(0)),
            ("/v1/chat/completions", {**CHAT, "max_tokens": 1}),
            ("/v1/chat/completions", {**CHAT, "max_tokens": 0}),
            ("/invocations", {**CHAT, "max_tokens": 1}),
            ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 1}),
            ("/v1/completions", {"prompt": "a", "suffix": "b"}),
        ):
            await client.post(path, json=body)
            counts.append((await samples(client))[("tgi_request_count_total",)])
        scrape = await samples(client)
    assert counts == [1, 2, 3, 5, 7, 9, 12, 13]
    assert scrape[("tgi_request_failure_total", "validation")] == 3
    assert scrape[("tgi_request_success_total",)] == 7


@pytest.mark.parametrize(
    ("path", "body", "frame"),
    [
        ("/generate", native(5), None),
        ("/generate_stream", native(5), "sse_generate_stream_v3_overloaded.txt"),
        ("/v1/chat/completions", CHAT, None),
        ("/v1/chat/completions", {**CHAT, "stream": True}, "sse_chat_v3_overloaded.txt"),
    ],
)
async def test_without_a_permit(path, body, frame):
    """Whole answers are refused with 429, streams with an event; the next finds the permit given back."""
    clock = ManualClock()
    async with twin(clock, max_concurrent_requests=1, **STEP) as client:
        first = asyncio.create_task(client.post("/generate", json=native(20)))
        await advanced_until(client, clock, lambda scrape: reserved(scrape) > 0)
        answer = await client.post(path, json=body)
        recording = recorded_json("errors_v3.json")[0]
        if frame is None:
            assert (answer.status_code, answer.json()) == (recording["status"], recording["body"])
        else:
            assert (answer.status_code, answer.content) == (200, recorded(frame))
        await advanced_until(client, clock, lambda scrape: reserved(scrape) == 0)
        assert (await first).status_code == 200
        last = asyncio.create_task(client.post("/generate", json=native(1)))
        await advanced_until(client, clock, lambda scrape: scrape[("tgi_request_success_total",)] == 2)
        assert (await last).status_code == 200
        assert (await samples(client))[("tgi_request_failure_total", "overloaded")] == 1


async def test_copies_need_a_permit_each():
    """Two are refused where there is one."""
    async with twin(max_concurrent_requests=1) as client:
        assert (await client.post("/generate", json=native(1, best_of=2, do_sample=True))).status_code == 429
        assert (await client.post("/v1/completions", json={"prompt": ["a", "b"]})).status_code == 429
        assert (await client.post("/generate", json=native(1))).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "frames"),
    [
        ("/generate_stream", native(0), 1),
        ("/", {**native(0), "stream": True}, 1),
        ("/v1/chat/completions", {**CHAT, "max_tokens": 0, "stream": True}, 2),
        ("/invocations", {**CHAT, "max_tokens": 0, "stream": True}, 2),
        ("/invocations", {**native(0), "stream": True}, 1),
    ],
)
async def test_a_stream_that_does_not_validate(path, body, frames):
    """Its status is 200 and its only event the error."""
    async with twin() as client:
        answer = await client.post(path, json=body)
    got = events(answer.text)
    assert (answer.status_code, len(got)) == (200, frames)
    assert "`max_new_tokens` must be strictly positive" in json.dumps(got[0])


@pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/vertex"])
async def test_a_client_that_leaves(path):
    """Its blocks are free after the next token, its permit is given back, and it counts as dropped."""
    clock = ManualClock()
    async with twin(clock, max_concurrent_requests=1, **STEP) as client:
        body = {**native(1000), "instances": [native(1000)]}
        _, writer = await opened(client, body, path)
        await advanced_until(client, clock, lambda scrape: reserved(scrape) > 1000)
        writer.close()
        await writer.wait_closed()
        after = await advanced_until(client, clock, lambda scrape: reserved(scrape) == 0)
        assert after[("tgi_request_failure_total", "dropped")] == 1
        assert ("tgi_request_success_total",) not in after
        last = asyncio.create_task(client.post("/generate", json=native(1)))
        await advanced_until(client, clock, lambda scrape: ("tgi_request_success_total",) in scrape)
        assert (await last).status_code == 200


async def test_a_queued_stream_is_kept_alive():
    """A comment every 15 s until the first token, as recorded."""
    clock = ManualClock()
    async with twin(clock, **{**STEP, "step_base_seconds": 40.0}) as client:
        answer = asyncio.create_task(client.post("/generate_stream", json=native(1)))
        for _ in range(400):
            if answer.done():
                break
            await clock.advance(0.5)
        assert answer.done()
        comments = recorded("sse_generate_stream_v3_queued_keepalive.txt").partition(b"data")[0]
        assert (await answer).content.startswith(comments + b'data: {"index":1,')


async def test_a_prefill_beyond_the_memory():
    """Whoever runs gets a 424 or an event, whoever comes after the restart an answer."""
    clock = ManualClock()
    async with twin(clock, prefill_limit_tokens=50, restart_seconds=3.0, **STEP) as client:
        stream = asyncio.create_task(client.post("/generate_stream", json=native(500)))
        chat = asyncio.create_task(
            client.post("/v1/chat/completions", json={**CHAT, "max_tokens": 500, "stream": True})
        )
        whole = asyncio.create_task(client.post("/generate", json=native(500)))
        await advanced_until(client, clock, lambda scrape: scrape.get(("tgi_batch_current_size",), 0) == 3)
        killer = asyncio.create_task(client.post("/generate", json=native(5, inputs="a" + " a" * 50)))
        failed = ("tgi_request_failure_total", "generation")
        scrape = await advanced_until(client, clock, lambda scrape: failed in scrape, seconds=0.5)
        assert scrape[failed] == 4
        assert scrape[("tgi_batch_inference_failure_total", "prefill")] == 1
        for task in (killer, whole):
            assert ((await task).status_code, (await task).json()) == (
                424,
                {"error": CRASH, "error_type": "generation"},
            )
        assert events((await stream).text)[-1] == {"error": CRASH, "error_type": "generation"}
        assert frames_of((await chat).content)[-2:] == frames_of(recorded("sse_chat_v3_oom_midstream.txt"))[-2:]
        last = asyncio.create_task(client.post("/generate", json=native(1)))
        await advanced_until(client, clock, lambda scrape: ("tgi_request_success_total",) in scrape)
        assert (await last).status_code == 200


async def test_vertex_and_a_prefill_beyond_the_memory():
    """There it is a 500."""
    async with twin(prefill_limit_tokens=2, restart_seconds=0.0) as client:
        answer = await client.post("/vertex", json={"instances": [native(5, inputs="a b c")]})
    assert (answer.status_code, answer.json()) == (500, {"error": CRASH, "error_type": "generation"})


async def test_health_and_metrics_of_a_live_server():
    """It is well from the start; its page is empty until it has done something."""
    async with twin() as client:
        assert [(await client.get(path)).status_code for path in ("/health", "/ping", "/")] == [200] * 3
        page = await client.get("/metrics")
        assert (page.content, page.headers["content-type"]) == (b"", "text/plain; charset=utf-8")
        await client.post("/generate", json=native(3))
        scrape = await samples(client)
    assert scrape[("tgi_request_generated_tokens_sum",)] == 3
    assert scrape[("tgi_batch_inference_count_total", "decode")] == 2
    assert [scrape[(gauge,)] for gauge in ("tgi_queue_size", "tgi_batch_current_size")] == [0, 0]


async def test_an_old_release_writes_without_a_space():
    """Up to 2.0, and without the length of the prompt."""
    async with twin(version="2.0.4") as client:
        answer = await client.post("/generate_stream", json=native(4, details=True))
    assert frames_of(answer.content) == frames_of(recorded("sse_generate_stream_v1.4-v2.0.txt"))


@pytest.mark.parametrize(("path", "sent"), [("/generate", 0), ("/vertex", 0), ("/tokenize", 2)])
async def test_a_disconnect_within_the_body_ends_quietly(path, sent):
    """A client that left while it was still sending raises nothing, gets no 200 and queues nothing."""
    app = create_tgi_app(TgiSimConfig(), ManualClock())
    part = {"type": "http.request", "body": b"{", "more_body": True}
    messages = await call(app, [part, {"type": "http.disconnect"}], path)
    assert len(messages) == sent
    assert all(message.get("status", 400) == 400 for message in messages)
    assert not app.state.driver.engine.has_work
