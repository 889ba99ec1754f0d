"""Why a request is refused: a closed set, used in answers, logs and as a metric label."""

import enum


class RejectReason(enum.Enum):
    """The value is the machine-readable code a client sees in `error.code`."""

    SATURATED = "saturated"
    QUEUE_TIMEOUT = "queue_timeout"
    TOO_LARGE = "too_large"
    STALE_METRICS = "stale_metrics"
    NO_METRICS = "no_metrics"
    BACKEND_UNREACHABLE = "backend_unreachable"
    BACKEND_STALLED = "backend_stalled"
    TENANT_SHARE = "tenant_share"
    DRAINING = "draining"
    BODY_TOO_LARGE = "body_too_large"
    INVALID_REQUEST = "invalid_request"

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later, so that `Retry-After` makes sense."""
        return self not in _FINAL


_FINAL = frozenset({RejectReason.TOO_LARGE, RejectReason.BODY_TOO_LARGE, RejectReason.INVALID_REQUEST})
