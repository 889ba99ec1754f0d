"""What the ledger counts more than once: blocks that sequences share in the engine's prefix cache, as the gauge shows.

A sequence that generates holds all its blocks, shared or not, so the gauge is at least what the generating ones hold
together. Where it is less than the ledger's sum, the difference is shared. Only what several scrapes in a row have
shown is believed, and nothing while the engine preempts: a preempted sequence looks like one that shares everything.
"""

from collections import deque
from typing import Final

_SCRAPES: Final = 3


class SharedBlocks:
    """The blocks of one backend that the ledger counts too often; nothing until enough scrapes agree."""

    def __init__(self) -> None:
        self._seen: deque[float] = deque(maxlen=_SCRAPES)
        self._generating = 0
        self._freed_before = 0
        self.error_ratio: float | None = None

    def observe(self, *, generating: int, observed: float, freed: int, preempted: bool) -> None:
        """Take in a scrape: blocks by the ledger of the sequences it must have seen generating, and by the gauge.

        `freed` is how many blocks the ledger has seen freed so far, ever; `preempted` says that since the last scrape
        the engine took blocks away.
        """
        if preempted:
            self._seen.clear()
        self._seen.append(0.0 if preempted else max(0.0, generating - observed))
        self._generating, self._freed_before = generating, freed
        self.error_ratio = (generating - observed) / observed if observed and generating else None

    def blocks(self, freed: int) -> float:
        """Blocks counted too often now that `freed` blocks have been freed, ever: who has ended no longer shares."""
        if len(self._seen) < _SCRAPES or not self._generating:
            return 0.0
        left = 1.0 - (freed - self._freed_before) / self._generating
        return min(self._seen) * max(0.0, left)
