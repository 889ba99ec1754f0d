"""Several models behind one kvguard: where reads and unknown models go, and what the list of models says."""

import contextlib
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from kvguard.engines.vllm_models import parse_models
from kvguard.explain import report
from kvguard.protocols.routes import VLLM
from tests.kit.explaining import backend_at, explained, explainer_of
from tests.kit.guard import Guard, guarding
from tests.kit.recordings import recorded_json
from tests.kit.stub import Behaviour, Call, Stub, answer_at_once, refusing_stub, running_stub

pytestmark = pytest.mark.anyio

MODELS = "/v1/models"
UNLISTED = "no backend is known to list this model, so it goes to any, and the engine may say 404"
BODY_READS = [path for path, method in VLLM.reads.items() if method == "POST"]


def serve(model: str) -> Behaviour:
    """As vLLM: any other model is a 404."""

    async def answer(call: Call) -> None:
        if call.hit.json["model"] == model:
            await answer_at_once(call)
        else:
            await call.reply(404, {"error": {"message": "does not exist", "type": "NotFoundError"}})

    return answer


async def answer_version(call: Call) -> None:
    await call.reply(200, {"version": "0.32.0"})


@contextlib.asynccontextmanager
async def two(first: Stub, second: Stub) -> AsyncIterator[Guard]:
    """A kvguard in front of both, each of which was scraped."""
    async with running_stub(first), running_stub(second), guarding(first, second) as guard:
        yield guard


def gone(guard: Guard, number: int) -> None:
    """A backend refuses connections for long enough."""
    for _ in range(3):
        guard.service.controller.backends[number].occupancy.miss(reached=False)


