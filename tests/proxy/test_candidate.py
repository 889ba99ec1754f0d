"""What a request is before anything is decided on it."""

import pytest

from kvguard.admission.footprint import Trait
from kvguard.admission.population import Population
from kvguard.proxy.app import GENERATING
from kvguard.proxy.candidate import CandidatePolicy, counted, read_request
from tests.kit.explaining import COUNTER, backend_at
from tests.kit.guard import COMPLETIONS

BODY = b'{"model": "thinker", "prompt": "hello", "max_tokens": 5000}'


@pytest.mark.parametrize(
    ("policy", "headers", "traits"),
    [
        (CandidatePolicy(), [(b"x-kvguard-degrade", b"none")], set()),
        (CandidatePolicy(allow_opt_out=True), [(b"X-Kvguard-Degrade", b"none")], {Trait.OPTED_OUT}),
        (CandidatePolicy(allow_opt_out=True), [(b"x-kvguard-degrade", b"all")], set()),
        (CandidatePolicy(reasoning_models=frozenset({"thinker"})), [], {Trait.REASONING}),
    ],
)
def test_traits_come_from_model_and_headers_as_configured(
    policy: CandidatePolicy, headers: list[tuple[bytes, bytes]], traits: set[Trait]
) -> None:
    """A reasoning model is configured by name; the opt-out has to be allowed."""
    assert read_request(GENERATING[COMPLETIONS], BODY, headers, policy).traits == traits


@pytest.mark.anyio
async def test_the_context_of_a_backend_bounds_the_answer() -> None:
    """One candidate asks different things of backends with different contexts."""
    policy = CandidatePolicy()
    candidate = await counted(read_request(GENERATING[COMPLETIONS], BODY, [], policy), COUNTER, policy)
    short, long = (candidate.demand_on(backend_at("b", 0.0, context=tokens)) for tokens in (100, 10_000))
    assert (short.prompts, short.output_cap, short.estimated) == ((3,), 97, True)
    assert (short.slack_tokens, short.prompt_tokens) == (1, 2)
    assert long.output_cap == 5000


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("body", "population"),
    [
        (b'{"model":"lora","prompt":"hi"}', Population(model="tiny", route=COMPLETIONS)),
        (b'{"model":"tiny","prompt":"hi","stop":"x"}', Population(model="tiny", route=COMPLETIONS, stops=True)),
        (b'{"model":"made up","prompt":"hi"}', Population(route=COMPLETIONS)),
    ],
)
async def test_whose_answers_tell_how_long_it_gets(body: bytes, population: Population) -> None:
    """The base model as the backend lists it, the route and the stop sequences; no name only the client knows."""
    policy, backend = CandidatePolicy(), backend_at("b", 0.0, models=("tiny", "other", "lora"))
    backend.parents = {"lora": "tiny"}
    candidate = await counted(read_request(GENERATING[COMPLETIONS], body, [], policy), COUNTER, policy)
    assert candidate.demand_on(backend).population == population
