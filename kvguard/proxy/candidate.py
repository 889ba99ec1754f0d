"""A request as it comes before the controller: marked with what its headers say, and counted."""

import dataclasses
from dataclasses import dataclass

from kvguard.admission.footprint import Demand, Trait
from kvguard.admission.policy import DegradePolicy
from kvguard.admission.prefix import PrefixMark
from kvguard.pool.affinity import Trail, session_key
from kvguard.pool.backend import Backend
from kvguard.pool.pool import RoutingHints
from kvguard.protocols.prefix import TextMark, prefix_of
from kvguard.protocols.request import InferenceRequest
from kvguard.protocols.route import Route
from kvguard.proxy.headers import OPT_OUT, find
from kvguard.proxy.upstream import Headers
from kvguard.tokenization.counter import PromptCounter, TokenCount


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidatePolicy:
    """What an operator says of requests before any decision; requests of one session have the same `session_header`."""

    assumed_output_tokens: int = 512
    session_header: bytes | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A request whose prompts are counted, of a caller of this `priority`; `marks` are those of its only prompt, and
    `session` is the key of the session it belongs to, if it names one.
    """

    request: InferenceRequest
    count: TokenCount
    policy: CandidatePolicy
    priority: str
    marks: tuple[TextMark, ...] = ()
    session: int | None = None

    @property
    def hints(self) -> RoutingHints:
        """What says where it is best served."""
        trail = Trail(self.session, tuple(mark.hash for mark in self.marks))
        return RoutingHints(trail=trail, prompt_tokens=max(self.count.prompts, default=None))

    def demand_on(self, backend: Backend | None) -> Demand:
        """What it asks of this backend, whose context bounds its answer and whose models alone are remembered; of
        none in particular where it is None.
        """
        demand = self.request.demand(
            self.count.prompts,
            context_tokens=backend.context_tokens if backend else None,
            assumed_output_tokens=self.policy.assumed_output_tokens,
            slack=self.count.slack,
            estimated=self.count.estimated,
            release=backend.release if backend else None,
        )
        model = backend.base_model(self.request.model) if backend else ""
        # Classes are few and the operator's; a tenant's name may be anything, and is nobody else's to learn from.
        population = dataclasses.replace(demand.population, model=model, caller=self.priority)
        prefix = self._prefix() if backend and backend.occupancy.shares_prefixes else ()
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
    request: InferenceRequest, counter: PromptCounter, policy: CandidatePolicy, priority: str, headers: Headers
) -> Candidate:
    """The request with its prompts counted, and what it has in common with others; never fails."""
    named_session = find(headers, policy.session_header) if policy.session_header else None
    session = None if named_session is None else session_key(named_session)
    return Candidate(request, await counter.count(request), policy, priority, prefix_of(request), session)
