"""What would happen to a request, without sending it: the live decision with nothing reserved, and why.

Nothing changes: no tier, no ledger, no counter of decisions. Counting may ask an engine's `/tokenize`, as for any
request. What a request says never shows, only sizes and the fields that would be changed.
"""

import math
import sys
from dataclasses import dataclass

import msgspec

from kvguard.admission.blocks import BlockRule
from kvguard.admission.calibration import LengthForecast, forecast_of
from kvguard.admission.capacity import Capacity
from kvguard.admission.decision import Admit, Reject, passes_blind
from kvguard.admission.footprint import Demand
from kvguard.admission.occupancy import Occupancy
from kvguard.admission.reasons import RejectReason
from kvguard.admission.tiers import Tier, TierPolicy, tier_of
from kvguard.clock import Clock
from kvguard.errors import InvalidRequest
from kvguard.pool.backend import Backend
from kvguard.pool.health import Standing
from kvguard.protocols.fields import is_set, read_fields
from kvguard.protocols.openai_errors import OPENAI_ERRORS, error_body
from kvguard.protocols.rewrite import rewrite
from kvguard.protocols.route import Route
from kvguard.protocols.routes import RouteTable
from kvguard.proxy.candidate import Candidate, counted, marked, named, opts_out
from kvguard.proxy.controller import Controller, Refusal
from kvguard.proxy.exchange import BodyTooLarge, ClientGone, Exchange, Message, Receive, WholeAnswer
from kvguard.proxy.governance import Terms
from kvguard.proxy.pipeline import PipelinePolicy
from kvguard.proxy.placement import Weighed, weigh
from kvguard.proxy.reading import BodyReader
from kvguard.proxy.reads import Json, Read, explain_read
from kvguard.proxy.refusal import STATUS, body_too_large, invalid_request, render
from kvguard.proxy.upstream import Headers
from kvguard.proxy.why import choice, gauge_words, reasons
from kvguard.telemetry.log import rounded
from kvguard.telemetry.reporter import Reporter
from kvguard.tokenization.counter import PromptCounter

CHAT_PATH, COMPLETIONS_PATH, RESPONSES_PATH = "/v1/chat/completions", "/v1/completions", "/v1/responses"
GENERATE_PATH, VERTEX_PATH = "/generate", "/vertex"
_LIKELY = (("messages", CHAT_PATH), ("input", RESPONSES_PATH), ("inputs", GENERATE_PATH), ("instances", VERTEX_PATH))
_JSON: Headers = [(b"content-type", b"application/json")]


class UnknownRoute(Exception):
    """No route of that path."""


class Explainer:
    """Explains requests to one pool by the routes of `table`; a path that is in both its lists is a generating one."""

    def __init__(
        self,
        controller: Controller,
        counter: PromptCounter,
        table: RouteTable,
        clock: Clock,
        policy: PipelinePolicy,
    ) -> None:
        self._controller = controller
        self._reader = BodyReader()
        self._counter = counter
        self._table = table
        self._clock = clock
        self.policy = policy

    async def explain(self, body: bytes, headers: Headers, path: str | None = None) -> Json:
        """What would become of the request in `body`. Raises InvalidRequest or UnknownRoute."""
        if path is not None and path in self._table.reads and path not in self._table.generating:
            read = Read(method=self._table.reads[path], path=path, body=body)
            return explain_read(read, self._controller, self._clock.now())
        route, governance = self._route(path, body), self._controller.governance
        request = named(await self._reader.read(route, body), route, headers)
        # Whoever reaches the admin port may ask on behalf of anybody.
        caller = governance.identity.caller(headers, trusted=True)
        terms = governance.terms(route.path, request.model, caller)
        request = marked(request, route, headers, terms.policy.degrade)
        candidate = await counted(request, self._counter, self.policy.candidates, caller.priority, headers)
        explaining = _Explaining(self._controller, candidate, self.policy, self._clock.now(), route.path, terms)
        notes = []
        if opts_out(headers) and not terms.policy.degrade.allow_opt_out:
            notes.append("x-kvguard-degrade: none is ignored, because degrade.allow_opt_out is off")
        said = {"route": route.path, "model": request.model, "tenant": caller.tenant, "priority": caller.priority}
        return {**said, **explaining.whole(), "notes": notes}

    def _route(self, path: str | None, body: bytes) -> Route:
        path = self._path_of(body) if path is None else path
        routes = self._table.generating
        if path not in routes:
            raise UnknownRoute(f"There is no route of that path; those that generate are {', '.join(routes)}.")
        return routes[path]

    def _path_of(self, body: bytes) -> str:
        """The likeliest route of a body: what has messages may be for others as well."""
        fields = read_fields(body)
        likely = (path for name, path in _LIKELY if is_set(fields, name) and path in self._table.generating)
        return next(likely, COMPLETIONS_PATH)


