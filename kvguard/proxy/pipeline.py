"""The request path, in order: refuse early, read, parse, count, admit, rewrite, forward, relay, settle.

Everything awaited is here; every decision is made by the controller in one plain call. Whatever happens, the
reservation ends in the outermost `finally`.
"""

import asyncio
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from kvguard.admission.footprint import Demand
from kvguard.admission.reasons import RejectReason
from kvguard.clock import Clock
from kvguard.errors import InvalidRequest, UpstreamError, UpstreamPoolExhausted, UpstreamUnreachable
from kvguard.pool.backend import Backend
from kvguard.protocols.request import InferenceRequest
from kvguard.protocols.rewrite import Rewritten
from kvguard.protocols.route import Route
from kvguard.proxy.candidate import Candidate, CandidatePolicy, counted, marked, named
from kvguard.proxy.controller import MESSAGES, Admission, Controller, Refusal
from kvguard.proxy.exchange import BodyTooLarge, Exchange, Patience, WholeAnswer
from kvguard.proxy.governance import Terms
from kvguard.proxy.headers import to_upstream
from kvguard.proxy.identity import Caller
from kvguard.proxy.placement import Call
from kvguard.proxy.reading import BodyReader
from kvguard.proxy.refusal import body_too_large, invalid_request, render
from kvguard.proxy.relay import AnswerCut, Manner, Relay, Relayed
from kvguard.proxy.upstream import Headers, Upstream, UpstreamRequest
from kvguard.proxy.waiting_line import Question, WaitingLine, ticket_of
from kvguard.proxy.work import Work, shows_health
from kvguard.telemetry.events import DecisionEvent, End, Mode, Outcome
from kvguard.telemetry.reporter import Reporter
from kvguard.tokenization.counter import PromptCounter

OK = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePolicy:
    """What the path itself needs to know of the settings. With `ask_usage` the engine is asked for the usage of streams
    whose clients did not; they do not see it. `heartbeat_seconds` of silence bring a comment into a stream (0: never).
    Where the engine's streams hide failures, a status waits up to `first_event_seconds` for the first event (0: never).
    """

    ask_usage: bool = True
    heartbeat_seconds: float = 0.0
    first_event_seconds: float = 30.0
    max_body_bytes: int = 16 * 1024 * 1024
    retry_after_seconds: float = 1.0
    statuses: Mapping[RejectReason, int] = dataclasses.field(default_factory=dict)
    patience: Patience = dataclasses.field(default_factory=Patience)
    candidates: CandidatePolicy = dataclasses.field(default_factory=CandidatePolicy)


