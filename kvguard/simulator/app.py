"""The simulator's HTTP face: vLLM's routes as raw ASGI endpoints over one driver.

A client that leaves, with or without a stream, aborts its sequences: `receive` is watched beside the answer, and the
endpoint's own `finally` gives the sequences back before anything else runs.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Message, Receive, Scope, Send

from kvguard.clock import Clock
from kvguard.simulator import exposition
from kvguard.simulator.answers import Answer, AnyAnswer, ChatShape, CompletionShape, Head, Shape
from kvguard.simulator.config import SimConfig
from kvguard.simulator.driver import EngineBusyError, EngineDriver, RequestStream
from kvguard.simulator.engine import EngineStats, SequenceRequest, SimEngine
from kvguard.simulator.events import MessagesAnswer, ResponsesAnswer
from kvguard.simulator.wire import (
    ApiError,
    Call,
    chat_call,
    completion_call,
    count_answer,
    messages_call,
    responses_call,
    tokenize_answer,
)

VERSION = "0.32.0+kvguard.simulator"
MAX_BODY_BYTES = 64 * 1024 * 1024
EVENT_STREAM = b"text/event-stream; charset=utf-8"

Parse = Callable[[bytes, SimConfig], Call]
Count = Callable[[bytes, SimConfig], dict[str, object]]
Answering = Callable[[Head, Call], AnyAnswer]
VllmDriver = EngineDriver[SequenceRequest, EngineStats]


class ClientLeftError(Exception):
    """The client closed the connection before its request was complete."""


def create_app(config: SimConfig, clock: Clock) -> FastAPI:
    """One engine behind vLLM's HTTP API. The engine runs within the lifespan; `app.state.driver` holds it."""
    driver = EngineDriver(SimEngine(config), clock, most_unfinished=config.max_num_queued_reqs)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(driver.run())
            yield
            running.cancel()

    routes: list[BaseRoute] = [*_generation_routes(config, clock, driver), *_plain_routes(config, clock, driver)]
    app = FastAPI(routes=routes, lifespan=lifespan, openapi_url=None)
    app.state.driver = driver
    return app


@dataclass(frozen=True, slots=True, kw_only=True)
class Face:
    """One generating route: how it reads, answers and refuses."""

    path: str
    parse: Parse
    id_prefix: str
    answer: Answering
    enveloped: bool = False


def _in_choices(path: str, parse: Parse, shape: Shape) -> Face:
    return Face(path=path, parse=parse, id_prefix=shape.id_prefix, answer=lambda head, call: Answer(shape, head, call))


FACES = (
    _in_choices("/v1/completions", completion_call, CompletionShape()),
    _in_choices("/v1/chat/completions", chat_call, ChatShape()),
    Face(path="/v1/messages", parse=messages_call, id_prefix="chatcmpl-", answer=MessagesAnswer, enveloped=True),
    Face(path="/v1/responses", parse=responses_call, id_prefix="resp_", answer=ResponsesAnswer),
)


def _generation_routes(config: SimConfig, clock: Clock, driver: VllmDriver) -> list[Route]:
    numbers = itertools.count()

    def route(face: Face) -> Route:
        def head(headers: Headers) -> Head:
            name = headers.get("x-request-id") or f"{next(numbers):016x}"
            return Head(answer_id=face.id_prefix + name, created=int(clock.wall()), model=config.model)

        def call(body: bytes) -> Call:
            return face.parse(body, config)

        return Route(face.path, Generation(driver, face, call, head), methods=["POST"])

    return [route(face) for face in FACES]


