"""Tokens that refused requests asked for."""

import pytest

from kvguard.admission.reasons import RejectReason
from kvguard.admission.tiers import Tier
from kvguard.telemetry.demand import UsualRequest
from kvguard.telemetry.events import DecisionEvent, Outcome


def refused(reason: RejectReason, tokens: int) -> DecisionEvent:
    return DecisionEvent(
        request_id="",
        route="r",
        outcome=Outcome.REJECTED,
        tier=Tier.REJECT,
        reason=reason,
        prompt_tokens=tokens // 2,
        requested_tokens=tokens - tokens // 2,
    )


@pytest.mark.parametrize("reason", RejectReason)
def test_what_no_fleet_can_serve_is_no_demand(reason: RejectReason) -> None:
    """Prompts larger than an empty cache and faulty requests would only drive an autoscaler; all others count."""
    final = {RejectReason.TOO_LARGE, RejectReason.BODY_TOO_LARGE, RejectReason.INVALID_REQUEST}
    assert UsualRequest().rejected_tokens(refused(reason, 100)) == (0 if reason in final else 100)


def test_what_is_usual_follows_the_traffic() -> None:
    """A thousand small requests are forgotten over as many large ones, and one that was not read changes nothing."""
    usual, unread = UsualRequest(), refused(RejectReason.SATURATED, 0)
    for tokens in (10, 1000):
        for _ in range(1000):
            usual.learn(refused(RejectReason.SATURATED, tokens))
            usual.learn(unread)
        assert usual.rejected_tokens(unread) == pytest.approx(tokens, rel=0.001)
