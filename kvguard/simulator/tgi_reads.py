"""The TGI twin's harmless routes: what it is, how it is, and how many tokens a text has."""

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from kvguard.simulator import tgi_exposition
from kvguard.simulator.app import ClientLeftError
from kvguard.simulator.text import pieces, token_ids
from kvguard.simulator.tgi_answers import Json
from kvguard.simulator.tgi_config import TgiSimConfig
from kvguard.simulator.tgi_server import TgiTwin, read_body, refusal
from kvguard.simulator.tgi_wire import ChatBody, GenerateBody, TgiError, chat_ids, parsed


def reading_routes(server: TgiTwin) -> list[BaseRoute]:
    """Those the release has."""
    reads = _Reads(server)
    routes: list[BaseRoute] = [
        Route("/info", reads.info, methods=["GET"]),
        *(Route(path, reads.health, methods=["GET"]) for path in ("/health", "/ping", "/")),
        Route("/metrics", reads.metrics, methods=["GET"]),
        Route("/tokenize", reads.tokenize, methods=["POST"]),
    ]
    if server.config.release >= (2, 3, 0):
        routes.append(Route("/v1/models", reads.models, methods=["GET"]))
        routes.append(Route("/chat_tokenize", reads.chat_tokenize, methods=["POST"]))
    return routes


class _Reads:
    """The endpoints."""

    def __init__(self, server: TgiTwin) -> None:
        self._server = server

    async def info(self, _: Request) -> Response:
        return JSONResponse(info_of(self._server.config))

    async def models(self, _: Request) -> Response:
        name = self._server.config.model
        card = {"id": name, "object": "model", "created": 0, "owned_by": name}
        return JSONResponse({"object": "list", "data": [card]})

    async def health(self, _: Request) -> Response:
        if self._server.driver.running:
            return Response(status_code=200)
        return JSONResponse({"error": "unhealthy", "error_type": "healthcheck"}, status_code=503)

    async def metrics(self, _: Request) -> Response:
        return Response(self._server.page(), headers={"content-type": tgi_exposition.CONTENT_TYPE})

    async def tokenize(self, request: Request) -> Response:
        return await _answered(request, lambda raw: _tokens(parsed(raw, GenerateBody).inputs))

    async def chat_tokenize(self, request: Request) -> Response:
        self._server.meters.count("request_count")
        return await _answered(request, _chat_tokens)


async def _answered(request: Request, answer: Callable[[bytes], object]) -> Response:
    try:
        raw = await read_body(request.headers, request.receive)
        return JSONResponse(answer(raw))
    except TgiError as error:
        return refusal(error)
    except ClientLeftError:
        return Response(status_code=400)  # nobody is left to read it


def _tokens(text: str) -> list[Json]:
    tokens, start = [], 0
    for piece, number in zip(pieces(text), token_ids(text), strict=True):
        tokens.append({"id": number, "text": piece, "start": start, "stop": start + len(piece)})
        start += len(piece)
    return tokens


def _chat_tokens(raw: bytes) -> Json:
    ids = chat_ids(parsed(raw, ChatBody))
    listed = [{"id": number, "text": "", "start": 0, "stop": 0} for number in ids]
    return {"tokenize_response": listed, "templated_text": ""}


def info_of(config: TgiSimConfig) -> Json:
    """`/info` as this release has it."""
    release = config.release
    info: Json = {"model_id": config.model, "model_sha": None}
    if release < (2, 3, 0):
        info |= {"model_dtype": "torch.float16", "model_device_type": "cuda"}
    info |= {
        "model_pipeline_tag": "text-generation",
        "max_concurrent_requests": config.max_concurrent_requests,
        "max_best_of": config.max_best_of,
        "max_stop_sequences": config.max_stop_sequences,
        "max_input_length" if release < (2, 1, 0) else "max_input_tokens": config.max_input_tokens,
        "max_total_tokens": config.max_total_tokens,
    }
    if release < (2, 3, 0):
        info |= {
            "waiting_served_ratio": 0.3,
            "max_batch_total_tokens": config.max_batch_total_tokens,
            "max_waiting_tokens": 20,
        }
    if (1, 4, 1) <= release < (2, 3, 0):
        info["max_batch_size"] = None
    info["validation_workers"] = 2
    if release >= (2, 0, 1):
        info |= {"max_client_batch_size": config.max_client_batch_size, "router": "text-generation-router"}
    return info | {"version": config.version, "sha": None, "docker_label": None}
