"""An admitted request on its way: how it goes out, what the ledger hears of its answer, and what is reported of it."""

from dataclasses import dataclass

from kvguard.admission.decision import Admit, Decision, Reject
from kvguard.admission.footprint import Demand
from kvguard.admission.policy import Degradation
from kvguard.admission.tiers import Tier
from kvguard.errors import UpstreamError, UpstreamPoolExhausted
from kvguard.protocols.request import InferenceRequest
from kvguard.protocols.rewrite import Rewritten, rewrite
from kvguard.protocols.route import Route
from kvguard.proxy.candidate import Candidate
from kvguard.proxy.controller import Admission
from kvguard.proxy.exchange import Exchange
from kvguard.proxy.headers import DEGRADED, TIER
from kvguard.proxy.identity import Caller
from kvguard.proxy.relay import AnswerCut, Relayed
from kvguard.proxy.upstream import Headers
from kvguard.telemetry.events import DecisionEvent, End, EndEvent, Mode, Outcome


@dataclass(frozen=True, slots=True)
class Work:
    """An admitted request on its way; `asked` is what it asked for before it was degraded. One that was `moved` was
    on its way to another backend before.
    """

    exchange: Exchange
    candidate: Candidate
    route: Route
    asked: Demand
    admission: Admission
    caller: Caller
    moved: bool = False

    @property
    def request(self) -> InferenceRequest:
        return self.candidate.request

    def rewritten(self, *, ask_usage: bool) -> Rewritten:
        """The request as it goes out."""
        return self._under(self.admission.decision.degradation, ask_usage=ask_usage)

    def _under(self, degradation: Degradation, *, ask_usage: bool = False) -> Rewritten:
        return rewrite(self.request, degradation, release=self.admission.backend.release, ask_usage=ask_usage)

    def note_events(self, events: int) -> None:
        """Tell the ledger how long the answer is by now: an event is about one token of one sequence."""
        demand = self.admission.decision.demand
        produced = events // max(demand.sequences, 1)
        if demand.output_cap is not None:
            produced = min(produced, demand.output_cap)
        self.admission.backend.ledger.progress(self.admission.reservation, produced)

    def told_whole(self, relayed: Relayed) -> Relayed:
        """The relayed answer without a usage that leaves sequences out."""
        told = relayed.usage.sequences if relayed.usage else None
        if told is not None and told != self.admission.decision.demand.sequences:
            relayed.usage = None
        return relayed

    def answer_headers(self, rewritten: Rewritten) -> Headers:
        """What the client is told of the decision."""
        headers: Headers = [(TIER, str(int(self.admission.decision.tier)).encode())]
        if rewritten.changes:
            headers.append((DEGRADED, ";".join(rewritten.changes).encode("latin-1", "replace")))
        return headers

    def detail(self, relayed: Relayed | None, failure: UpstreamError | AnswerCut | None) -> str:
        """What went wrong, in a few words."""
        if relayed is not None:
            return relayed.broken
        cause = failure.__cause__ if isinstance(failure, AnswerCut) else failure
        return "" if cause is None else str(cause)

    @property
    def mode(self) -> Mode:
        """Whether the decision was carried out."""
        return Mode.ENFORCE if self.admission.verdict is None else Mode.SHADOW

    def decision_event(self, rewritten: Rewritten) -> DecisionEvent:
        """The decision as reported; in shadow mode the one that was not carried out."""
        verdict = self.admission.verdict or self.admission.decision
        if self.mode is Mode.SHADOW and isinstance(verdict, Admit):
            rewritten = self._under(verdict.degradation)
        asked, given = self.asked, verdict.demand if isinstance(verdict, Admit) else self.asked
        requested = asked.sequences * asked.expected_output
        return DecisionEvent(
            request_id=self.exchange.request_id,
            trace_id=self.exchange.trace_id,
            route=self.route.path,
            outcome=_outcome(verdict, rewritten),
            tier=Tier(verdict.tier),
            reason=verdict.reason if isinstance(verdict, Reject) else None,
            backend=self.admission.backend.name,
            prompt_tokens=asked.prompt_tokens,
            requested_tokens=requested,
            trimmed_tokens=requested - given.sequences * given.expected_output,
            blocks=given.reserved_blocks(self.admission.backend.ledger.rule),
            changes=rewritten.changes,
            ratios=verdict.ratios,
            record=self.admission.record,
            mode=self.mode,
            tenant=self.caller.tenant,
            priority=self.caller.priority,
            moved=self.moved,
        )

    def end_event(self, end: End, relayed: Relayed | None, *, began: float, now: float, detail: str) -> EndEvent:
        """The end as reported."""
        usage = relayed.usage if relayed else None
        first = relayed.first_byte_at if relayed else None
        return EndEvent(
            request_id=self.exchange.request_id,
            trace_id=self.exchange.trace_id,
            route=self.route.path,
            backend=self.admission.backend.name,
            end=end,
            seconds=now - began,
            status=relayed.status if relayed else None,
            first_byte_seconds=None if first is None else first - self.exchange.received_at,
            generated_tokens=usage.completion_tokens if usage else None,
            predicted_prompt_tokens=self.asked.prompt_tokens,
            count_source=self.candidate.count.source.value,
            prompt_tokens=usage.prompt_tokens if usage and self.request.names_whole_prompt else None,
            detail=detail,
        )


def shows_health(end: End, relayed: Relayed | None, failure: Exception | None) -> bool | None:
    """Whether an exchange shows a backend that works; None where it tells neither: a client that left, a kvguard that
    ended, a server that is full, or no connection left for it that kvguard may open.
    """
    if end in (End.CANCELLED, End.CUT) or isinstance(failure, UpstreamPoolExhausted):
        return None
    if end is End.UPSTREAM_ERROR or relayed is None or relayed.status in _FAILURES:
        return False
    return None if relayed.status in _FULL else True


# 424 is TGI's for a generation that failed.
_FAILURES = frozenset({424, 500, 502, 504})
_FULL = frozenset({429, 503})


def _outcome(verdict: Decision, rewritten: Rewritten) -> Outcome:
    if isinstance(verdict, Reject):
        return Outcome.REJECTED
    return Outcome.DEGRADED if rewritten.changes else Outcome.ADMITTED
