"""A request as it comes before the controller: marked with what its headers say, and counted."""

import dataclasses
from dataclasses import dataclass

from kvguard.admission.footprint import Demand, Trait
from kvguard.admission.policy import DegradePolicy
from kvguard.admission.prefix import PrefixMark
from kvguard.pool.backend import Backend
from kvguard.protocols.prefix import TextMark, prefix_of
from kvguard.protocols.request import InferenceRequest
from kvguard.protocols.route import Route
from kvguard.proxy.headers import OPT_OUT, find
from kvguard.proxy.upstream import Headers
from kvguard.tokenization.counter import PromptCounter, TokenCount


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidatePolicy:
    """What an operator says of requests before any decision."""

    assumed_output_tokens: int = 512


@dataclass(frozen=True, slots=True)
class Candidate:
    """A request whose prompts are counted, of a caller of this `priority`; `marks` are those of its only prompt."""

    request: InferenceRequest
    count: TokenCount
    policy: CandidatePolicy
    priority: str
    marks: tuple[TextMark, ...] = ()

    def demand_on(self, backend: Backend) -> Demand:
        """What it asks of this backend, whose context bounds its answer and whose models alone are remembered."""
        demand = self.request.demand(
            self.count.prompts,
            context_tokens=backend.context_tokens,
            assumed_output_tokens=self.policy.assumed_output_tokens,
            slack=self.count.slack,
            estimated=self.count.estimated,
            release=backend.release,
        )
        model = backend.base_model(self.request.model)
        # Classes are few and the operator's; a tenant's name may be anything, and is nobody else's to learn from.
        population = dataclasses.replace(demand.population, model=model, caller=self.priority)
        prefix = self._prefix() if backend.occupancy.shares_prefixes else ()
        return dataclasses.replace(demand, population=population, prefix=prefix)

    def _prefix(self) -> tuple[PrefixMark, ...]:
        return tuple(PrefixMark(mark.hash, mark.tokens(self.count.total)) for mark in self.marks)


def named(request: InferenceRequest, route: Route, headers: Headers) -> InferenceRequest:
    """The request with the model it will run on where a header says which; the body is left to the engine to change."""
    model = find(headers, route.model_header) if route.model_header else None
    return request if model is None else dataclasses.replace(request, model=model.decode("latin-1"))


def marked(request: InferenceRequest, route: Route, headers: Headers, policy: DegradePolicy) -> InferenceRequest:
    """The request with what its route, its model and its headers make of it."""
    traits = set(request.traits)
    if request.model in policy.reasoning_models:
        traits.add(Trait.REASONING)
    if policy.allow_opt_out and opts_out(headers):
        traits.add(Trait.OPTED_OUT)
    return dataclasses.replace(request, traits=frozenset(traits), route=route.path)


def opts_out(headers: Headers) -> bool:
    """Whether the client would rather be refused than degraded."""
    return find(headers, OPT_OUT) == b"none"


async def counted(
    request: InferenceRequest, counter: PromptCounter, policy: CandidatePolicy, priority: str
) -> Candidate:
    """The request with its prompts counted; never fails."""
    return Candidate(request, await counter.count(request), policy, priority, prefix_of(request))