class ExplainPort:
    """The explainer over HTTP: a bounded body in, JSON out, errors included."""

    def __init__(
        self, explainer: Explainer, controller: Controller, reporter: Reporter, clock: Clock, policy: PipelinePolicy
    ) -> None:
        self._explainer = explainer
        self._controller = controller
        self._reporter = reporter
        self._clock = clock
        self.policy = policy

    async def answer(self, scope: Message, receive: Receive, path: str | None) -> WholeAnswer:
        """The explanation of the request in the body. Raises ClientGone."""
        now, patience = self._clock.now(), self.policy.patience
        exchange = Exchange(scope, receive, _never_sent, received_at=now, patience=patience)
        try:
            body = await exchange.read_body(self.policy.max_body_bytes)
            explanation = await self._explainer.explain(body, exchange.headers, path)
        except BodyTooLarge:
            return self._refused(body_too_large(self.policy.max_body_bytes, self._controller.tier))
        except InvalidRequest as error:
            return self._refused(invalid_request(error, self._controller.tier))
        except UnknownRoute as error:
            text = error_body(str(error), code="not_found", kind="invalid_request_error", param="route")
            return WholeAnswer(404, _JSON, text)
        except ClientGone:
            raise
        except Exception as error:  # noqa: BLE001  a fault of ours must not show its insides
            self._reporter.fault(exchange.request_id, error)
            text = error_body("kvguard failed on this request.", code="internal_error", kind="server_error")
            return WholeAnswer(500, _JSON, text)
        return WholeAnswer(200, _JSON, msgspec.json.encode(explanation))

    def _refused(self, refusal: Refusal) -> WholeAnswer:
        return render(refusal, self.policy.statuses, OPENAI_ERRORS)


async def _never_sent(message: Message) -> None:
    raise RuntimeError("the admin application sends the answer")


