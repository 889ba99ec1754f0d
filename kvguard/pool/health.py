"""Whether a backend is given new requests: by how those before ended, and by what the operator and discovery say.

A backend that fails several requests in a row is ejected, for longer each time. Once that time is over one request
finds out: an answer brings the backend back, another failure ejects it again. Only requests that were sent since the
ejection tell; those under way when a server dies would otherwise count as that many failed attempts.
"""

import enum
from dataclasses import dataclass


class Standing(enum.Enum):
    """`EJECTED`: it failed; `PROBED`: one request finds out whether it still does; `DRAINED`: the operator wants no new
    requests there; `LEAVING`: discovery does not find it any more.
    """

    IN = "in"
    EJECTED = "ejected"
    PROBED = "probed"
    DRAINED = "drained"
    LEAVING = "leaving"


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthPolicy:
    """When to eject: after so many failures in a row (None: never), for `eject_seconds`, each time in a row twice as
    long, up to `max_eject_seconds`.
    """

    failures: int | None = 5
    eject_seconds: float = 5.0
    max_eject_seconds: float = 120.0


class Health:
    """One backend's. `drained` and `leaving` are for others to set; they say nothing of how it works. An ejected one is
    `closed_until` then.
    """

    def __init__(self, policy: HealthPolicy | None = None) -> None:
        self.policy = policy or HealthPolicy()
        self.drained = False
        self.leaving = False
        self.ejections = 0
        self._in_a_row = 0
        self._ejected_in_a_row = 0
        self._ejected_at: float | None = None
        self.closed_until = 0.0

    def standing(self, now: float) -> Standing:
        """What it is in for now."""
        if self.leaving:
            return Standing.LEAVING
        if self.drained:
            return Standing.DRAINED
        if self._ejected_at is None:
            return Standing.IN
        return Standing.EJECTED if now < self.closed_until else Standing.PROBED

    @property
    def wanted(self) -> bool:
        """Whether anybody wants it to take requests, however it works."""
        return not (self.drained or self.leaving)

    def takes(self, now: float) -> bool:
        """Whether a new request may go there."""
        return (self._ejected_at is None or now >= self.closed_until) and not (self.drained or self.leaving)

    def sent(self, now: float) -> None:
        """A request goes there. If it is the one that finds out, the next goes only if it tells nothing for a while."""
        if self._ejected_at is not None:
            self.closed_until = max(self.closed_until, now + self.policy.eject_seconds)

    def answered(self, *, sent_at: float) -> bool:
        """It answered a request; True when that brings it back in."""
        if self._ejected_at is not None and sent_at < self._ejected_at:
            return False
        back = self._ejected_at is not None
        self._in_a_row = self._ejected_in_a_row = 0
        self._ejected_at = None
        return back

    def failed(self, *, sent_at: float, now: float) -> bool:
        """It failed a request; True when that ejects it."""
        if self._ejected_at is not None and sent_at < self._ejected_at:
            return False
        self._in_a_row += 1
        limit = self.policy.failures
        if limit is None or (self._ejected_at is None and self._in_a_row < limit):
            return False
        seconds = self.policy.eject_seconds * 2.0 ** min(self._ejected_in_a_row, 32)
        self._ejected_in_a_row += 1
        self.ejections += 1
        self._ejected_at = now
        self.closed_until = now + min(seconds, self.policy.max_eject_seconds)
        return True
