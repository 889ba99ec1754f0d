"""Whether one address is one server. A load balancer shows another server each time, and one gauge is not the other's.

A server that restarts is another from then on; where one that was seen before shows again, there are several.
"""

from collections import deque
from typing import Final

_REMEMBERED: Final = 64


class Identities:
    """The servers that have answered under one address, by when their processes started."""

    def __init__(self) -> None:
        self._current: float | None = None
        self._before: deque[float] = deque(maxlen=_REMEMBERED)
        self.several = False

    def observe(self, started_at: float | None) -> bool:
        """Take in who answered, None for one that does not say; True when there turn out to be several."""
        if started_at is None or started_at == self._current:
            return False
        if self._current is not None:
            self._before.append(self._current)
        self._current = started_at
        found = started_at in self._before and not self.several
        self.several = self.several or found
        return found
