"""Failures that TGI reports inside a stream of status 200: those that come first get a status of their own."""

import asyncio
import json

import pytest

from kvguard.clock import ManualClock
from kvguard.errors import UpstreamBroken, UpstreamError
from kvguard.protocols import tgi_chat, tgi_completions, tgi_generate
from kvguard.protocols.sse import OPENAI, StreamFormat, Usage
from kvguard.protocols.tgi_errors import TGI_ERRORS
from kvguard.proxy.relay import Manner, Relay, Relayed
from kvguard.proxy.upstream import Headers
from tests.kit.recordings import recorded, recorded_json
from tests.kit.scripted import Answer, Client, exchange_of

pytestmark = pytest.mark.anyio

NATIVE, CHAT, COMPLETIONS = tgi_generate.STREAM, tgi_chat.STREAM, tgi_completions.STREAM
ADDED: Headers = [(b"x-kvguard-tier", b"0")]
COMMENT = b":\n\n"


class Passing:
    """One answer on its way to a client."""

    def __init__(self, answer: Answer, form: StreamFormat, **manner: object) -> None:
        self.answer, self.client, self.clock = answer, Client(), ManualClock()
        self.heard: list[int] = []
        kept = Manner(stream=form, errors=TGI_ERRORS, **manner)
        self._relay = Relay(exchange_of(self.client), answer, self.clock, self.heard.append, kept)
        self._running: asyncio.Task[Relayed] | None = None

    async def run(self) -> Relayed:
        return await self._relay.run(ADDED, retry_after_seconds=3.0)

    async def begin(self) -> None:
        self._running = asyncio.ensure_future(self.run())
        await self.clock.settle()

    async def put(self, *blocks: bytes | None) -> None:
        for block in blocks:
            self.answer.put(block)
            await self.clock.settle()

    async def end(self) -> Relayed:
        assert self._running is not None
        return await self._running


def headers_of(mode: str) -> Headers:
    """The headers TGI sends in this mode."""
    lines = (line.partition(": ") for line in recorded_json("response_headers_v3.json")[mode])
    return [(name.encode(), value.encode()) for name, _, value in lines]


async def passed(stream: bytes, form: StreamFormat, **manner: object) -> tuple[Client, Relayed]:
    passing = Passing(Answer(stream, None), form, **manner)
    return passing.client, await passing.run()


@pytest.mark.parametrize(
    ("stream", "form", "status"),
    [
        ("sse_generate_stream_v3_overloaded.txt", NATIVE, 429),
        ("sse_generate_stream_v3_validation.txt", NATIVE, 422),
        ("sse_chat_v3_overloaded.txt", CHAT, 429),
        ("sse_chat_v3_overloaded.txt", COMPLETIONS, 429),
        # Before 2.4.1 these had TGI's own form.
        ("sse_generate_stream_v3_overloaded.txt", CHAT, 429),
        ("sse_generate_stream_v3_validation.txt", COMPLETIONS, 422),
    ],
)
@pytest.mark.parametrize("waited", [b"", COMMENT, COMMENT + COMMENT])
async def test_a_stream_that_failed_at_once(stream: str, form: StreamFormat, status: int, waited: bytes) -> None:
    """The client gets what TGI answers without a stream, and when to come back where that helps; wherever it is cut."""
    whole = waited + recorded(stream)
    messages = {"Model is overloaded": "overloaded"}
    for cut in range(len(whole) + 1):
        passing = Passing(Answer(*filter(None, (whole[:cut], whole[cut:])), None), form)
        relayed, client = await passing.run(), passing.client
        assert (client.status, relayed.status, relayed.broken, relayed.usage) == (status, status, "", None)
        headers = client.headers
        assert (headers["content-type"], headers["content-length"]) == ("application/json", str(len(client.body)))
        assert (headers["x-compute-type"], headers["x-kvguard-tier"]) == ("cpu", "0")
        assert not {"cache-control", "x-accel-buffering"} & headers.keys()
        assert ("retry-after" in headers) is (status == 429)
        assert client.json["error_type"] == messages.get(client.json["error"], "validation")


@pytest.mark.parametrize(
    "error", [error for error in recorded_json("errors_v3.json") if isinstance(error["body"], dict)][:-1], ids=str
)
async def test_every_failure_has_its_status(error: dict) -> None:
    """Whatever TGI answers without a stream it is answered with one."""
    event = b"data: " + json.dumps(error["body"]).encode() + b"\n\n"
    client, relayed = await passed(event, NATIVE)
    assert (client.status, relayed.status, client.json) == (error["status"], error["status"], error["body"])


