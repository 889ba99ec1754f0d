"""What a request is before anything is decided on it."""

import pytest

from kvguard.admission.footprint import Trait
from kvguard.admission.policy import DegradePolicy
from kvguard.admission.population import Population
from kvguard.protocols.routes import VLLM
from kvguard.proxy.candidate import CandidatePolicy, counted, marked, named
from tests.admission.build import sample
from tests.kit.explaining import COUNTER, backend_at
from tests.kit.guard import COMPLETIONS

BODY = b'{"model": "thinker", "prompt": "hello", "max_tokens": 5000}'


@pytest.mark.parametrize(
    ("policy", "headers", "traits"),
    [
        (DegradePolicy(), [(b"x-kvguard-degrade", b"none")], set()),
        (DegradePolicy(allow_opt_out=True), [(b"X-Kvguard-Degrade", b"none")], {Trait.OPTED_OUT}),
        (DegradePolicy(allow_opt_out=True), [(b"x-kvguard-degrade", b"all")], set()),
        (DegradePolicy(reasoning_models=frozenset({"thinker"})), [], {Trait.REASONING}),
    ],
)
def test_traits_come_from_model_and_headers_as_configured(
    policy: DegradePolicy, headers: list[tuple[bytes, bytes]], traits: set[Trait]
) -> None:
    """A reasoning model is configured by name; the opt-out has to be allowed."""
    route = VLLM.generating[COMPLETIONS]
    request = marked(route.parse(BODY), route, headers, policy)
    assert (request.traits, request.route) == (traits, COMPLETIONS)


@pytest.mark.parametrize(
    ("path", "header", "model"),
    [
        ("/invocations", b"X-Amzn-SageMaker-Adapter-Identifier", "lora"),
        ("/invocations", b"x-amzn-sagemaker-adapter-alias", "thinker"),
        (COMPLETIONS, b"X-Amzn-SageMaker-Adapter-Identifier", "thinker"),
    ],
)
def test_a_header_may_name_the_model_as_on_sagemaker(path: str, header: bytes, model: str) -> None:
    """The engine puts it in place of the body's, there alone, and the body is left to it."""
    route = VLLM.generating[path]
    request = named(route.parse(BODY), route, [(header, b"lora")])
    assert (request.model, request.body) == (model, BODY)


@pytest.mark.anyio
async def test_the_context_of_a_backend_bounds_the_answer() -> None:
    """One candidate asks different things of backends with different contexts."""
    candidate = await counted(VLLM.generating[COMPLETIONS].parse(BODY), COUNTER, CandidatePolicy(), "normal", [])
    short, long = (candidate.demand_on(backend_at("b", 0.0, context=tokens)) for tokens in (100, 10_000))
    assert (short.prompts, short.output_cap, short.estimated) == ((3,), 98, True)
    assert (short.slack_tokens, short.prompt_tokens) == (1, 2)
    assert long.output_cap == 5000


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("body", "population"),
    [
        (b'{"model":"lora","prompt":"hi"}', Population(model="tiny", route=COMPLETIONS, caller="low")),
        (
            b'{"model":"tiny","prompt":"hi","stop":"x"}',
            Population(model="tiny", route=COMPLETIONS, caller="low", stops=True),
        ),
        (b'{"model":"made up","prompt":"hi"}', Population(route=COMPLETIONS, caller="low")),
    ],
)
async def test_whose_answers_tell_how_long_it_gets(body: bytes, population: Population) -> None:
    """The base model as the backend lists it, route, class and stop sequences; no name only the client knows."""
    route, backend = VLLM.generating[COMPLETIONS], backend_at("b", 0.0, models=("tiny", "other", "lora"))
    backend.parents = {"lora": "tiny"}
    request = marked(route.parse(body), route, [], DegradePolicy())
    candidate = await counted(request, COUNTER, CandidatePolicy(), "low", [])
    assert candidate.demand_on(backend).population == population


@pytest.mark.anyio
@pytest.mark.parametrize(("caching", "tokens"), [(True, [127]), (False, []), (None, [])])
async def test_the_beginning_of_a_prompt_is_marked_where_blocks_are_shared(
    caching: bool | None, tokens: list[int]
) -> None:
    """With the tokens that are before each mark at least, of those that were counted."""
    request = VLLM.generating[COMPLETIONS].parse(b'{"prompt": [%s]}' % b",".join([b"1234567"] * 250))
    backend = backend_at("b", None)
    backend.occupancy.observe(sample(0.0, prefix_caching=caching), asked_at=0.0)
    candidate = await counted(request, COUNTER, CandidatePolicy(), "normal", [])
    assert len(candidate.marks) == 1
    assert [mark.tokens for mark in candidate.demand_on(backend).prefix] == tokens
