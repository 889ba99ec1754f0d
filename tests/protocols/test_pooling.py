"""The routes of pooling models: bytes in, request out."""

import json

import pytest

from kvguard.admission.policy import Degradation, SequenceCut
from kvguard.errors import InvalidRequest
from kvguard.protocols.pooling import AROUND_TOKENS, ROUTES, parse_cohere, parse_embeddings, parse_pooling, parse_rerank
from kvguard.protocols.prompts import ChatPrompt, PairedPrompts, PromptList
from kvguard.protocols.request import InferenceRequest
from kvguard.protocols.rewrite import rewrite
from kvguard.protocols.route import Route

PATHS = {
    *("/v1/embeddings", "/v2/embed", "/pooling", "/classify", "/score", "/v1/score"),
    *("/rerank", "/v1/rerank", "/v2/rerank"),
}
BODIES: dict[str, dict[str, object]] = {
    "/v1/embeddings": {"input": "x"},
    "/v2/embed": {"texts": ["x"]},
    "/pooling": {"input": [1, 2]},
    "/classify": {"input": ["x", "y"]},
    "/score": {"queries": "q", "documents": ["d"]},
    "/v1/score": {"text_1": "q", "text_2": ["d"]},
    "/rerank": {"query": "q", "documents": ["d"]},
    "/v1/rerank": {"query": "q", "documents": ["d"]},
    "/v2/rerank": {"query": "q", "documents": ["d"]},
}


def embeddings(**fields: object) -> InferenceRequest:
    return parse_embeddings(json.dumps({"input": "x", **fields}).encode())


def test_every_route_is_there() -> None:
    """Under each of its names."""
    assert {route.path for route in ROUTES} == PATHS == set(BODIES)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_a_request_generates_nothing_and_is_never_changed(route: Route) -> None:
    """Its demand is its prompts; no degradation finds anything in it, and odd fields of other routes are not read."""
    body = json.dumps(
        {**BODIES[route.path], "model": "m", "stream": "x", "n": 7, "best_of": 9, "min_tokens": []}
    ).encode()
    request = route.parse(body)
    assert (request.model, request.stream, request.copies) == ("m", False, 1)
    rewritten = rewrite(request, Degradation(output_cap=1, cut=SequenceCut.ALL), ask_usage=True)
    assert (rewritten.body, rewritten.changes) == (body, ())
    demand = request.demand((10,), context_tokens=None, assumed_output_tokens=512)
    assert (demand.output_cap, demand.expected_output, demand.fixed_length, demand.streamed) == (0, 0, True, False)


@pytest.mark.parametrize(
    ("fields", "prompts"),
    [
        ({}, (10, 500)),
        ({"truncate_prompt_tokens": 7}, (7, 7)),
        ({"truncate_prompt_tokens": 0}, (0, 0)),
        ({"truncate_prompt_tokens": -1}, (10, 100)),
        ({"truncate_prompt_tokens": "7", "padding": "do_not_pad"}, (7, 7)),
        ({"padding": "max_length"}, (100, 500)),
        ({"padding": "max_length", "truncate_prompt_tokens": 7}, (100, 500)),
    ],
)
def test_how_long_prompts_get(fields: dict[str, object], prompts: tuple[int, ...]) -> None:
    """They are cut to a number or to the whole context, of which nothing is kept for an answer, or filled up to it."""
    demand = embeddings(input=["a", "b"], **fields).demand((10, 500), context_tokens=100, assumed_output_tokens=512)
    assert demand.prompts == prompts
    assert demand.estimated == ("max_length" in fields.values())


@pytest.mark.parametrize(
    ("fields", "truncate_to"),
    [
        ({}, -1),
        ({"truncate": "END"}, -1),
        ({"truncate": "START"}, -1),
        ({"truncate": "NONE"}, None),
        ({"truncate": "NONE", "max_tokens": 5}, None),
        ({"max_tokens": 5}, 5),
        ({"max_tokens": 0}, 0),
        ({"max_tokens": -1}, -1),
        ({"max_tokens": None}, -1),
    ],
)
def test_how_cohere_cuts(fields: dict[str, object], truncate_to: int | None) -> None:
    """Always, unless it is told not to."""
    assert parse_cohere(json.dumps({"texts": ["x"], **fields}).encode()).truncate_to == truncate_to


def test_what_only_the_server_knows_is_room_around_each_prompt() -> None:
    """The prefix of an input type, and the templates for pairs."""
    prefixed = parse_cohere(b'{"texts":["x"],"input_type":"search_query"}')
    plain = parse_cohere(b'{"texts":["x"],"input_type":null}')
    assert (prefixed.around_tokens, plain.around_tokens) == (AROUND_TOKENS, 0)
    demand = prefixed.demand((10,), context_tokens=1000, assumed_output_tokens=512)
    assert (demand.prompts, demand.prompt_tokens, demand.estimated) == ((10 + AROUND_TOKENS,), 10, True)
    assert not plain.demand((10,), context_tokens=1000, assumed_output_tokens=512).estimated
    pairs = parse_rerank(b'{"query":"q","documents":["d"]}')
    assert isinstance(pairs.prompt, PairedPrompts)
    demand = pairs.demand((10, 20), context_tokens=1000, assumed_output_tokens=512, slack=(10, 5))
    assert demand.prompts == (20 + AROUND_TOKENS, 25 + AROUND_TOKENS)
    assert demand.prompt_tokens == 30


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_where_special_tokens_can_be_switched_off(route: Route) -> None:
    """Only where the engine knows the field: not in Cohere's form, and not for pairs."""
    body = json.dumps({**BODIES[route.path], "add_special_tokens": False}).encode()
    assert route.parse(body).special_tokens == (route.path not in ("/v1/embeddings", "/pooling", "/classify"))


def test_pictures_are_set_apart() -> None:
    """In a conversation, in a list of them and on either side of a pair."""
    url = "data:image/png;base64," + "A" * 5000
    part = {"type": "image_url", "image_url": {"url": url}}
    chats = [[{"role": "user", "content": [part]}]] * 2
    alone = parse_pooling(json.dumps({"messages": chats[0]}).encode()).prompt
    assert isinstance(alone, ChatPrompt)
    assert len(alone.media) == 1
    several = parse_embeddings(json.dumps({"input": chats}).encode()).prompt
    assert isinstance(several, PromptList)
    pairs = parse_rerank(json.dumps({"query": {"content": [part]}, "documents": ["d", {"content": [part]}]}).encode())
    assert isinstance(pairs.prompt, PairedPrompts)
    for prompt in (*several.prompts, *pairs.prompt.queries.prompts, pairs.prompt.documents.prompts[1]):
        assert isinstance(prompt, ChatPrompt)
        assert len(prompt.media) == 1
        assert b"AAAA" not in bytes(prompt.fields["messages"])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": "x", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"input": "x", "truncate_prompt_tokens": "many"}, "truncate_prompt_tokens"),
        ({"input": "x", "add_special_tokens": "perhaps"}, "add_special_tokens"),
    ],
)
def test_what_the_engine_refuses(body: dict[str, object], param: str) -> None:
    """Values that are none of their field, by its name."""
    with pytest.raises(InvalidRequest) as caught:
        parse_pooling(json.dumps(body).encode())
    assert caught.value.param == param
    with pytest.raises(InvalidRequest) as caught:
        parse_cohere(b'{"texts":["x"],"max_tokens":-2}')
    assert caught.value.param == "max_tokens"
