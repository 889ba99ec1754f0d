"""The TGI twin's HTTP face: its routes as raw ASGI endpoints over one driver.

A permit is taken for every generation as its request comes and given back with the answer; without one it is refused at
once. A stream has status 200 whatever happens: what goes wrong is an event in it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.routing import BaseRoute, Route
from starlette.types import Message, Receive, Scope, Send

from kvguard.clock import Clock
from kvguard.simulator.app import ClientLeftError, until_disconnect
from kvguard.simulator.driver import GenerationFailed, RequestStream
from kvguard.simulator.engine import SimToken
from kvguard.simulator.tgi_answers import ChatShape, Choice, CompletionShape, Head, NativeShape, Shape, frame
from kvguard.simulator.tgi_config import TgiSimConfig, Version
from kvguard.simulator.tgi_exposition import Timing
from kvguard.simulator.tgi_reads import reading_routes
from kvguard.simulator.tgi_server import TgiTwin, read_body, refusal
from kvguard.simulator.tgi_wire import (
    TgiCall,
    TgiError,
    chat_call,
    completion_call,
    invocations_call,
    invocations_kind,
    native_call,
    out_of_memory,
    parsed,
    vertex_calls,
)

KEEP_ALIVE_SECONDS: Final = 15.0
KEEP_ALIVE: Final = b":\n\n"
COMPUTE_TYPE: Final = b"1-kvguard-simulator"


def create_tgi_app(config: TgiSimConfig, clock: Clock) -> FastAPI:
    """One server. Its engine runs within the lifespan; `app.state.driver` holds it."""
    server = TgiTwin(config, clock)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(server.driver.run())
            yield
            running.cancel()

    app = FastAPI(routes=[*_generating(server), *reading_routes(server)], lifespan=lifespan, openapi_url=None)
    app.state.driver = server.driver
    return app


Read = Callable[[bytes, TgiTwin], "Asked"]


@dataclass(frozen=True, slots=True)
class Asked:
    """A call and how it is answered."""

    call: TgiCall
    shape: Shape


def _native(raw: bytes, server: TgiTwin, *, stream: bool | None) -> Asked:
    call = native_call(raw, server.config, stream=stream)
    return Asked(call, NativeShape(call, server.config.release, listed=stream is None))


def _chat(raw: bytes, server: TgiTwin) -> Asked:
    return _openai(ChatShape, chat_call(raw, server.config), server)


def _completion(raw: bytes, server: TgiTwin) -> Asked:
    return _openai(CompletionShape, completion_call(raw, server.config), server)


def _openai(shape: type[ChatShape] | type[CompletionShape], call: TgiCall, server: TgiTwin) -> Asked:
    config = server.config
    head = Head(created=int(server.clock.wall()), model=call.model, version=config.version)
    return Asked(call, shape(call, head, config.release))


def _invocations(raw: bytes, server: TgiTwin) -> Asked:
    kind, call = invocations_call(raw, server.config)
    if kind == "native":
        return Asked(call, NativeShape(call, server.config.release, listed=True))
    return _openai(ChatShape if kind == "chat" else CompletionShape, call, server)


READERS: Final[dict[str, Read]] = {
    "/generate": lambda raw, server: _native(raw, server, stream=False),
    "/generate_stream": lambda raw, server: _native(raw, server, stream=True),
    "/": lambda raw, server: _native(raw, server, stream=None),
    "/v1/chat/completions": _chat,
    "/v1/completions": _completion,
    "/invocations": _invocations,
}
SINCE: Final[dict[str, Version]] = {"/v1/chat/completions": (1, 4, 0), "/v1/completions": (1, 4, 4)}


def _generating(server: TgiTwin) -> list[BaseRoute]:
    served = {path: read for path, read in READERS.items() if server.config.release >= SINCE.get(path, (0, 0, 0))}
    routes = [Route(path, Generation(server, path, read), methods=["POST"]) for path, read in served.items()]
    return [*routes, Route("/vertex", Vertex(server), methods=["POST"])]


class Generation:
    """The ASGI endpoint of one generating route."""

    def __init__(self, server: TgiTwin, path: str, read: Read) -> None:
        self._server = server
        self._path = path
        self._read = read

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            raw = await read_body(Headers(scope=scope), receive)
        except TgiError as error:
            await refusal(error)(scope, receive, send)
            return
        except ClientLeftError:
            return
        try:
            asked = self._read(raw, self._server)
        except TgiError as error:
            await self._refuse(error, raw, scope, receive, send)
            return
        try:
            stream = self._server.take(asked.call)
        except TgiError as error:
            await _send_failure(asked, error, self._server, send)
            return
        try:
            sending = _send_stream if asked.call.stream else _send_whole
            await until_disconnect(receive, sending(stream, asked, self._server, send))
        finally:
            self._server.give_back(asked.call, stream)

    async def _refuse(self, error: TgiError, raw: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        generates = error.kind == "validation"  # else the route refuses before it asks for a generation
        openai = generates and self._speaks_openai(raw)
        if error.kind is not None:
            self._server.meters.count("request_count", 2 if openai else 1)
            self._server.meters.count("request_failure", err="validation")
        if not (generates and self._streams(raw)):
            await refusal(error)(scope, receive, send)
            return
        call, config = TgiCall(requests=(), stream=True), self._server.config
        head = Head(created=0, model="tgi", version=config.version)
        shape: Shape = ChatShape(call, head, config.release) if openai else NativeShape(call, config.release)
        await _send_failure(Asked(call, shape), error, self._server, send)

    def _speaks_openai(self, raw: bytes) -> bool:
        if self._path == "/invocations":
            return invocations_kind(raw, self._server.config) != "native"
        return self._path.startswith("/v1/")

    def _streams(self, raw: bytes) -> bool:
        if self._path in ("/generate", "/generate_stream"):
            return self._path == "/generate_stream"
        return parsed(raw, _Stream).stream


class _Stream(msgspec.Struct):
    stream: bool = False


class Vertex:
    """`/vertex`: whatever fails is a 500."""

    def __init__(self, server: TgiTwin) -> None:
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        taken: list[tuple[TgiCall, RequestStream]] = []
        try:
            raw = await read_body(Headers(scope=scope), receive)
            # One by one: what was taken before one that is refused has to be given back.
            taken.extend((call, self._server.take(call)) for call in vertex_calls(raw, self._server.config))
            await until_disconnect(receive, self._answer(taken, send))
        except TgiError as error:
            failed = TgiError(error.message, error.kind, 500 if error.kind else error.status)
            await refusal(failed)(scope, receive, send)
        except ClientLeftError:
            return
        finally:
            for call, stream in taken:
                self._server.give_back(call, stream)

    async def _answer(self, taken: list[tuple[TgiCall, RequestStream]], send: Send) -> None:
        texts, began = [], self._server.clock.now()
        for call, stream in taken:
            choices = _choices(call)
            first: float | None = None
            try:
                async for choice, token in stream.tokens():
                    first = self._server.clock.now() if first is None else first
                    choices[choice].add(token)
            except GenerationFailed:
                error = TgiError(out_of_memory().message, "generation", 500)
                await _send_body(send, error.status, error.body, [])
                return
            _count_finished(self._server, choices, began, first)
            texts.append(choices[0].text)
        await _send_body(send, 200, msgspec.json.encode({"predictions": texts}), [])


def _choices(call: TgiCall) -> list[Choice]:
    return [Choice(number, request.prompt_tokens) for number, request in enumerate(call.requests)]


async def _send_stream(stream: RequestStream, asked: Asked, server: TgiTwin, send: Send) -> None:
    """Status and headers go out at once, whatever comes; silence is broken by a comment every 15 s."""
    release, choices, began = server.config.release, _choices(asked.call), server.clock.now()
    await send(_start(200, _stream_headers(asked.call)))
    first: float | None = None
    try:
        async for heard in _kept_alive(stream.tokens(), server.clock):
            if heard is None:
                await _send_part(send, KEEP_ALIVE)
                continue
            choice, token = heard
            first = server.clock.now() if first is None else first
            choices[choice].add(token)
            await _send_part(send, frame(asked.shape.event(choice, token, choices), release))
    except GenerationFailed:
        ends = asked.shape.failure(out_of_memory())
    else:
        ends = asked.shape.closing(choices)
        _count_finished(server, choices, began, first)
    for content in ends:
        await _send_part(send, frame(content, release))
    await send({"type": "http.response.body", "body": b""})


async def _kept_alive(
    tokens: AsyncIterator[tuple[int, SimToken]], clock: Clock
) -> AsyncIterator[tuple[int, SimToken] | None]:
    """The tokens as they come, and None for every 15 s without one."""
    coming = asyncio.ensure_future(anext(tokens, None))
    try:
        while True:
            silence = asyncio.ensure_future(clock.sleep(KEEP_ALIVE_SECONDS))
            try:
                either: set[asyncio.Future[Any]] = {coming, silence}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            finally:
                silence.cancel()
            if not coming.done():
                yield None
                continue
            heard = coming.result()
            if heard is None:
                return
            coming = asyncio.ensure_future(anext(tokens, None))
            yield heard
    finally:
        coming.cancel()


async def _send_whole(stream: RequestStream, asked: Asked, server: TgiTwin, send: Send) -> None:
    choices, began = _choices(asked.call), server.clock.now()
    first: float | None = None
    try:
        async for choice, token in stream.tokens():
            first = server.clock.now() if first is None else first
            choices[choice].add(token)
    except GenerationFailed:
        error = out_of_memory()
        await _send_body(send, error.status, error.body, [])
        return
    _count_finished(server, choices, began, first)
    headers = _whole_headers(asked, choices, (began, began if first is None else first, server.clock.now()))
    await _send_body(send, 200, msgspec.json.encode(asked.shape.whole(choices)), headers)


async def _send_failure(asked: Asked, error: TgiError, server: TgiTwin, send: Send) -> None:
    """A refusal before anything was generated: on a stream an event under status 200."""
    if not asked.call.stream:
        await _send_body(send, error.status, error.body, [])
        return
    await send(_start(200, _stream_headers(asked.call)))
    for content in asked.shape.failure(error):
        await _send_part(send, frame(content, server.config.release))
    await send({"type": "http.response.body", "body": b""})


def _count_finished(server: TgiTwin, choices: list[Choice], began: float, first: float | None) -> None:
    now, first = server.clock.now(), began if first is None else first
    for choice in choices:
        server.meters.finished(Timing(queued=first - began, inference=now - first, tokens=len(choice.tokens)))


Pairs = list[tuple[bytes, bytes]]


def _stream_headers(call: TgiCall) -> Pairs:
    return [
        (b"content-type", b"text/event-stream"),
        (b"cache-control", b"no-cache"),
        (b"x-compute-type", COMPUTE_TYPE),
        (b"x-compute-characters", str(len(call.inputs)).encode()),
        (b"x-accel-buffering", b"no"),
    ]


def _whole_headers(asked: Asked, choices: list[Choice], times: tuple[float, float, float]) -> Pairs:
    """Of several generations of one prompt the first counts, of several prompts all; the time of those is not told."""
    began, first, ended = times
    completion = isinstance(asked.shape, CompletionShape)
    counted = choices if completion else choices[:1]
    generated, prompt = sum(len(one.tokens) for one in counted), sum(one.prompt_tokens for one in counted)
    total, queued, inference = (round(1000 * seconds) for seconds in (ended - began, first - began, ended - first))
    numbers = {
        **({} if completion else {"x-compute-time": ended - began}),
        "x-compute-characters": len(asked.call.inputs),
        "x-total-time": total,
        "x-validation-time": 0,
        "x-queue-time": queued,
        "x-inference-time": inference,
        "x-time-per-token": inference // max(generated, 1),
        "x-prompt-tokens": prompt,
        "x-generated-tokens": generated,
    }
    return [(b"x-compute-type", COMPUTE_TYPE), *((n.encode(), str(v).encode()) for n, v in numbers.items())]


def _start(status: int, headers: Pairs) -> Message:
    return {"type": "http.response.start", "status": status, "headers": headers}


async def _send_part(send: Send, part: bytes) -> None:
    await send({"type": "http.response.body", "body": part, "more_body": True})


async def _send_body(send: Send, status: int, body: bytes, headers: Pairs) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send(_start(status, [(b"content-type", b"application/json"), *headers, length]))
    await send({"type": "http.response.body", "body": body})