@pytest.mark.parametrize(
    ("stream", "form", "usage"),
    [
        ("sse_generate_stream_v3.txt", NATIVE, Usage(prompt_tokens=6, completion_tokens=4, sequences=1)),
        ("sse_generate_stream_v1.4-v2.0.txt", NATIVE, Usage(prompt_tokens=None, completion_tokens=4, sequences=1)),
        (
            "sse_generate_stream_v3_queued_keepalive.txt",
            NATIVE,
            Usage(prompt_tokens=None, completion_tokens=4, sequences=1),
        ),
        ("sse_chat_v3.txt", CHAT, None),
        ("sse_chat_v3_length.txt", CHAT, None),
        ("sse_chat_v3_include_usage.txt", CHAT, Usage(prompt_tokens=39, completion_tokens=4)),
        (
            "sse_completions_v3_two_prompts.txt",
            COMPLETIONS,
            Usage(prompt_tokens=14, completion_tokens=6, sequences=2),
        ),
    ],
)
@pytest.mark.parametrize("heartbeat_seconds", [0.0, 5.0])
async def test_a_stream_that_does_not_fail(
    stream: str, form: StreamFormat, usage: Usage | None, heartbeat_seconds: float
) -> None:
    """It passes byte for byte, in any two pieces."""
    whole = recorded(stream)
    for cut in range(0, len(whole) + 1, 7):
        blocks = filter(None, (whole[:cut], whole[cut:]))
        passing = Passing(Answer(*blocks, None), form, heartbeat_seconds=heartbeat_seconds)
        relayed = await passing.run()
        assert (passing.client.status, passing.client.body) == (200, whole)
        assert (relayed.status, relayed.broken, relayed.usage) == (200, "", usage)
        assert passing.client.headers["x-accel-buffering"] == "no"


@pytest.mark.parametrize(
    ("stream", "form"),
    [("sse_generate_stream_v3_oom_midstream.txt", NATIVE), ("sse_chat_v3_oom_midstream.txt", CHAT)],
)
@pytest.mark.parametrize("ending", [None, UpstreamBroken("gone")])
async def test_a_failure_later_in_the_stream(stream: str, form: StreamFormat, ending: Exception | None) -> None:
    """TGI's own event passes and is the last: no second one follows it, and the answer is none."""
    passing = Passing(Answer(recorded(stream), ending), form)
    relayed = await passing.run()
    assert (passing.client.status, passing.client.body) == (200, recorded(stream))
    assert relayed.broken == ("gone" if ending else "the backend reported an error in the stream")


async def test_a_failure_that_is_cut_off() -> None:
    """Half an event is ended, and ours says that the answer is not whole."""
    whole = recorded("sse_generate_stream_v3_oom_midstream.txt")
    passing = Passing(Answer(whole[:-20], UpstreamBroken("gone")), NATIVE)
    assert (await passing.run()).broken == "gone"
    kept, _, last = passing.client.body.rpartition(b"\n\ndata: ")
    assert kept == whole[:-20]
    assert json.loads(last)["error_type"] == "incomplete_generation"


async def test_a_stream_that_ends_without_its_end() -> None:
    """The client is told so in TGI's words."""
    whole = recorded("sse_generate_stream_v3.txt")
    half = whole[: whole.index(b"\n\n") + 2]
    client, relayed = await passed(half, NATIVE)
    assert relayed.broken
    assert client.body.startswith(half + b'data: {"error":')


async def test_the_first_event_passes_at_once() -> None:
    """With whatever came with it, and before anything else comes."""
    passing = Passing(Answer(), NATIVE)
    await passing.begin()
    events = recorded("sse_generate_stream_v3.txt").split(b"\n\n")
    await passing.put(COMMENT, events[0])
    assert passing.client.status is None
    await passing.put(b"\n\n" + events[1][:10])
    assert (passing.client.status, passing.client.blocks) == (200, [COMMENT + events[0] + b"\n\n" + events[1][:10]])
    await passing.put(events[1][10:] + b"\n\n")
    assert passing.client.blocks[1:] == [events[1][10:] + b"\n\n"]
    await passing.put(events[2] + b"\n\n" + events[3] + b"\n\n", None)
    assert (await passing.end()).broken == ""
    assert passing.heard == [1, 2, 4]


async def test_a_long_wait_in_the_engines_queue() -> None:
    """After so many seconds the client hears what there is, so that nobody takes the connection for dead."""
    passing = Passing(Answer(), NATIVE, first_event_seconds=30.0, heartbeat_seconds=40.0)
    await passing.begin()
    await passing.put(COMMENT)
    await passing.clock.advance(15.0)
    await passing.put(COMMENT)
    await passing.clock.advance(14.9)
    assert passing.client.status is None
    await passing.clock.advance(0.2)
    assert (passing.client.status, passing.client.body) == (200, COMMENT + COMMENT)
    await passing.clock.advance(40.0)
    assert passing.client.blocks[-1] == b": keep-alive\n\n"
    # Too late for a status: the event says what happened.
    failure = recorded("sse_generate_stream_v3_overloaded.txt")
    await passing.put(failure, None)
    relayed = await passing.end()
    assert (relayed.status, relayed.broken) == (200, "the backend reported an error in the stream")
    assert passing.client.blocks[-1] == failure


