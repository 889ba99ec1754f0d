"""When a refused client is told to come back: after those that wait, and after those that were told before it."""

import random

from kvguard.admission.decision import Reject
from kvguard.admission.reasons import RejectReason
from kvguard.admission.retry import RetryPolicy, retry_after_seconds
from kvguard.admission.waiting import WaitingRoom
from kvguard.pool.backend import Backend

# What passes as blocks come free.
DRAINING_AWAY = frozenset({RejectReason.SATURATED, RejectReason.TENANT_SHARE, RejectReason.QUEUE_TIMEOUT})

# What everybody waits for; a tenant over its share waits for its own answers alone.
_SHARED = DRAINING_AWAY - {RejectReason.TENANT_SHARE}


class Returning:
    """Gives every refusal its `Retry-After`; `policy` may be exchanged at any time. Those in `room` go first."""

    def __init__(self, policy: RetryPolicy, room: WaitingRoom, rng: random.Random) -> None:
        self.policy = policy
        self._room = room
        self._rng = rng

    def wait_seconds(self, backend: Backend | None, reject: Reject, now: float) -> float | None:
        """Seconds until there is room for it, those that wait already served; None while that is not known."""
        if backend is None or reject.reason not in DRAINING_AWAY:
            return None
        return backend.drain_seconds(reject.needed_blocks + self._room.blocks, now)

    def bounds(self, backend: Backend | None, reject: Reject, now: float) -> tuple[float, float] | None:
        """Least and most seconds of the `Retry-After` such a refusal is given; None: never. Changes nothing."""
        return self._bounds(reject, self._turn(backend, reject, now))

    def retry_after_seconds(self, backend: Backend | None, reject: Reject, blocks: float, now: float) -> float | None:
        """The `Retry-After` of a refused request of so many blocks; who is refused next is told a later time."""
        turn = self._turn(backend, reject, now)
        if turn is not None and backend is not None and reject.reason in _SHARED:
            backend.promise(blocks, at=now + turn, now=now)
        bounds = self._bounds(reject, turn)
        return None if bounds is None else bounds[0] + (bounds[1] - bounds[0]) * self._rng.random()

    def _turn(self, backend: Backend | None, reject: Reject, now: float) -> float | None:
        wait = self.wait_seconds(backend, reject, now)
        if wait is None or backend is None or reject.reason not in _SHARED:
            return wait
        return backend.turn_seconds(wait, latest_seconds=self.policy.max_seconds, now=now)

    def _bounds(self, reject: Reject, turn: float | None) -> tuple[float, float] | None:
        if not reject.reason.retryable:
            return None
        # Where nothing has to drain, whatever is wrong may be over at any time.
        known = reject.reason in DRAINING_AWAY or reject.reason is RejectReason.BACKEND_STALLED
        return retry_after_seconds(turn if known else 0.0, self.policy)
