"""What the request path reports. No prompt, key or header value is ever part of an event."""

import enum
from dataclasses import dataclass

from kvguard.admission.occupancy import Ratios
from kvguard.admission.reasons import RejectReason
from kvguard.admission.recorded import DecisionRecord
from kvguard.admission.tiers import Tier


class Mode(enum.Enum):
    """Whether a decision is carried out, or only reported."""

    ENFORCE = "enforce"
    SHADOW = "shadow"


class Outcome(enum.Enum):
    """What became of a request. `FAILED` comes on top of the admission that went wrong."""

    ADMITTED = "admitted"
    DEGRADED = "degraded"
    REJECTED = "rejected"
    FAILED = "failed"


class WaitEnd(enum.Enum):
    """How a wait for blocks ended."""

    ADMITTED = "admitted"
    REFUSED = "refused"
    TIMED_OUT = "timed_out"
    LEFT = "left"


class Phase(enum.Enum):
    """What a kvguard process is doing: looking for a backend, serving, serving while others take over from it, or
    waiting for its last answers.
    """

    STARTING = "starting"
    SERVING = "serving"
    STOPPING = "stopping"
    DRAINING = "draining"


class End(enum.Enum):
    """How an admitted exchange ended; `CUT` by kvguard itself, because it shut down."""

    COMPLETE = "complete"
    CANCELLED = "cancelled"
    UPSTREAM_ERROR = "upstream_error"
    CUT = "cut"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionEvent:
    """One decision, in shadow mode the one that would have been made. Tokens are summed over sequences;
    `requested_tokens` is the output asked for. `record` is there when the decision is to be logged so that it can be
    made again. A request that was `moved` to another backend was counted before.
    """

    request_id: str
    route: str
    outcome: Outcome
    tier: Tier
    reason: RejectReason | None = None
    backend: str = ""
    prompt_tokens: int = 0
    requested_tokens: int = 0
    trimmed_tokens: int = 0
    blocks: int = 0
    changes: tuple[str, ...] = ()
    ratios: Ratios | None = None
    retry_after_seconds: float | None = None
    mode: Mode = Mode.ENFORCE
    tenant: str = ""
    priority: str = ""
    record: DecisionRecord | None = None
    moved: bool = False
    trace_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndEvent:
    """How an admitted request ended, and what the engine said it used."""

    request_id: str
    route: str
    backend: str
    end: End
    seconds: float
    status: int | None = None
    first_byte_seconds: float | None = None
    generated_tokens: int | None = None
    predicted_prompt_tokens: int = 0
    count_source: str = ""
    prompt_tokens: int | None = None
    detail: str = ""
    trace_id: str = ""
