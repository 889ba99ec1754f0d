"""Reasons of refusals as clients see them."""

from kvguard.admission.reasons import RejectReason


def test_reasons_are_a_closed_set() -> None:
    """The codes are public: clients branch on them and dashboards count them."""
    assert {reason.value for reason in RejectReason} == {
        "saturated",
        "queue_timeout",
        "too_large",
        "stale_metrics",
        "no_metrics",
        "backend_unreachable",
        "backend_stalled",
        "tenant_share",
        "draining",
        "body_too_large",
        "invalid_request",
    }


def test_only_what_can_never_succeed_is_final() -> None:
    """The same request may be sent again for every reason but three, which depend on the request alone."""
    final = {RejectReason.TOO_LARGE, RejectReason.BODY_TOO_LARGE, RejectReason.INVALID_REQUEST}
    assert {reason for reason in RejectReason if not reason.retryable} == final