class Pipeline:
    """Serves generating routes. `policy` may be exchanged at any time; in `line` wait those that would be refused."""

    def __init__(
        self,
        controller: Controller,
        counter: PromptCounter,
        upstream: Upstream,
        reporter: Reporter,
        clock: Clock,
        policy: PipelinePolicy,
    ) -> None:
        self._controller = controller
        self.line = WaitingLine(controller.room, clock, give_back=self._give_back, report=reporter.waited)
        self._reader = BodyReader()
        self._counter = counter
        self._upstream = upstream
        self._reporter = reporter
        self._clock = clock
        self.policy = policy

    async def serve(self, exchange: Exchange, route: Route) -> None:
        """Serve one request to its end. Raises ClientGone when the client left."""
        caller, possible = self._asked(exchange, route)
        refusal = self._controller.refuse_early(self._clock.now(), possible, unless=self.line.worth_waiting)
        if refusal is not None:
            await self.refuse(exchange, route, refusal, caller)
            return
        try:
            body = await exchange.read_body(self.policy.max_body_bytes)
        except BodyTooLarge:
            refusal = body_too_large(self.policy.max_body_bytes, self._controller.tier)
            await self.refuse(exchange, route, refusal, caller)
            return
        except InvalidRequest as error:
            await self.refuse(exchange, route, invalid_request(error, self._controller.tier), caller)
            return
        # The answer may end only outside the scope: once it has ended, the server reports the client as gone.
        async with exchange.watch():
            answer = await self._read_and_forward(exchange, route, body, caller)
        if answer is None:
            await exchange.finish()
        else:
            await exchange.respond(answer)

    def _asked(self, exchange: Exchange, route: Route) -> tuple[Caller, tuple[Terms, ...]]:
        """Who asks, and on which terms that may be before the body tells the model."""
        governance = self._controller.governance
        caller = governance.identity.caller(exchange.headers, trusted=governance.identity.trusts(exchange.peer))
        return caller, governance.possible(route.path, caller)

    async def refuse(self, exchange: Exchange, route: Route, refusal: Refusal, caller: Caller) -> None:
        """Answer with a refusal and report it."""
        await exchange.respond(self._refused(exchange, route, refusal, caller))

    def _refused(
        self, exchange: Exchange, route: Route, refusal: Refusal, caller: Caller, demand: Demand | None = None
    ) -> WholeAnswer:
        self._reporter.decision(
            DecisionEvent(
                request_id=exchange.request_id,
                trace_id=exchange.trace_id,
                route=route.path,
                outcome=Outcome.REJECTED,
                tier=refusal.tier,
                reason=refusal.reason,
                backend=refusal.backend,
                ratios=refusal.ratios,
                blocks=refusal.predicted_blocks,
                retry_after_seconds=refusal.retry_after_seconds,
                record=refusal.record,
                prompt_tokens=demand.prompt_tokens if demand else 0,
                requested_tokens=demand.sequences * demand.expected_output if demand else 0,
                tenant=caller.tenant,
                priority=caller.priority,
            )
        )
        return render(refusal, self.policy.statuses, route.errors)

    async def _read_and_forward(
        self, exchange: Exchange, route: Route, body: bytes, caller: Caller
    ) -> WholeAnswer | None:
        """What is left to answer, None when the answer only lacks its end."""
        try:
            request = named(await self._reader.read(route, body), route, exchange.headers)
        except InvalidRequest as error:
            return self._refused(exchange, route, invalid_request(error, self._controller.tier), caller)
        return await self._admit_and_forward(exchange, route, request, caller, len(body))

    async def _admit_and_forward(
        self, exchange: Exchange, route: Route, request: InferenceRequest, caller: Caller, size_bytes: int
    ) -> WholeAnswer | None:
        """As above, of a request that was read."""
        self._reporter.read(request.model or "", stream=request.stream_format is not None)
        terms = self._controller.governance.terms(route.path, request.model, caller)
        candidate = await self._counted(
            marked(request, route, exchange.headers, terms.policy.degrade), terms.priority.name, exchange.headers
        )
        question = self._question(candidate, route, caller, size_bytes)
        outcome = await self.line.admit(question)
        if isinstance(outcome, Refusal):
            return self._refused(exchange, route, outcome, caller, candidate.demand_on(self._likely(candidate)))
        work = self._work(exchange, candidate, route, outcome, caller)
        try:
            return await self._forward(work, last=False)
        except UpstreamUnreachable as error:
            # The connection carried nothing, so another backend may be asked without anything being asked twice.
            without = frozenset({outcome.backend})
            again = self._controller.admit(self._call(candidate, route, caller, without), self._clock.now())
            if isinstance(again, Refusal):
                now = self._clock.now()
                self._reporter.end(work.end_event(End.UPSTREAM_ERROR, None, began=now, now=now, detail=str(error)))
                return self._failed(work, error)
            self._reporter.rerouted(outcome.backend.name)
        return await self._forward(self._work(exchange, candidate, route, again, caller, moved=True), last=True)

    def _work(
        self,
        exchange: Exchange,
        candidate: Candidate,
        route: Route,
        admission: Admission,
        caller: Caller,
        *,
        moved: bool = False,
    ) -> Work:
        asked = candidate.demand_on(admission.backend)
        return Work(exchange, candidate, route, asked, admission, caller, moved=moved)

    def _likely(self, candidate: Candidate) -> Backend | None:
        """A backend that might serve it, for what has to be said of a request that none was chosen for."""
        return self._controller.reachable(candidate.request.model, self._clock.now())

    def _call(
        self, candidate: Candidate, route: Route, caller: Caller, without: frozenset[Backend] = frozenset()
    ) -> Call:
        """The request as it is decided on, on the terms of the moment."""
        controller, model = self._controller, candidate.request.model
        terms = controller.governance.terms(route.path, model, caller)
        hints = dataclasses.replace(candidate.hints, without=without) if without else candidate.hints
        return controller.call(candidate.demand_on, model=model, terms=terms, hints=hints)

    def _question(self, candidate: Candidate, route: Route, caller: Caller, size_bytes: int) -> Question:
        """The request as those who wait in line are asked about it."""
        controller = self._controller

        def admit(now: float) -> Admission | Refusal:
            began = self._clock.now()
            outcome = controller.admit(self._call(candidate, route, caller), now)
            self._reporter.decided(self._clock.now() - began)
            return outcome

        def would_refuse(now: float) -> Refusal | None:
            return controller.would_refuse(self._call(candidate, route, caller), now)

        def refuse(now: float, reason: RejectReason) -> Refusal:
            return controller.turn_away(self._call(candidate, route, caller), now, reason)

        terms, backend = self._call(candidate, route, caller).terms, self._likely(candidate)
        return Question(
            admit=admit,
            would_refuse=would_refuse,
            refuse=refuse,
            ticket=ticket_of(candidate.demand_on(backend), backend, terms, size_bytes),
            kind=(candidate.request.model, caller.priority),
            waits=not (terms.policy.exempt or terms.priority.shadow),
        )

    def _give_back(self, admission: Admission) -> None:
        self._controller.release(admission, now=self._clock.now())

    async def _recount(self, work: Work) -> None:
        """Count a prompt that was too large to wait for, and correct the ledger."""
        count = await self._counter.count_again(work.request)
        if count is not None:
            counted = dataclasses.replace(work.candidate, count=count).demand_on(work.admission.backend)
            self._controller.recount(work.admission, counted)

    async def _counted(self, request: InferenceRequest, priority: str, headers: Headers) -> Candidate:
        began = self._clock.now()
        candidate = await counted(request, self._counter, self.policy.candidates, priority, headers)
        self._reporter.counted(candidate.count.source.value, self._clock.now() - began)
        return candidate

    async def _forward(self, work: Work, *, last: bool) -> WholeAnswer | None:
        """Forward and relay, and end the reservation. Raises UpstreamUnreachable unless this is the last attempt."""
        recount = asyncio.ensure_future(self._recount(work)) if work.candidate.count.estimated else None
        try:
            return await self._attempt(work, last=last)
        finally:
            if recount is not None:
                recount.cancel()
            self._controller.release(work.admission, now=self._clock.now())

    async def _attempt(self, work: Work, *, last: bool) -> WholeAnswer | None:
        ask_usage = self.policy.ask_usage and work.mode is Mode.ENFORCE  # in shadow mode nothing is changed
        rewritten = work.rewritten(ask_usage=ask_usage)
        self._reporter.decision(work.decision_event(rewritten))
        began, end, relayed = self._clock.now(), End.CANCELLED, None
        failure: UpstreamError | AnswerCut | None = None
        try:
            relayed = await self._exchange_upstream(work, rewritten)
            end = End.UPSTREAM_ERROR if relayed.broken else End.COMPLETE
            if end is End.COMPLETE:
                self._take_in(work, relayed)
            return None
        except (UpstreamError, AnswerCut) as error:
            end, failure = End.UPSTREAM_ERROR, error
            if isinstance(error, AnswerCut) or (isinstance(error, UpstreamUnreachable) and not last):
                raise
            return self._failed(work, error)
        finally:
            now = self._clock.now()
            if work.exchange.cut_off and end is not End.COMPLETE:
                end = End.CUT
            if isinstance(failure, UpstreamUnreachable):
                work.admission.backend.occupancy.miss(reached=False)
            self._judge(work, shows_health(end, relayed, failure), began, now)
            if last or not isinstance(failure, UpstreamUnreachable):
                detail = work.detail(relayed, failure)
                self._reporter.end(work.end_event(end, relayed, began=began, now=now, detail=detail))

    def _take_in(self, work: Work, relayed: Relayed) -> None:
        """Learn from a whole answer, and end its reservation by what the engine says of it."""
        if relayed.status == OK:
            self._learn(work, relayed)
        if relayed.usage is not None and not work.request.runs_tools:
            tokens = relayed.usage.completion_tokens
            self._controller.settle(work.admission, completion_tokens=tokens, now=self._clock.now())

    def _judge(self, work: Work, healthy: bool | None, began: float, now: float) -> None:
        """Let the backend's health follow, None for what says nothing about it."""
        if healthy is not None:
            self._reporter.standing(work.admission.backend.judge(healthy=healthy, sent_at=began, now=now))

    def _learn(self, work: Work, relayed: Relayed) -> None:
        """Teach tokens per byte, by an answered request only: names of models nobody serves are not remembered."""
        count = work.candidate.count
        if work.request.runs_tools:
            return
        told = relayed.usage.prompt_tokens if relayed.usage else None
        if told is not None:
            self._counter.learn(work.request, told)
        elif not count.estimated:
            self._counter.learn(work.request, count.total)

    async def _exchange_upstream(self, work: Work, rewritten: Rewritten) -> Relayed:
        exchange, admission = work.exchange, work.admission
        identity = self._controller.governance.identity
        withheld = identity.withheld(trusted=identity.trusts(exchange.peer))
        query = b"?" + exchange.query if exchange.query else b""
        answer = await self._upstream.send(
            UpstreamRequest(
                method="POST",
                base_url=admission.backend.url,
                target=work.route.path + query.decode("latin-1"),
                headers=to_upstream(exchange.headers, exchange.request_id, withheld),
                body=rewritten.body,
            )
        )
        try:
            relay = Relay(exchange, answer, self._clock, work.note_events, self._manner(work, rewritten))
            wait = self.policy.retry_after_seconds
            return work.told_whole(await relay.run(work.answer_headers(rewritten), retry_after_seconds=wait))
        finally:
            answer.abort()

    def _manner(self, work: Work, rewritten: Rewritten) -> Manner:
        return Manner(
            stream=work.request.stream_format or work.route.stream,
            errors=work.route.errors,
            usage=work.route.usage,
            strips_usage=rewritten.asks_usage,
            heartbeat_seconds=self.policy.heartbeat_seconds,
            first_event_seconds=self.policy.first_event_seconds,
        )

    def _failed(self, work: Work, error: UpstreamError) -> WholeAnswer:
        """Answer for a backend that gave none."""
        exhausted = isinstance(error, UpstreamPoolExhausted)
        reason = RejectReason.QUEUE_TIMEOUT if exhausted else RejectReason.BACKEND_UNREACHABLE
        never_sent = isinstance(error, UpstreamPoolExhausted | UpstreamUnreachable)
        refusal = Refusal(
            reason=reason,
            tier=work.admission.decision.tier,
            message=MESSAGES[reason] if never_sent else "The model server broke off before it answered.",
            backend=work.admission.backend.name,
            retry_after_seconds=self.policy.retry_after_seconds,
        )
        self._reporter.decision(
            DecisionEvent(
                mode=work.mode,
                tenant=work.caller.tenant,
                priority=work.caller.priority,
                request_id=work.exchange.request_id,
                trace_id=work.exchange.trace_id,
                route=work.route.path,
                outcome=Outcome.FAILED,
                tier=refusal.tier,
                reason=reason,
                backend=refusal.backend,
            )
        )
        return render(refusal, self.policy.statuses, work.route.errors)
