"""Below tier 1 kvguard changes nothing: what the engine gets is what the client sent, and the answer comes back whole.

Each request goes twice through a hop in front of vLLM that writes everything down: directly, and through kvguard. The
one thing kvguard adds, a stream's usage, is taken out of the answer again.
"""

import asyncio
import contextlib
import itertools
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from kvguard.protocols.routes import VLLM
from tests.kit.raw import RawAnswer, raw_client
from tests.vllm.examples import POOLING, REFUSED, SERVED
from tests.vllm.hop import Passed, RecordingHop, recording_hop
from tests.vllm.server import VllmServer
from tests.vllm.test_proxy import guarded

pytestmark = pytest.mark.anyio

METHODS = {**dict.fromkeys(VLLM.generating, "POST"), **VLLM.reads}

# Of the client's own headers those that the engine must see as they were sent.
SENT = {"content-type": "application/json; charset=utf-8", "authorization": "Bearer key", "x-client-header": "as it is"}
# What kvguard adds to an answer, beside its own `x-kvguard-...`; lengths and hops belong to each connection.
ADDED = {"x-request-id", "x-accel-buffering", "cache-control"}
OF_THE_HOP = {"date", "connection", "transfer-encoding", "content-length"}

# Drawn anew for each call: ids, and the second.
DRAWN = [
    (re.compile(rb'"(created|created_at|completed_at)": ?[0-9.]+'), rb'"\1":0'),
    (re.compile(rb'"((?:\w+_)?id)": ?"[^"]*"'), rb'"\1":""'),
]
TRIES = 20
PATIENCE_SECONDS = 60.0  # vLLM compiles what it computes for the first time


@dataclass
class Both:
    """The way through kvguard and the direct one, with the hop before the engine."""

    hop: RecordingHop
    kvguard_port: int
    numbers: itertools.count = field(default_factory=itertools.count)

    async def ask(self, port: int, path: str, body: bytes) -> tuple[RawAnswer, Passed]:
        """An answer as the client gets it, and what passed before the engine."""
        request_id = f"faithful-{next(self.numbers)}"
        async with raw_client(port, deadline_seconds=PATIENCE_SECONDS) as client:
            await client.request(path, body, method=METHODS[path], x_request_id=request_id, **HEADERS)
            return await client.answer(), await self.hop.by_id(request_id)


HEADERS = {name.replace("-", "_"): value for name, value in SENT.items()}


@contextlib.asynccontextmanager
async def both_ways(engine: VllmServer) -> AsyncIterator[Both]:
    async with recording_hop(engine.port) as hop, guarded(hop) as guard:
        yield Both(hop, guard.service.port)


def without_usage(stream: bytes) -> bytes:
    """The stream as the engine sends it to who does not ask for usage: the fingerprint is on the chunk before."""
    *events, last, usage, done = stream.split(b"\n\n")[:-1]
    chunk = json.loads(usage.removeprefix(b"data: "))
    assert chunk["choices"] == []
    if chunk.get("system_fingerprint"):
        last = last[:-1] + b',"system_fingerprint":' + json.dumps(chunk["system_fingerprint"]).encode() + b"}"
    return b"".join(event + b"\n\n" for event in (*events, last, done))


def same_for_all_calls(answer: RawAnswer) -> bytes:
    body = answer.body
    for pattern, constant in DRAWN:
        body = pattern.sub(constant, body)
    return body


def takes_turns(body: bytes) -> bool:
    """Whether several answers share the stream, whose events come in any order."""
    fields = json.loads(body or b"{}")
    return bool(fields.get("stream")) and fields.get("n", 1) > 1


def told(answer: RawAnswer) -> dict[str, str]:
    """The headers that are the engine's to set."""
    return {name: value for name, value in answer.headers.items() if name not in OF_THE_HOP}


def added_names(through: RawAnswer, backend: RawAnswer) -> set[str]:
    new = set(told(through)) - set(told(backend))
    return {name for name in new if not name.startswith("x-kvguard-")}


def check_request(sent: bytes, passed: Passed) -> bool:
    """The engine got the client's bytes, or the same and a request for usage; whether it is the latter."""
    assert {name: passed.hit.headers[name] for name in SENT} == SENT
    assert not [name for name in passed.hit.headers if name.startswith("x-kvguard-")]
    if passed.hit.body == sent:
        return False
    before, after = json.loads(sent), json.loads(passed.hit.body)
    options = before.get("stream_options") or {}
    assert before["stream"]
    assert not options.get("include_usage")
    assert after == {**before, "stream_options": {**options, "include_usage": True}}
    assert list(after)[: len(before)] == list(before)
    return True


