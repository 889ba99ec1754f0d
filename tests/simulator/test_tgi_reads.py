import httpx
import pytest

from kvguard.clock import ManualClock
from kvguard.simulator.tgi_app import create_tgi_app
from kvguard.simulator.tgi_config import TgiSimConfig
from kvguard.simulator.tgi_reads import info_of
from tests.kit.recordings import recorded_json

from .recorded_shapes import shape_of, violations

pytestmark = pytest.mark.anyio

SCHEMAS = recorded_json("openapi.json")["components"]["schemas"]
ERRORS = {each["where"]: each for each in recorded_json("errors_v3.json")}
JSON = {"content-type": "application/json"}
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def client_of(**settings):
    """A server whose engine does not run, which no read needs."""
    app = create_tgi_app(TgiSimConfig(**settings), ManualClock())
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://twin")


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("info_v1.4.5.json", "1.4.5"),
        ("info_v2.0.4.json", "2.0.4"),
        ("info_v2.2.0.json", "2.2.0"),
        ("info_v2.4.1.json", "2.4.1"),
        ("info_v3.3.7.json", "3.3.6-dev0"),
        ("info_v3.3.7_local_dir.json", "3.3.6-dev0"),
    ],
)
def test_info_of_a_release(name, version):
    """Its keys, their order and types are those of the release, and it says what was set."""
    info = info_of(TgiSimConfig(version=version, model="m"))
    assert shape_of(info) == shape_of(recorded_json(name))
    assert (info["model_id"], info["version"], info["max_total_tokens"]) == ("m", version, 4096)
    assert info.get("max_input_tokens", info.get("max_input_length")) == 4095


def test_info_is_what_the_description_says():
    """That of the last release."""
    assert violations(info_of(TgiSimConfig()), SCHEMAS["Info"], SCHEMAS) == []


@pytest.mark.parametrize(("version", "keys"), [("1.4.0", False), ("1.4.1", True), ("2.3.0", False)])
def test_when_info_has_a_batch_size(version, keys):
    """Since 1.4.1, until 2.3."""
    assert ("max_batch_size" in info_of(TgiSimConfig(version=version))) is keys


async def test_info_is_served():
    """Over HTTP it is the same."""
    async with client_of() as client:
        assert (await client.get("/info")).json() == info_of(TgiSimConfig())


@pytest.mark.parametrize("path", ["/health", "/ping", "/"])
async def test_a_server_without_an_engine_is_unhealthy(path):
    """In the words recorded."""
    recording = ERRORS["GET /health, /ping, /"]
    async with client_of() as client:
        answer = await client.get(path)
    assert (answer.status_code, answer.json()) == (recording["status"], recording["body"])


async def test_models():
    """One, and only since 2.3."""
    async with client_of(model="m") as client:
        answer = (await client.get("/v1/models")).json()
    assert shape_of(answer) == shape_of(recorded_json("models_response_v3.json"))
    assert [card["id"] for card in answer["data"]] == ["m"]
    assert violations(answer["data"][0], SCHEMAS["ModelInfo"], SCHEMAS) == []
    async with client_of(version="2.2.0") as client:
        assert (await client.get("/v1/models")).status_code == 404
        assert (await client.post("/chat_tokenize", json=CHAT)).status_code == 404


async def test_tokenize():
    """Every token with its place in the text; a cap on the prompt changes nothing."""
    async with client_of() as client:
        answer = await client.post("/tokenize", json={"inputs": "What is", "parameters": {"truncate": 1}})
    tokens = answer.json()
    assert shape_of(tokens) == shape_of(recorded_json("tokenize_response_v3.json"))
    assert ["What is"[token["start"] : token["stop"]] for token in tokens] == ["What", " is"]
    assert violations(tokens, SCHEMAS["TokenizeResponse"], SCHEMAS) == []


async def test_chat_tokenize():
    """The tokens of the rendered conversation; the call is counted as a request."""
    async with client_of() as client:
        assert (await client.get("/metrics")).text == ""
        answer = (await client.post("/chat_tokenize", json=CHAT)).json()
        assert "tgi_request_count 1\n" in (await client.get("/metrics")).text
    assert shape_of(answer) == shape_of(recorded_json("chat_tokenize_response_v3.json"))
    assert len(answer["tokenize_response"]) == 4
    assert violations(answer, SCHEMAS["ChatTokenizeResponse"], SCHEMAS) == []


@pytest.mark.parametrize(
    ("content", "headers", "where"),
    [
        (b"{", JSON, "body is not JSON (text starts so)"),
        (b"{}", JSON, "JSON of the wrong shape (text starts so)"),
        (b"{}", {}, "no application/json content type"),
        (b" " * 2_000_001, JSON, "body over --payload-limit (text starts so)"),
    ],
)
@pytest.mark.parametrize("path", ["/tokenize", "/generate", "/generate_stream", "/v1/chat/completions", "/vertex"])
async def test_what_no_route_reads(path, content, headers, where):
    """It is refused in plain text, streams too."""
    recording = ERRORS[where]
    async with client_of() as client:
        answer = await client.post(path, content=content, headers=headers)
        assert "tgi_request" not in (await client.get("/metrics")).text
    assert (answer.status_code, answer.headers["content-type"]) == (recording["status"], recording["content_type"])
    assert answer.text.startswith(recording["body"])


@pytest.mark.parametrize(("version", "statuses"), [("1.3.0", [404, 404]), ("1.4.0", [422, 404]), ("1.4.4", [422, 422])])
async def test_since_when_there_are_openai_routes(version, statuses):
    """Chat since 1.4.0, completions since 1.4.4."""
    async with client_of(version=version) as client:
        paths = ("/v1/chat/completions", "/v1/completions")
        assert [(await client.post(path, json={})).status_code for path in paths] == statuses
