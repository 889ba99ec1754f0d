"""Every backend of one kvguard: who may be asked about a request, in what order, and where its like went before."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from kvguard.admission.occupancy import TelemetryState
from kvguard.pool.affinity import NO_TRAIL, Affinity, Trail
from kvguard.pool.backend import Backend


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingPolicy:
    """How to choose among backends that would take a request.

    One that has probably seen its beginning may be fuller than the emptiest by `affinity_margin`, as a ratio. Where
    there are many, only the `most_weighed` that have promised least are looked at closely, as long as one takes it.
    """

    affinity_margin: float = 0.1
    most_weighed: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingHints:
    """What says where a request is best served: the prompts it belongs with, the tokens of its longest prompt, and the
    backends it is not to go to any more.
    """

    trail: Trail = NO_TRAIL
    prompt_tokens: int | None = None
    without: frozenset[Backend] = frozenset()


NO_HINTS: Final = RoutingHints()


class Pool:
    """The backends, known by name; they may come and go."""

    def __init__(self, backends: Iterable[Backend] = (), policy: RoutingPolicy | None = None) -> None:
        self.policy = policy or RoutingPolicy()
        self.backends: tuple[Backend, ...] = ()
        self._affinity = Affinity()
        self._put(tuple(backends))

    def _put(self, backends: tuple[Backend, ...]) -> None:
        self.backends = backends
        self._affinity.among(backend.name for backend in backends)

    def add(self, backend: Backend) -> None:
        """One more."""
        self._put((*self.backends, backend))

    def remove(self, backend: Backend) -> None:
        """One less; nothing may be in flight there."""
        self._put(tuple(each for each in self.backends if each is not backend))

    def named(self, name: str) -> Backend | None:
        """The backend of this name."""
        return next((backend for backend in self.backends if backend.name == name), None)

    def asked(self, model: str | None, now: float, hints: RoutingHints = NO_HINTS) -> tuple[Backend, ...]:
        """Who may be asked, the one that promised least first: of those that serve the model and take such prompts,
        those that can be reached and are not ejected. Where none is, the attempt tells. Where nobody lists the model,
        it may be one of those that keep their list to themselves, or else the engine says that there is none. Empty
        when there is no backend, or none that is to take requests.
        """
        serving = [b for b in self.backends if model in b.models] or [
            b for b in self.backends if model and not b.models
        ]
        serving = serving or list(self.backends)
        if hints.prompt_tokens is not None:
            serving = [backend for backend in serving if hints.prompt_tokens in backend.prompts] or serving
        wanted = [backend for backend in serving if backend.health.wanted and backend not in hints.without]
        reachable = [b for b in wanted if b.occupancy.telemetry(now) is not TelemetryState.UNREACHABLE]
        asked = [backend for backend in reachable if backend.health.takes(now)] or reachable or wanted
        return tuple(asked) if len(asked) < 2 else tuple(sorted(asked, key=_promised))

    def answering(self, now: float) -> tuple[Backend, ...]:
        """Those that can be reached and are not on their way out; all of them when none can."""
        staying = [backend for backend in self.backends if not backend.health.leaving]
        reached = (b for b in staying if b.occupancy.telemetry(now) is not TelemetryState.UNREACHABLE)
        return tuple(reached) or tuple(staying)

    def preferred(self, trail: Trail) -> tuple[Backend, ...]:
        """Who has probably seen the beginning of such a request, best first."""
        if trail == NO_TRAIL or not self.policy.affinity_margin:
            return ()
        found = (self.named(name) for name in self._affinity.preferred(trail))
        return tuple(backend for backend in found if backend is not None)

    def sent(self, backend: Backend, trail: Trail, now: float) -> None:
        """A request goes to this backend."""
        backend.health.sent(now)
        if self.policy.affinity_margin:
            self._affinity.sent(trail, backend.name)


def _promised(backend: Backend) -> float:
    """How full it gets if everything runs to its expected end; cheap, and right enough to say where to look first."""
    occupancy = backend.occupancy
    if occupancy.capacity is None:
        return float(backend.ledger.live)
    return (occupancy.foreign_blocks + occupancy.ledger.reserved_blocks) / occupancy.capacity.blocks


def shortlist(asked: Sequence[Backend], preferred: Sequence[Backend], most: int) -> tuple[Backend, ...]:
    """Those of `asked` to look at first: the ones that promised least, and the preferred ones."""
    first = asked[:most]
    return (*first, *(backend for backend in preferred if backend in asked and backend not in first))