def check_answer(through: RawAnswer, backend: RawAnswer, *, asked_usage: bool) -> None:
    """The client got what the engine answered to this very request."""
    assert through.status == backend.status
    strips = asked_usage and backend.status == 200
    assert through.body == (without_usage(backend.body) if strips else backend.body)
    assert {name: through.headers.get(name) for name in told(backend)} == told(backend)
    assert added_names(through, backend) <= ADDED
    assert through.headers.get("x-kvguard-tier", "0") == "0"
    assert "x-kvguard-degraded" not in through.headers


async def check(both: Both, path: str, body: bytes, status: set[int]) -> None:
    """One request both ways. Streams are asked for again while the engine puts tokens together in another way."""
    for _ in range(TRIES):
        direct, _ = await both.ask(both.hop.port, path, body)
        through, passed = await both.ask(both.kvguard_port, path, body)
        assert direct.status in status, direct.body
        check_answer(through, passed.answer, asked_usage=check_request(body, passed))
        assert (through.status, told(direct)) == (direct.status, {n: through.headers.get(n) for n in told(direct)})
        if same_for_all_calls(through) == same_for_all_calls(direct) or takes_turns(body):
            return
    assert same_for_all_calls(through) == same_for_all_calls(direct)


@pytest.fixture
def server(request: pytest.FixtureRequest, vllm_server: VllmServer, path: str) -> VllmServer:
    """The engine that has this route."""
    return request.getfixturevalue("pooling_server") if path in POOLING else vllm_server


@pytest.mark.parametrize("path", METHODS)
async def test_a_route_passes_byte_for_byte(server: VllmServer, path: str) -> None:
    """What vLLM serves on this route, plain and streamed, with and without usage."""
    async with both_ways(server) as both:
        for body in SERVED[path]:
            print(path, body)
            await check(both, path, json.dumps(body).encode() if body else b"", {200})


@pytest.mark.parametrize("path", METHODS)
async def test_an_error_passes_byte_for_byte(server: VllmServer, path: str) -> None:
    """What vLLM refuses on this route: unknown models, prompts that are too long, values it does not take."""
    async with both_ways(server) as both:
        for body in REFUSED[path]:
            print(path, str(body)[:200])
            await check(both, path, json.dumps(body).encode(), {400, 404, 422, 501})


ODD_BODIES = [
    (
        "spaces and escapes",
        b'{ "model" : "tiny",\n\t"prompt":"\\u00e9\\ud83c\\udf89", "max_tokens":4, "temperature":0 }',
    ),
    ("one name twice", b'{"model":"tiny","prompt":"a","max_tokens":900,"max_tokens":4,"temperature":0}'),
    ("numbers as text", b'{"model":"tiny","prompt":"a","max_tokens":"4","temperature":"0"}'),
    ("raw utf-8", '{"model":"tiny","prompt":"Größe 日本","max_tokens":4,"temperature":0.0}'.encode()),
    (
        "long numbers",
        b'{"model":"tiny","prompt":"a","max_tokens":4,"temperature":0,"x":1234567890123456789012345678901}',
    ),
]


@pytest.mark.parametrize(("name", "body"), ODD_BODIES, ids=[name for name, _ in ODD_BODIES])
async def test_an_odd_body_passes_as_it_was_written(vllm_server: VllmServer, name: str, body: bytes) -> None:
    """However a client writes its JSON, the engine reads the client's own bytes."""
    async with both_ways(vllm_server) as both:
        await check(both, "/v1/completions", body, {200})


async def test_streams_that_run_side_by_side_are_not_mixed(vllm_server: VllmServer) -> None:
    """Sixteen streams at once, half of them without usage: each client gets its own, whole."""
    bodies = [
        {
            "model": "tiny",
            "prompt": [number + 20, 21],
            "max_tokens": 24,
            "stream": True,
            **({"stream_options": {"include_usage": True}} if number % 2 else {}),
        }
        for number in range(16)
    ]
    async with both_ways(vllm_server) as both:
        asked = [both.ask(both.kvguard_port, "/v1/completions", json.dumps(body).encode()) for body in bodies]
        for body, (through, passed) in zip(bodies, await asyncio.gather(*asked), strict=True):
            asked_usage = check_request(json.dumps(body).encode(), passed)
            assert asked_usage == ("stream_options" not in body)
            check_answer(through, passed.answer, asked_usage=asked_usage)