async def test_no_status_waits_longer_than_a_client_may_hear_nothing() -> None:
    """Where comments are due every five seconds, the status goes out after five, and the comments follow."""
    passing = Passing(Answer(), NATIVE, first_event_seconds=30.0, heartbeat_seconds=5.0)
    await passing.begin()
    await passing.clock.advance(4.9)
    assert passing.client.status is None
    await passing.clock.advance(0.2)
    assert (passing.client.status, passing.client.blocks) == (200, [])
    await passing.clock.advance(5.0)
    assert passing.client.blocks == [b": keep-alive\n\n"]
    await passing.put(recorded("sse_generate_stream_v3.txt"), None)
    assert (await passing.end()).broken == ""


async def test_silence_is_a_long_wait_too() -> None:
    """Without a single comment there is nothing to pass but the status."""
    passing = Passing(Answer(), NATIVE, first_event_seconds=30.0)
    await passing.begin()
    await passing.clock.advance(30.1)
    assert (passing.client.status, passing.client.body) == (200, b"")
    await passing.put(recorded("sse_generate_stream_v3.txt"), None)
    assert (await passing.end()).broken == ""


@pytest.mark.parametrize("begun", [[], [COMMENT], [b'data: {"ind']])
@pytest.mark.parametrize("ending", [None, UpstreamBroken("gone")])
async def test_an_answer_that_breaks_before_its_first_event(begun: list[bytes], ending: Exception | None) -> None:
    """Nothing has been said to the client yet, so it can be told by a status."""
    passing = Passing(Answer(*begun, ending), NATIVE)
    with pytest.raises(UpstreamError):
        await passing.run()
    assert not passing.client.sent


async def test_a_client_that_leaves_while_nothing_has_passed() -> None:
    """Nobody waits for the answer any more."""
    passing = Passing(Answer(), NATIVE)
    await passing.begin()
    running = asyncio.ensure_future(passing.end())
    await passing.clock.settle()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    passing.answer.put(UpstreamBroken("gone"))
    await passing.clock.settle()
    assert not passing.client.sent


@pytest.mark.parametrize(
    ("status", "form", "manner"),
    [(200, OPENAI, {}), (200, NATIVE, {"first_event_seconds": 0.0}), (500, NATIVE, {})],
)
async def test_what_is_not_held(status: int, form: StreamFormat, manner: dict) -> None:
    """Streams of an engine that hides nothing, a status that says it all, and where it is switched off."""
    passing = Passing(Answer(status=status), form, **manner)
    await passing.begin()
    assert passing.client.status == status
    await passing.put(b'data: {"error":"x","error_type":"validation"}\n\n', None)
    await passing.end()
    assert passing.client.body == b'data: {"error":"x","error_type":"validation"}\n\n'


async def test_the_usage_nobody_asked_for() -> None:
    """It is taken out behind an opening as well."""
    client, relayed = await passed(recorded("sse_chat_v3_include_usage.txt"), CHAT, strips_usage=True)
    assert client.body == recorded("sse_chat_v3.txt")
    assert relayed.usage == Usage(prompt_tokens=39, completion_tokens=4)


async def test_headers_tell_the_usage_of_a_whole_answer() -> None:
    """Where the body has none, and where it is too long to be kept."""
    headers = [*headers_of("generate_non_stream"), (b"content-type", b"application/json")]
    for body in (recorded("generate_response_v3_no_details.json"), b'{"generated_text":"%s"}' % (b"x" * 400_000)):
        passing = Passing(Answer(body, None, headers=headers), NATIVE, usage=tgi_generate.ROUTES[0].usage)
        relayed = await passing.run()
        assert passing.client.body == body
        assert relayed.usage == Usage(prompt_tokens=6, completion_tokens=20, sequences=1)
        assert passing.client.headers["x-queue-time"] == "3"


async def test_the_headers_of_a_stream() -> None:
    """Those of TGI stay but for buffering, which is ours to say."""
    headers = headers_of("stream")
    passing = Passing(Answer(recorded("sse_generate_stream_v3.txt"), None, headers=headers), NATIVE)
    await passing.run()
    sent = passing.client.sent[0]["headers"]
    assert set(headers) <= set(sent)
    assert [name for name, _ in sent].count(b"cache-control") == 1
