"""The waiting room: who waits for blocks to come free, and who is next. Bounded, fair, and without a clock of its own.

The room knows tickets, not requests. Higher priorities go first; within one, tenants share by their weights: each has a
counter of the tokens it was given, and who has the least is next (start-time fair queueing, Goyal et al. 1996; for
tokens of LLMs the virtual token counter, arXiv 2401.00588). A tenant that comes anew starts at the counter that was
served last, so that silence is not saved up. Within a tenant first come, first served.
"""

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

_KEPT_LINES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingPolicy:
    """How many requests may wait, how large they may be together, and how long each; no requests switch it off."""

    max_requests: int = 0
    max_bytes: int = 64 * 1024 * 1024
    max_seconds: float = 2.0


@dataclass(slots=True, eq=False, kw_only=True)
class Ticket:
    """One waiting request: what it costs its tenant (tokens), and what it takes of memory and of the cache.

    A lower `rank` goes first. The room numbers the tickets as they come.
    """

    tenant: str = ""
    weight: float = 1.0
    rank: int = 0
    cost: float = 1.0
    size_bytes: int = 0
    blocks: float = 0.0
    number: int = 0


@dataclass(slots=True)
class _Line:
    """One tenant's tickets of one rank, and how much it was given."""

    given: float
    tickets: deque[Ticket] = field(default_factory=deque)


class WaitingRoom:
    """Tickets in the order in which they are to be tried."""

    def __init__(self, policy: WaitingPolicy) -> None:
        self.policy = policy
        self.size_bytes = 0
        self.blocks = 0.0
        self._lines: dict[tuple[int, str], _Line] = {}
        self._served_at: dict[int, float] = {}
        self._waiting = 0
        self._entered = 0

    def __len__(self) -> int:
        return self._waiting

    def enter(self, ticket: Ticket) -> bool:
        """Let a ticket wait; False when there is no room for it."""
        full = self._waiting >= self.policy.max_requests
        if full or self.size_bytes + ticket.size_bytes > self.policy.max_bytes:
            return False
        if len(self._lines) > 2 * self._waiting + _KEPT_LINES:
            self._forget()
        reached = self._served_at.get(ticket.rank, 0.0)
        line = self._lines.setdefault((ticket.rank, ticket.tenant), _Line(reached))
        if not line.tickets:
            line.given = max(line.given, reached)
        self._entered += 1
        ticket.number = self._entered
        line.tickets.append(ticket)
        self._waiting += 1
        self.size_bytes += ticket.size_bytes
        self.blocks += ticket.blocks
        return True

    def leave(self, ticket: Ticket) -> None:
        """Take a ticket out, whatever became of it."""
        line = self._lines[ticket.rank, ticket.tenant]
        line.tickets.remove(ticket)
        self._waiting -= 1
        self.size_bytes -= ticket.size_bytes
        self.blocks -= ticket.blocks
        if not self._waiting:
            self.blocks = 0.0
            self._lines.clear()
            self._served_at.clear()

    def _forget(self) -> None:
        """Drop tenants that nobody waits for and that were given no more than those who wait."""
        for (rank, tenant), line in list(self._lines.items()):
            if not line.tickets and line.given <= self._served_at.get(rank, 0.0):
                del self._lines[rank, tenant]

    def serve(self, ticket: Ticket) -> None:
        """Take out a ticket that was admitted, and charge its tenant."""
        line = self._lines[ticket.rank, ticket.tenant]
        self._served_at[ticket.rank] = max(self._served_at.get(ticket.rank, 0.0), line.given)
        line.given += ticket.cost / ticket.weight
        self.leave(ticket)

    def in_order(self) -> Iterator[Ticket]:
        """Every ticket, the next to be served first, as if each were served when the one after it is asked for."""
        heap = [
            (rank, line.given, line.tickets[0].number, tenant, 0)
            for (rank, tenant), line in self._lines.items()
            if line.tickets
        ]
        heapq.heapify(heap)
        tickets = {key: tuple(line.tickets) for key, line in self._lines.items()}
        while heap:
            rank, given, _, tenant, index = heapq.heappop(heap)
            line = tickets[rank, tenant]
            yield line[index]
            if index + 1 < len(line):
                given += line[index].cost / line[index].weight
                heapq.heappush(heap, (rank, given, line[index + 1].number, tenant, index + 1))