def _plain_routes(config: SimConfig, clock: Clock, driver: VllmDriver) -> list[Route]:
    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [_model_card(config, int(clock.wall()))]})

    async def tokenize(request: Request) -> Response:
        return await _counted(request, tokenize_answer, config)

    async def count_tokens(request: Request) -> Response:
        return await _counted(request, count_answer, config, enveloped=True)

    async def health(_: Request) -> Response:
        return Response(status_code=200 if driver.running else 503)

    async def metrics(_: Request) -> Response:
        page = exposition.render(config, driver.stats, turned_away=driver.turned_away)
        return Response(page, headers={"content-type": exposition.CONTENT_TYPE})

    async def version(_: Request) -> Response:
        return JSONResponse({"version": VERSION})

    return [
        Route("/v1/models", models, methods=["GET"]),
        Route("/tokenize", tokenize, methods=["POST"]),
        Route("/v1/messages/count_tokens", count_tokens, methods=["POST"]),
        Route("/health", health, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
        Route("/version", version, methods=["GET"]),
    ]


async def _counted(request: Request, count: Count, config: SimConfig, *, enveloped: bool = False) -> Response:
    """The answer of a route that only counts."""
    try:
        body = await read_body(Headers(scope=request.scope), request.receive)
        return JSONResponse(count(body, config))
    except ApiError as error:
        return _error_response(error, enveloped=enveloped)
    except ClientLeftError:
        return Response(status_code=400)  # nobody is left to read it


class Generation:
    """The ASGI endpoint of one generating route."""

    def __init__(
        self, driver: VllmDriver, face: Face, call: Callable[[bytes], Call], head: Callable[[Headers], Head]
    ) -> None:
        self._driver = driver
        self._face = face
        self._call = call
        self._head = head

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        try:
            call = self._call(await read_body(headers, receive))
            stream = self._submit(call)
        except ApiError as error:
            await _error_response(error, enveloped=self._face.enveloped)(scope, receive, send)
            return
        except ClientLeftError:
            return
        try:
            answer = self._face.answer(self._head(headers), call)
            sending = _send_stream if call.stream else _send_whole
            await until_disconnect(receive, sending(stream, answer, send))
        finally:
            stream.close()

    def _submit(self, call: Call) -> RequestStream:
        try:
            most_tokens = sum(sequence.max_tokens for sequence in call.sequences)
            return self._driver.submit(call.sequences, most_tokens=most_tokens)
        except EngineBusyError as error:
            message = "The engine is currently busy and cannot accept new requests."
            retry = "Please try again later or on a different instance."
            raise ApiError(f"{message} {retry}", kind="Service Unavailable", status=503) from error


async def read_body(headers: Headers, receive: Receive) -> bytes:
    """The whole request body, of which there is a bound."""
    if not is_json(headers):
        raise ApiError("Unsupported Media Type: Only 'application/json' is allowed", kind="Bad Request")
    body = await whole_body(receive, MAX_BODY_BYTES)
    if body is None:
        raise ApiError(f"The body is larger than {MAX_BODY_BYTES} bytes", status=413)
    return body


def is_json(headers: Headers) -> bool:
    """Whether the body says it is."""
    return headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"


async def whole_body(receive: Receive, limit: int) -> bytes | None:
    """The body, None if it is longer than that. Raises ClientLeftError."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeftError
        body += message.get("body", b"")
        if len(body) > limit:
            return None
        if not message.get("more_body", False):
            return bytes(body)


async def until_disconnect(receive: Receive, answer: Coroutine[None, None, None]) -> None:
    """Run `answer` to its end, or cancel it the moment the client leaves."""
    async with asyncio.TaskGroup() as tasks:
        pump = tasks.create_task(answer)
        watch = tasks.create_task(_cancel_on_disconnect(receive, pump))
        pump.add_done_callback(lambda _: watch.cancel())


async def _cancel_on_disconnect(receive: Receive, pump: "asyncio.Task[None]") -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    pump.cancel()


async def _send_stream(stream: RequestStream, answer: AnyAnswer, send: Send) -> None:
    """Status and headers go out before the engine takes the request, so a queued call already has its 200."""
    await send(_start(200, EVENT_STREAM))
    async for choice, token in stream.tokens():
        for chunk in answer.chunks(choice, token):
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    for chunk in answer.closing():
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _send_whole(stream: RequestStream, answer: AnyAnswer, send: Send) -> None:
    async for choice, token in stream.tokens():
        answer.add(choice, token)
    body = JSONResponse(answer.whole()).body
    await send(_start(200, b"application/json", len(body)))
    await send({"type": "http.response.body", "body": body})


def _start(status: int, content_type: bytes, content_length: int | None = None) -> Message:
    headers = [(b"content-type", content_type)]
    if content_length is not None:
        headers.append((b"content-length", str(content_length).encode()))
    return {"type": "http.response.start", "status": status, "headers": headers}


def _error_response(error: ApiError, *, enveloped: bool = False) -> JSONResponse:
    return JSONResponse(error.envelope if enveloped else error.body, status_code=error.status)


def _model_card(config: SimConfig, created: int) -> dict[str, object]:
    return {
        "id": config.model,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": config.model,
        "parent": None,
        "max_model_len": config.max_model_len,
        "permission": [],
    }
