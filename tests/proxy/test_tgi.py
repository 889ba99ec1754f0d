"""The traffic port with TGI's routes: what reaches the engine, and what comes back."""

import json

import pytest
from prometheus_client import CollectorRegistry

from kvguard.admission.release import Release
from kvguard.errors import UpstreamBroken
from kvguard.protocols.tgi_routes import TGI
from kvguard.proxy.explain import Explainer
from kvguard.proxy.pipeline import PipelinePolicy
from tests.kit.explaining import backend_at, explainer_of
from tests.kit.recordings import recorded, recorded_json
from tests.kit.scripted import EVENTS, JSON, Answer, Front

pytestmark = pytest.mark.anyio

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODIES = {
    "/": {"inputs": "x"},
    "/generate": {"inputs": "x"},
    "/generate_stream": {"inputs": "x"},
    CHAT: {"messages": [{"role": "user", "content": "x"}]},
    COMPLETIONS: {"prompt": "x"},
    "/invocations": {"inputs": "x"},
    "/vertex": {"instances": [{"inputs": "x"}]},
}
BEST_OF_TWO = {"inputs": "x", "parameters": {"best_of": 2, "do_sample": True, "max_new_tokens": 50}}


def front_at(ratio: float | None, **policy: object) -> Front:
    return Front(TGI, backend_at("b", ratio, **policy))


def generated(front: Front) -> float:
    return sample(front.registry, "kvguard_tokens_total", kind="generated")


def sample(registry: CollectorRegistry, name: str, **labels: str) -> float:
    return registry.get_sample_value(name, labels) or 0.0


# Which route


@pytest.mark.parametrize("path", BODIES)
async def test_what_is_admitted_passes_as_it_came(path: str) -> None:
    """On every route that generates."""
    front = front_at(0.0)
    client = await front.ask(path, BODIES[path])
    assert (client.status, client.body) == (200, b"{}")
    (asked,) = front.asked
    assert (asked.method, asked.target, json.loads(asked.body)) == ("POST", path, BODIES[path])
    assert front.backend.ledger.live == 0


@pytest.mark.parametrize(("path", "method"), TGI.reads.items())
async def test_reads_pass_at_any_tier(path: str, method: str) -> None:
    """Also where the same path generates by another method."""
    front = front_at(0.99)
    assert (await front.ask(path, method=method)).status == 200
    assert (front.asked[0].method, front.asked[0].target) == (method, path)


@pytest.mark.parametrize(
    ("path", "method", "answer"),
    [
        ("/v1/models", "GET", "models_response_v3.json"),
        ("/tokenize", "POST", "tokenize_response_v3.json"),
        ("/chat_tokenize", "POST", "chat_tokenize_response_v3.json"),
        ("/info", "GET", "info_v3.3.7.json"),
        ("/api-doc/openapi.json", "GET", "openapi.json"),
    ],
)
async def test_what_a_read_answers(path: str, method: str, answer: str) -> None:
    """To the byte."""
    front = front_at(0.0)
    front.answer = Answer(recorded(answer), None, headers=JSON)
    assert (await front.ask(path, method=method)).body == recorded(answer)


@pytest.mark.parametrize("error", recorded_json("errors_v3.json"), ids=lambda error: error["where"])
@pytest.mark.parametrize("path", ["/generate", CHAT])
async def test_an_error_of_the_engines_own(path: str, error: dict) -> None:
    """Status, type and body pass as they came, a time to come back with those that are about load."""
    front, body = front_at(0.0), error["body"]
    written = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    kind = [(b"content-type", error["content_type"].encode())] if error["content_type"] else []
    front.answer = Answer(*filter(None, [written]), None, status=error["status"], headers=kind)
    client = await front.ask(path, BODIES[path])
    assert (client.status, client.body) == (error["status"], written)
    assert client.headers.get("content-type") == error["content_type"]
    assert ("retry-after" in client.headers) is (error["status"] in (429, 503))
    assert not front.backend.occupancy.lengths.saved()