def names(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200
    return [entry["id"] for entry in answer.json()["data"]]


# The list of models


async def test_the_list_of_one_backend_is_its_own() -> None:
    """To the byte."""
    async with running_stub() as stub, guarding(stub) as guard:
        assert (await guard.client.get(MODELS)).content == json.dumps(stub.listed).encode()


async def test_the_list_of_backends_alike_is_one_of_theirs() -> None:
    """To the byte."""
    first = Stub()
    async with two(first, Stub()) as guard:
        assert (await guard.client.get(MODELS)).content == json.dumps(first.listed).encode()


async def test_backends_of_different_models_have_one_list() -> None:
    """In the form of the engine's own, also while nothing is generated any more."""
    first, second = Stub(model="n"), Stub(model="m", adapters={"lora": "m"})
    async with two(first, second) as guard:
        guard.service.controller.draining = True
        answer = await guard.client.get(MODELS, params={"x": "y"})
        assert names(answer) == ["m", "n", "lora"]
        assert answer.json()["data"][1] == first.listed["data"][0]
        assert answer.headers["content-type"] == "application/json"
        assert "x-kvguard-request-id" in answer.headers


async def test_models_of_a_backend_that_is_gone_are_not_listed() -> None:
    """What is left is that of the others; without any, all that were known."""
    async with two(Stub(model="m"), Stub(model="n")) as guard:
        gone(guard, 0)
        assert names(await guard.client.get(MODELS)) == ["n"]
        gone(guard, 1)
        assert names(await guard.client.get(MODELS)) == ["m", "n"]


async def test_the_smallest_context_of_a_model_is_listed() -> None:
    """Whichever backend a request goes to takes one of that length."""
    async with two(Stub(context_tokens=4096), Stub(context_tokens=1024)) as guard:
        (entry,) = (await guard.client.get(MODELS)).json()["data"]
        assert entry == {"id": "tiny", "max_model_len": 1024}


async def test_a_list_behind_a_key_stays_there() -> None:
    """Where every backend wants one the client's own is asked for; nothing that needs one is in the list of all."""
    async with two(Stub(model="m", key="k"), Stub(model="n", key="k")) as guard:
        assert (await guard.client.get(MODELS)).status_code == 401
        assert names(await guard.client.get(MODELS, headers={"authorization": "Bearer k"})) == ["m"]
    async with two(Stub(model="m", key="k"), Stub(model="n")) as guard:
        for headers in ({}, {"authorization": "Bearer k"}):
            assert names(await guard.client.get(MODELS, headers=headers)) == ["n"]


async def test_tgi_servers_of_different_models_have_one_list() -> None:
    """Of the models alone: every TGI server answers to "tgi" too, and none lists it."""
    info = recorded_json("info_v3.3.7.json")
    async with two(Stub(info={**info, "model_id": "n"}), Stub(info={**info, "model_id": "m"})) as guard:
        assert (await guard.client.get(MODELS)).content == (
            b'{"object":"list","data":[{"id":"m","object":"model","created":0,"owned_by":"m"},'
            b'{"id":"n","object":"model","created":0,"owned_by":"n"}]}'
        )


# Reads that name a model


@pytest.mark.parametrize("path", BODY_READS)
async def test_a_read_goes_to_a_backend_of_its_model(path: str) -> None:
    """As it came, whichever backend has less to do; an adapter goes where it is loaded."""
    first, second = Stub(model="m", adapters={"lora": "m"}), Stub(model="n")
    async with two(first, second) as guard:
        for model, stub in (("m", first), ("n", second), ("lora", first)):
            assert (await guard.client.post(path, json={"model": model, "prompt": "x"})).status_code == 200
            hit = [*stub.hits, *stub.tokenized][-1]
            assert (hit.target, hit.json) == (path, {"model": model, "prompt": "x"})
        assert len(second.hits + second.tokenized) == 1


@pytest.mark.parametrize("body", [b'{"prompt": "x"}', b'{"model": "zzz"}', b'{"model": 1}', b'["x"]', b"", b"{"])
async def test_a_read_of_no_known_model_goes_to_a_backend_that_answers(body: bytes) -> None:
    """Whatever is wrong with it the engine says."""
    first, second = Stub(model="m"), Stub(model="n")
    async with two(first, second) as guard:
        gone(guard, 0)
        answer = await guard.client.post("/tokenize", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 200
        assert ([hit.body for hit in second.tokenized], first.tokenized) == ([body], [])


async def test_reads_without_a_body_go_to_any_backend() -> None:
    """A body that a GET has anyway says nothing."""
    first, second = Stub(model="m", answer=answer_version), Stub(model="n", answer=answer_version)
    async with two(first, second) as guard:
        answer = await guard.client.request("GET", "/version", json={"model": "n"})
        assert answer.json() == {"version": "0.32.0"}
        assert (len(first.hits), len(second.hits)) == (1, 0)


async def test_a_read_of_a_model_whose_backend_is_gone_is_a_502() -> None:
    """Another backend could only say that there is no such model."""
    with refusing_stub() as first:
        async with running_stub(Stub(model="n")) as second, guarding(first, second) as guard:
            guard.backend.introduce(parse_models(b'{"data": [{"id": "m"}]}'))
            answer = await guard.client.post("/tokenize", json={"model": "m", "prompt": "x"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (502, "backend_unreachable")
            assert second.tokenized == []


# A model that nobody serves


async def test_a_model_that_no_backend_lists_is_the_engines_to_refuse() -> None:
    """Its 404 comes as it is, from a backend that answers; one that is listed goes where it is served."""
    first, second = Stub(model="n", answer=serve("n")), Stub(model="m", answer=serve("m"))
    async with two(first, second) as guard:
        for model, status in (("m", 200), ("n", 200), ("zzz", 404)):
            assert (await guard.complete([1], model=model, max_tokens=1)).status_code == status
        gone(guard, 0)
        seen = len(first.hits)
        answer = await guard.complete([1], model="zzz", max_tokens=1)
        assert (answer.status_code, answer.json()["error"]["type"]) == (404, "NotFoundError")
        assert (len(first.hits), second.hits[-1].json["model"]) == (seen, "zzz")


# What is said of a read beforehand


def test_where_a_read_would_go() -> None:
    """To a backend of the model it names, to any where it names none or one that nobody lists."""
    explainer, _ = explainer_of(backend_at("a", 0.99, models=("n",)), backend_at("b", 0.1, models=("m",)))
    passes = "a read takes no KV and passes at any tier"
    for body, backend, why in (
        ({"model": "m"}, "b", "it goes to a backend that lists this model"),
        ({"model": "zzz"}, "a", UNLISTED),
        ({}, "a", "it names no model, so it goes to any backend"),
    ):
        said = explained(explainer, body, path="/tokenize")
        assert said == {
            "route": "/tokenize",
            "model": body.get("model"),
            "decision": "read",
            "reason": None,
            "status": None,
            "changes": [],
            "why": [f"{passes}; {why}"],
            "backend": backend,
            "backends": [],
            "notes": [],
        }
        assert report(said) == f"pass to {backend}: unchanged\n  {passes}; {why}"


async def test_who_would_answer_with_the_list_of_models() -> None:
    """kvguard itself where the backends differ, else one of them."""
    async with two(Stub(model="m"), Stub(model="n")) as guard:
        for why, verdict in (
            ("kvguard answers by itself, because the backends list different models", "answered by kvguard"),
            ("a read takes no KV and passes at any tier; it names no model, so it goes to any backend", "pass to b1"),
        ):
            said = (await guard.admin.post("/debug/explain", params={"route": MODELS})).json()
            assert said["why"] == [why]
            assert report(said).startswith(verdict)
            gone(guard, 0)