@dataclass(frozen=True, slots=True)
class _Explaining:
    """One request in front of every backend at one moment."""

    controller: Controller
    candidate: Candidate
    policy: PipelinePolicy
    now: float
    route: str
    terms: Terms

    def whole(self) -> Json:
        model, terms = self.candidate.request.model, self.terms
        call = self.controller.call(self.candidate.demand_on, model=model, terms=terms, hints=self.candidate.hints)
        chosen = self.controller.choose(call, self.now, self._tier_on)
        possible = self.controller.governance.possible(self.route, terms.caller)
        early = self.controller.early(self.now, possible, self._tier_on)
        asked = self.controller.pool.asked(model, self.now, call.hints)
        reports = [
            self._report(backend, weigh(backend, call, self._tier_on, self.now) if backend in asked else None)
            for backend in self.controller.backends
        ]
        speaks = chosen.backend if chosen else None
        if early is not None:
            speaks, verdict = early[0], {**self._refusal(*early), "why": [self._early_why(early[1])]}
        elif chosen is None:
            nobody = self.controller.nobody()
            verdict = {**self._refusal(None, nobody), "why": [self._nobody_why(nobody)]}
        else:
            takers = sum(report["decision"] in {"admit", "degrade"} for report in reports)
            verdict = self._verdict(chosen, self._choice_why(chosen.backend, takers, len(asked)) if takers > 1 else ())
        name = speaks.name if speaks else None
        for report in reports:
            report["chosen"] = report["backend"] == name
        return {**verdict, "backend": name, "backends": reports}

    def _tier_on(self, backend: Backend, policy: TierPolicy) -> Tier:
        return backend.tier_at(policy, self.now).tier

    def _early_why(self, reject: Reject) -> str:
        if reject.reason is RejectReason.DRAINING:
            return "refused (draining), because kvguard is shutting down: no backend is asked"
        asked = "no backend that can be reached takes any request now"
        return f"refused ({reject.reason.value}) before its body is read, because {asked}; see the backends"

    def _nobody_why(self, reject: Reject) -> str:
        why = "every backend of this model is being drained" if self.controller.backends else "no backend is known"
        return f"refused ({reject.reason.value}), because {why}"

    def _choice_why(self, chosen: Backend, takers: int, asked: int) -> tuple[str, ...]:
        pool = self.controller.pool
        preferred, margin = pool.preferred(self.candidate.hints.trail), pool.policy.affinity_margin
        return (choice(chosen, preferred, takers=takers, asked=asked, margin=margin),)

    def _verdict(self, weighed: Weighed, more: tuple[str, ...] = ()) -> Json:
        decision, why = weighed.decision, [*self._why(weighed), *more]
        if isinstance(decision, Reject):
            return {**self._refusal(weighed.backend, decision), "why": why}
        changes = self._changes(weighed.backend, decision)
        return {
            "decision": "degrade" if changes else "admit",
            "tier": int(decision.tier),
            "reason": None,
            "status": None,
            "retry_after_seconds": None,
            "changes": changes,
            "why": why,
        }

    def _refusal(self, backend: Backend | None, reject: Reject) -> Json:
        bounds = self.controller.returning.bounds(backend, reject, self.now)
        return {
            "decision": "refuse",
            "tier": int(reject.tier),
            "reason": reject.reason.value,
            "status": self.policy.statuses.get(reject.reason, STATUS[reject.reason]),
            "retry_after_seconds": None if bounds is None else [round(seconds, 1) for seconds in bounds],
            "changes": [],
        }

    def _changes(self, backend: Backend, decision: Admit) -> list[str]:
        return list(rewrite(self.candidate.request, decision.degradation, release=backend.release).changes)

    def _report(self, backend: Backend, weighed: Weighed | None) -> Json:
        """Everything about one backend; `weighed` is None when it would not be asked."""
        demand = weighed.demand if weighed else self.candidate.demand_on(backend)
        occupancy, base = backend.occupancy, self._tier_on(backend, self.terms.policy.tiers)
        if weighed is None:
            verdict: Json = {"decision": "not_asked", "changes": [], "why": [self._not_asked(backend)]}
        else:
            verdict = self._verdict(weighed)
        return {
            "backend": backend.name,
            **verdict,
            "standing": backend.health.standing(self.now).value,
            "telemetry": occupancy.telemetry(self.now).value,
            "condition": backend.condition(self.now).state.value,
            "base_tier": int(base),
            "level": self._level(occupancy, base, demand),
            **self._sizes(demand, forecast_of(demand, occupancy.lengths)),
            **_in_blocks(occupancy.capacity, demand),
            "shared_blocks": occupancy.ledger.match(demand).saved(demand.copies),
            "admitted": self._admitted(weighed, occupancy.capacity),
            **self._room(occupancy, weighed, demand),
        }

    def _why(self, weighed: Weighed) -> list[str]:
        policy = self.terms.policy
        model, models = self.candidate.request.model, weighed.backend.models
        lines = list(reasons(weighed, policy, weighed.backend.tier_at(policy.tiers, self.now), self.now))
        context, longest = weighed.backend.context_tokens, max(self.candidate.count.prompts, default=0)
        if context is not None and longest > context and self.candidate.request.truncate_to is None:
            lines.insert(
                0, f"the prompt of {longest} tokens is longer than the context of {context}: the engine refuses it"
            )
        decision = weighed.decision
        if isinstance(decision, Reject) and decision.reason is RejectReason.TENANT_SHARE:
            lines = [self._share_why(weighed)]
        if weighed.shadow:
            lines.append("shadow mode: it passes unchanged, and this is only reported")
        if model and models and model not in models:
            return ["no backend lists this model, so each is asked as if it did; the engine may say 404", *lines]
        return lines

    def _share_why(self, weighed: Weighed) -> str:
        """Why a tenant gets no more; its share is known, or nothing would be refused for it."""
        tenant, occupancy = self.terms.caller.tenant, weighed.backend.occupancy
        tally, blocks = occupancy.ledger.tenants.get(tenant), occupancy.capacity.blocks if occupancy.capacity else 0
        held, share = tally.reserved_blocks if tally else 0, self.terms.tenant.max_share or 0.0
        words = f"tenant {tenant} holds {held} blocks, and with this request more than its {share * blocks:g}"
        return f"refused (tenant_share), because {words} (tenants[].max_share {share:g} of {blocks})"

    def _not_asked(self, backend: Backend) -> str:
        others = [other for other in self.controller.backends if self.candidate.request.model in other.models]
        if others and backend not in others:
            listed = ", ".join(sorted(backend.models)) or "none"
            return f"not asked, because it does not list this model; it lists {listed}"
        standing, prompt = backend.health.standing(self.now), self.candidate.hints.prompt_tokens
        if standing in _NOT_TAKING:
            return f"not asked, because {_NOT_TAKING[standing]}"
        if prompt is not None and prompt not in backend.prompts:
            longest = (
                "" if backend.prompts == range(backend.prompts.start, sys.maxsize) else f" to {backend.prompts[-1]}"
            )
            return f"not asked, because it takes prompts of {backend.prompts.start}{longest} tokens"
        return f"not asked, because {gauge_words(backend.occupancy, self.now)} and another backend answers"

    def _level(self, occupancy: Occupancy, base: Tier, demand: Demand) -> int:
        policy = self.terms.policy
        if policy.exempt or passes_blind(occupancy, policy, self.now):
            return int(Tier.NORMAL)
        ratios = occupancy.ratios(self.now, demand)
        return int(base if ratios is None else max(base, tier_of(ratios, policy.tiers)))

    def _sizes(self, demand: Demand, forecast: LengthForecast) -> Json:
        count = self.candidate.count
        return {
            "tokens": {
                "prompts": list(count.prompts),
                "prompt_sum": demand.prompt_tokens,
                "slack": demand.slack_tokens,
                "source": count.source.value,
                "estimated": count.estimated,
            },
            "sequences": {
                "prompts": len(demand.prompts),
                "copies": demand.copies,
                "beams": demand.beams,
                "total": demand.sequences,
            },
            "output": {
                "asked": self.candidate.request.requested_cap,
                "cap": demand.output_cap,
                "expected": demand.expected_output,
                "forecast": forecast.tokens,
                "forecast_source": forecast.source.value,
            },
            "footprint_tokens": demand.copies * sum(demand.prompts) + demand.sequences * demand.expected_output,
        }

    def _admitted(self, weighed: Weighed | None, capacity: Capacity | None) -> Json | None:
        if weighed is None or not isinstance(weighed.decision, Admit):
            return None
        demand = weighed.decision.demand
        sizes = {"output_cap": demand.output_cap, "expected": demand.expected_output, "sequences": demand.sequences}
        return {**sizes, **_in_blocks(capacity, demand)}

    def _room(self, occupancy: Occupancy, weighed: Weighed | None, demand: Demand) -> Json:
        capacity, now_ratios = occupancy.capacity, occupancy.ratios(self.now)
        if capacity is None or now_ratios is None:
            return {"capacity": None, "headroom": None, "ratios": None}
        reject = self.terms.policy.tiers.reject
        ratios = {"without": rounded(now_ratios), "with": rounded(occupancy.ratios(self.now, demand))}
        if weighed is not None and isinstance(weighed.decision, Admit):
            ratios["admitted"] = rounded(occupancy.ratios(self.now, weighed.decision.demand))
        return {
            "capacity": {"blocks": capacity.blocks, "tokens": capacity.tokens, "bytes": capacity.bytes},
            "headroom": {
                "below_reject_blocks": _whole((reject.enter - reject.ratio(now_ratios)) * capacity.blocks),
                "free_blocks": _whole((1 - now_ratios.projected) * capacity.blocks),
            },
            "ratios": ratios,
        }


_NOT_TAKING = {
    Standing.EJECTED: "it failed several requests in a row (health)",
    Standing.PROBED: "one request is finding out whether it works again (health)",
    Standing.DRAINED: "it is drained by the operator",
    Standing.LEAVING: "discovery does not find it any more",
}


def _whole(blocks: float) -> int:
    """Whole blocks of room; none when there is less than nothing."""
    return max(0, math.floor(blocks + 1e-9))


def _in_blocks(capacity: Capacity | None, demand: Demand) -> Json:
    """The demand in blocks, and in bytes where a block's are known."""
    if capacity is None:
        return {"blocks": None, "bytes": None}
    blocks = _blocks(capacity.rule, demand)
    each = capacity.layout.block_bytes
    return {"blocks": blocks, "bytes": None if each is None else {name: n * each for name, n in blocks.items()}}


def _blocks(rule: BlockRule, demand: Demand) -> dict[str, int]:
    return {
        "prompt": demand.prompt_blocks(rule),
        "prefill_extra": demand.surge(rule).shared(rule),
        "reserved": demand.reserved_blocks(rule),
    }