@pytest.mark.parametrize(
    ("path", "method", "status", "allow"),
    [
        ("/", "PUT", 405, "GET, POST"),
        ("/generate", "GET", 405, "POST"),
        ("/info", "POST", 405, "GET"),
        ("/metrics", "GET", 404, None),
        ("/docs", "GET", 404, None),
        ("/v1/embeddings", "POST", 404, None),
    ],
)
async def test_what_does_not_pass(path: str, method: str, status: int, allow: str | None) -> None:
    """Another method, or no such route."""
    front = front_at(0.0)
    client = await front.ask(path, method=method)
    assert (client.status, client.headers.get("allow")) == (status, allow)
    assert not front.asked


# Refusals


@pytest.mark.parametrize("path", BODIES)
async def test_a_full_engine(path: str) -> None:
    """The refusal has the form its clients read."""
    client = await front_at(0.99).ask(path, BODIES[path])
    assert (client.status, client.headers["x-kvguard-reason"]) == (503, "saturated")
    assert "retry-after" in client.headers
    if path.startswith("/v1/"):
        assert client.json["error"]["type"] == "overloaded_error"
    else:
        assert (client.json.keys(), client.json["error_type"]) == ({"error", "error_type"}, "overloaded")


async def test_a_body_that_cannot_be_read() -> None:
    """The fault is the client's, and the message names the field."""
    client = await front_at(0.0).ask("/generate", {"inputs": "x", "parameters": {"max_new_tokens": "5"}})
    assert (client.status, client.json["error_type"]) == (400, "validation")
    assert "max_new_tokens" in client.json["error"]


async def test_a_backend_that_breaks_before_its_first_event() -> None:
    """The client is told by a status, although TGI had already sent one."""
    front = front_at(0.0)
    front.answer = Answer(b":\n\n", UpstreamBroken("gone"))
    client = await front.ask("/generate_stream", BODIES["/generate_stream"])
    assert (client.status, client.headers["x-kvguard-reason"]) == (502, "backend_unreachable")
    assert front.answer.aborted


# Degrading


async def test_a_trim_leaves_sampling_alone() -> None:
    """Parameters that were not there are written with the one they would change."""
    front = front_at(0.75)
    client = await front.ask("/generate", {"inputs": "x"})
    change, _, cap = client.headers["x-kvguard-degraded"].partition("->")
    assert change == "max_new_tokens=unset"
    parameters = {"max_new_tokens": int(cap), "do_sample": True}
    assert json.loads(front.asked[0].body) == {"inputs": "x", "parameters": parameters}


async def test_one_sequence_is_one_answer() -> None:
    """`best_of` goes, and its copies are not reserved."""
    front = front_at(0.88)
    client = await front.ask("/generate", BEST_OF_TWO)
    assert client.headers["x-kvguard-degraded"].endswith("best_of=2->unset")
    assert "best_of" not in json.loads(front.asked[0].body)["parameters"]


async def test_a_release_that_does_not_know_a_cap() -> None:
    """The answer is taken for as long as without it, and a trim is written by the name that is known."""
    front = front_at(0.75)
    front.backend.release = Release(ignored_caps=frozenset({"max_completion_tokens"}))
    client = await front.ask(CHAT, {**BODIES[CHAT], "max_completion_tokens": 20})
    assert client.headers["x-kvguard-degraded"].startswith("max_tokens=unset->")
    front.backend.release, front.answer = Release(), Answer(b"{}", None, headers=JSON)
    client = await front.ask(CHAT, {**BODIES[CHAT], "max_completion_tokens": 20})
    assert "x-kvguard-degraded" not in client.headers


# Learning


@pytest.mark.parametrize(
    ("path", "body", "answer", "headers", "length"),
    [
        ("/generate_stream", {"inputs": "x"}, "sse_generate_stream_v3_queued_keepalive.txt", EVENTS, 4),
        ("/generate_stream", {"inputs": "x"}, "sse_generate_stream_v3.txt", EVENTS, 4),
        ("/", {"inputs": "x", "stream": True}, "sse_generate_stream_v1.4-v2.0.txt", EVENTS, 4),
        ("/invocations", {"prompt": ["x", "y"], "stream": True}, "sse_completions_v3_two_prompts.txt", EVENTS, 6),
        ("/invocations", {"prompt": "x"}, "completions_response_v3.json", JSON, 4),
        ("/generate", BEST_OF_TWO, "generate_response_v3_best_of_2.json", JSON, 8),
    ],
)
async def test_an_answer_teaches_its_length(
    path: str, body: dict, answer: str, headers: list[tuple[bytes, bytes]], length: int
) -> None:
    """Over all sequences, from wherever TGI tells it."""
    front = front_at(0.0)
    front.answer = Answer(recorded(answer), None, headers=headers)
    assert (await front.ask(path, body)).body == recorded(answer)
    assert generated(front) == length
    assert len(front.backend.occupancy.lengths.saved()) > 0


