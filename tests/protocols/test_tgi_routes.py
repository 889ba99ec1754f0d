"""What passes to TGI, and how errors look at each path."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvguard.admission.policy import Degradation, SequenceCut
from kvguard.errors import InvalidRequest
from kvguard.protocols.error_format import ErrorFormat
from kvguard.protocols.openai_errors import OPENAI_ERRORS
from kvguard.protocols.rewrite import rewrite
from kvguard.protocols.route import Route
from kvguard.protocols.tgi_errors import TGI_ERRORS
from kvguard.protocols.tgi_routes import TGI
from tests.kit.properties import deterministic
from tests.kit.recordings import recorded_json
from tests.protocols.any_json import VALUES

# Not passed on: pages that need others below them, and the metrics.
CLOSED = {"/metrics": "get"}


def test_every_route_stands_under_its_own_path() -> None:
    """All that generates is there."""
    assert all(path == route.path for path, route in TGI.generating.items())
    assert TGI.generating.keys() == {
        "/",
        "/generate",
        "/generate_stream",
        "/v1/chat/completions",
        "/v1/completions",
        "/invocations",
        "/vertex",
    }


def test_every_route_the_server_describes_is_decided_on() -> None:
    """What its own description lists passes by that method, or is closed."""
    for path, methods in recorded_json("openapi.json")["paths"].items():
        passing = {method.lower() for method in TGI.methods(path)}
        assert set(methods) - passing <= {CLOSED.get(path)}, path
        assert not (passing and path in CLOSED)


@pytest.mark.parametrize(
    ("path", "methods"),
    [("/", ("GET", "POST")), ("/generate", ("POST",)), ("/info", ("GET",)), ("/tokenize", ("POST",)), ("/metrics", ())],
)
def test_methods(path: str, methods: tuple[str, ...]) -> None:
    """One path may be a read and a route that generates."""
    assert TGI.methods(path) == methods


@pytest.mark.parametrize(
    ("path", "errors"),
    [
        ("/", TGI_ERRORS),
        ("/generate", TGI_ERRORS),
        ("/invocations", TGI_ERRORS),
        ("/vertex", TGI_ERRORS),
        ("/tokenize", TGI_ERRORS),
        ("/nowhere", TGI_ERRORS),
        ("/v1", TGI_ERRORS),
        ("/v1/chat/completions", OPENAI_ERRORS),
        ("/v1/completions", OPENAI_ERRORS),
        ("/v1/models", OPENAI_ERRORS),
        ("/v1/nowhere", OPENAI_ERRORS),
    ],
)
def test_errors(path: str, errors: ErrorFormat) -> None:
    """OpenAI's below /v1, TGI's own anywhere else."""
    assert TGI.errors_at(path) is errors


NATIVE_NAMES = ("max_new_tokens", "best_of", "truncate", "grammar", "stop")
CHAT_NAMES = ("max_tokens", "max_completion_tokens", "stream", "stream_options", "tools", "response_format", "model")
bodies = st.dictionaries(
    st.sampled_from(("inputs", "messages", "prompt", "parameters", "instances", "stream", "suffix", *CHAT_NAMES)),
    VALUES
    | st.integers(1, 5000)
    | st.dictionaries(st.sampled_from(NATIVE_NAMES), VALUES | st.integers(1, 5000))
    | st.lists(st.fixed_dictionaries({"inputs": st.just("x")}, optional={"parameters": VALUES}), max_size=2),
)


@deterministic
@given(route=st.sampled_from(list(TGI.generating.values())), body=bodies)
def test_any_json(route: Route, body: dict) -> None:
    """Whatever a body holds is a request, which is JSON again when it is written, or an invalid one."""
    written = json.dumps(body).encode()
    with contextlib.suppress(InvalidRequest):
        request = route.parse(written)
        tokens = (3,) * max(len(request.parts), 1)
        assert request.demand(tokens, context_tokens=100, assumed_output_tokens=50).sequences >= 1
        again = rewrite(request, Degradation(output_cap=64, cut=SequenceCut.ALL), ask_usage=True)
        assert isinstance(json.loads(again.body), dict)
