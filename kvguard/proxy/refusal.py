"""The one place where refusals become status, headers and the protocol's own error body."""

import math
from collections.abc import Mapping

from kvguard.admission.reasons import RejectReason
from kvguard.admission.tiers import Tier
from kvguard.errors import InvalidRequest
from kvguard.protocols.error_format import ErrorFormat
from kvguard.proxy.controller import Refusal
from kvguard.proxy.exchange import WholeAnswer
from kvguard.proxy.headers import REASON, TIER
from kvguard.proxy.upstream import Headers

STATUS = {
    RejectReason.SATURATED: 503,
    RejectReason.QUEUE_TIMEOUT: 503,
    RejectReason.TOO_LARGE: 400,
    RejectReason.STALE_METRICS: 503,
    RejectReason.NO_METRICS: 503,
    RejectReason.BACKEND_UNREACHABLE: 502,
    RejectReason.BACKEND_STALLED: 503,
    RejectReason.TENANT_SHARE: 429,
    RejectReason.DRAINING: 503,
    RejectReason.BODY_TOO_LARGE: 413,
    RejectReason.INVALID_REQUEST: 400,
}


def error_kind(reason: RejectReason) -> str:
    """The class of error a client may branch on: its own fault, or the server's state."""
    return "overloaded_error" if reason.retryable else "invalid_request_error"


def invalid_request(error: InvalidRequest, tier: Tier) -> Refusal:
    """The refusal of a body that cannot be read."""
    reason, message = RejectReason.INVALID_REQUEST, f"Invalid request: {error.message}."
    return Refusal(reason=reason, tier=tier, message=message, param=error.param)


def body_too_large(limit: int, tier: Tier) -> Refusal:
    """The refusal of a body that is not read to its end."""
    message = f"The request body is larger than {limit} bytes."
    return Refusal(reason=RejectReason.BODY_TOO_LARGE, tier=tier, message=message)


def render(refusal: Refusal, statuses: Mapping[RejectReason, int], errors: ErrorFormat) -> WholeAnswer:
    """The whole answer in the route's own error format. `statuses` holds the operator's overrides."""
    reason = refusal.reason
    headers: Headers = [
        (b"content-type", b"application/json"),
        (TIER, str(int(refusal.tier)).encode()),
        (REASON, reason.value.encode()),
    ]
    headers += retry_headers(refusal.retry_after_seconds)
    body = errors.body(refusal.message, code=reason.value, kind=error_kind(reason), param=refusal.param)
    return WholeAnswer(statuses.get(reason, STATUS[reason]), headers, body)


def retry_headers(seconds: float | None) -> Headers:
    """When to come back, in the forms clients read; without a time, that coming back is pointless."""
    if seconds is None:
        return [(b"x-should-retry", b"false")]
    return [
        (b"retry-after", str(max(1, math.ceil(seconds))).encode()),
        (b"retry-after-ms", str(max(1, round(seconds * 1000))).encode()),
    ]