@pytest.mark.parametrize(
    ("path", "body", "answer", "headers"),
    [
        # The headers tell about the better answer alone.
        ("/generate", BEST_OF_TWO, "generate_response_v3_no_details.json", "generate_non_stream"),
        # One prompt's usage is missing.
        (COMPLETIONS, {"prompt": ["x", "y", "z"], "stream": True}, "sse_completions_v3_two_prompts.txt", "stream"),
    ],
)
async def test_an_answer_that_tells_too_little_teaches_nothing(
    path: str, body: dict, answer: str, headers: str
) -> None:
    """A sum over fewer sequences than there were is none."""
    front = front_at(0.0)
    lines = (line.partition(": ") for line in recorded_json("response_headers_v3.json")[headers])
    front.answer = Answer(recorded(answer), None, headers=[(name.encode(), value.encode()) for name, _, value in lines])
    assert (await front.ask(path, body)).status == 200
    assert generated(front) == 0
    assert not front.backend.occupancy.lengths.saved()


async def test_usage_is_asked_for_and_taken_out_again() -> None:
    """A client that did not ask for it gets the stream it asked for."""
    front = front_at(0.0)
    front.answer = Answer(recorded("sse_chat_v3_include_usage.txt"), None)
    client = await front.ask(CHAT, {**BODIES[CHAT], "stream": True})
    assert json.loads(front.asked[0].body)["stream_options"] == {"include_usage": True}
    assert client.body == recorded("sse_chat_v3.txt")
    assert generated(front) == 4


async def test_a_hidden_failure_teaches_nothing() -> None:
    """It is an answer with a status of its own, and no backend is at fault for refusing."""
    front = front_at(0.0)
    front.answer = Answer(recorded("sse_generate_stream_v3_overloaded.txt"), None)
    client = await front.ask("/generate_stream", {"inputs": "x"})
    assert (client.status, client.headers["retry-after"]) == (429, "3")
    assert sample(front.registry, "kvguard_exchanges_total", route="/generate_stream", end="complete") == 1
    assert (generated(front), front.backend.occupancy.lengths.saved()) == (0, ())
    assert front.backend.ledger.live == 0


async def test_a_failure_that_nobody_waits_for() -> None:
    """Where it is switched off the client gets TGI's status and its event."""
    front = Front(TGI, backend_at("b", 0.0), policy=PipelinePolicy(first_event_seconds=0.0))
    front.answer = Answer(recorded("sse_generate_stream_v3_overloaded.txt"), None)
    client = await front.ask("/generate_stream", {"inputs": "x"})
    assert (client.status, client.body) == (200, recorded("sse_generate_stream_v3_overloaded.txt"))
    assert sample(front.registry, "kvguard_exchanges_total", route="/generate_stream", end="upstream_error") == 1


# Explaining


async def explained(front: Front, body: dict) -> dict:
    _, controller = explainer_of(front.backend)
    explainer = Explainer(controller, front.counter, TGI, front.clock, front.app.policy)
    return await explainer.explain(json.dumps(body).encode(), [])


@pytest.mark.parametrize(
    ("body", "route"),
    [({"inputs": "x"}, "/generate"), ({"messages": []}, CHAT), ({"prompt": "x"}, COMPLETIONS)],
)
async def test_the_route_of_a_body(body: dict, route: str) -> None:
    """Told by its fields, of those there are."""
    assert (await explained(front_at(0.0), body))["route"] == route


async def test_the_changes_of_a_release() -> None:
    """A cap is named by the name that release knows."""
    front = front_at(0.75)
    front.backend.release = Release(ignored_caps=frozenset({"max_completion_tokens"}))
    (change,) = (await explained(front, {**BODIES[CHAT], "max_completion_tokens": 1000}))["changes"]
    assert change.startswith("max_tokens=unset->")
