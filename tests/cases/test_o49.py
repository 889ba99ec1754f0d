"""O-49: prompts and keys in logs."""

import logging

import pytest

from tests.kit.guard import CHAT, COMPLETIONS, Guard, guarding
from tests.kit.raw import RawAnswer, raw_client, request_head
from tests.kit.stub import Call, Stub, answer_at_once, exposition, hold, hold_stream, running_stub

pytestmark = pytest.mark.anyio

PROMPT = "canary-prompt-7d1f"
KEY = "canary-key-93ab"


async def quote_the_request(call: Call) -> None:
    """An error that repeats what it was asked and by whom."""
    await call.reply(500, {"error": {"message": call.hit.body.decode() + call.hit.headers["authorization"]}})


async def speak_nonsense(call: Call) -> None:
    """Something that is not HTTP and repeats the request."""
    await call.raw(f"HTTP/1.1 {PROMPT} {KEY}\r\n{PROMPT}\r\n\r\n".encode())


async def send_a_bad_header(call: Call) -> None:
    """A header value no server may send, with the request in it."""
    await call.raw(f"HTTP/1.1 200 OK\r\nx-echo: {PROMPT}\x01{KEY}\r\ncontent-length: 0\r\n\r\n".encode())


async def break_a_stream(call: Call) -> None:
    """Half a stream that repeats the prompt."""
    await call.start_stream()
    await call.event({"choices": [{"index": 0, "text": PROMPT}]})
    call.writer.close()


def body_for(route: str, **fields: object) -> dict:
    prompt = {"prompt": PROMPT} if route == COMPLETIONS else {"messages": [{"role": "user", "content": PROMPT}]}
    return {"model": "tiny", **prompt, **fields}


async def ask(guard: Guard, route: str, body: dict | bytes) -> RawAnswer:
    async with raw_client(guard.service.port) as client:
        await client.request(f"{route}?api-version={KEY}", body, authorization=f"Bearer {KEY}", api_key=KEY)
        return await client.answer()


async def ask_and_leave(guard: Guard, stub: Stub, route: str, body: dict) -> None:
    left = stub.left
    async with raw_client(guard.service.port) as client:
        hits = len(stub.hits)
        await client.request(route, body, authorization=f"Bearer {KEY}")
        await stub.until(lambda: len(stub.hits) > hits)
        client.leave()
        await stub.until(lambda: stub.left > left)


async def leave_half_a_body(guard: Guard, route: str) -> None:
    async with raw_client(guard.service.port) as client:
        head = request_head(route, content_length="1000", authorization=f"Bearer {KEY}")
        await client.send(head + f'{{"prompt": "{PROMPT}'.encode())
        await guard.clock.settle()


async def every_ending(guard: Guard, stub: Stub, route: str) -> None:
    """Accepted, bad JSON, upstream error, client abort, trimmed, and both kinds of rejected."""
    assert (await ask(guard, route, body_for(route))).status == 200
    assert (await ask(guard, route, body_for(route, stream=True))).status == 200
    assert (await ask(guard, route, f'{{"prompt": "{PROMPT}", "key": {KEY}'.encode())).status == 400
    assert (await ask(guard, route, body_for(route, max_tokens=PROMPT))).status == 400
    assert (await ask(guard, f"/{PROMPT}/{KEY}", body_for(route))).status == 404
    for answer, status in ((quote_the_request, 500), (speak_nonsense, 502), (send_a_bad_header, 200)):
        stub.answer = answer
        assert (await ask(guard, route, body_for(route))).status == status, answer.__doc__
    stub.answer = break_a_stream
    assert (await ask(guard, route, body_for(route, stream=True))).status == 200
    stub.answer = hold
    await ask_and_leave(guard, stub, route, body_for(route))
    stub.answer = hold_stream
    await ask_and_leave(guard, stub, route, body_for(route, stream=True))
    await leave_half_a_body(guard, route)
    stub.answer = answer_at_once
    stub.page = exposition(0.75)
    await guard.scrape()
    assert "x-kvguard-degraded" in (await ask(guard, route, body_for(route, max_tokens=200))).headers
    for gauge in (0.94, 0.97):
        stub.page = exposition(gauge)
        await guard.scrape()
        assert (await ask(guard, route, body_for(route, max_tokens=32))).status == 503


@pytest.mark.parametrize("route", [COMPLETIONS, CHAT])
async def test_nothing_of_a_request_is_ever_written_down(
    route: str, capfd: pytest.CaptureFixture, caplog: pytest.LogCaptureFixture
) -> None:
    """At debug level no ending of a request leaves its prompt or its key in a log, on the console or in a metric."""
    caplog.set_level(logging.DEBUG)
    async with running_stub() as stub, guarding(stub, log={"level": "debug"}) as guard:
        await every_ending(guard, stub, route)
        page = (await guard.admin.get("/metrics")).text
        logs = guard.logs
    assert any(PROMPT.encode() in hit.body and KEY in hit.headers["authorization"] for hit in stub.hits)
    assert {line.get("outcome") for line in logs} >= {"admitted", "degraded", "rejected", "failed"}
    assert {line.get("end") for line in logs} >= {"complete", "cancelled", "upstream_error"}
    console = capfd.readouterr()
    written = (guard.log_stream.getvalue(), caplog.text, console.out, console.err, page)
    for canary in (PROMPT, KEY):
        assert not [text for text in written if canary in text]
