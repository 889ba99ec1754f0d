"""Every backend of one kvguard: who may be asked about a request, in what order, and where its like went before."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kvguard.admission.occupancy import TelemetryState
from kvguard.pool.affinity import NO_TRAIL, Affinity, Trail
from kvguard.pool.backend import Backend


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingPolicy:
    """How to choose among backends that would take a request: one that has probably seen its beginning may be fuller
    than the emptiest by `affinity_margin`, as a ratio.
    """

    affinity_margin: float = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingHints:
    """What says where a request is best served: the prompts it belongs with, the tokens of its longest prompt, and the
    backends it is not to go to any more.
    """

    trail: Trail = NO_TRAIL
    prompt_tokens: int | None = None
    without: frozenset[Backend] = frozenset()


NO_HINTS: Final = RoutingHints()
# So many are all weighed to the block. Of more, the one that promised least and the preferred one are, and the others
# only while neither takes the request: with about the same on each, the emptiest or the next makes no difference.
FEW: Final = 4


class Pool:
    """The backends, known by name; they may come and go."""

    def __init__(self, backends: Iterable[Backend] = (), policy: RoutingPolicy | None = None) -> None:
        self.policy = policy or RoutingPolicy()
        self.backends: tuple[Backend, ...] = ()
        self._affinity = Affinity()
        self._put(tuple(backends))

    def _put(self, backends: tuple[Backend, ...]) -> None:
        self.backends = backends
        self._by_name = {backend.name: backend for backend in backends}
        self._affinity.among(backend.name for backend in backends)

    def add(self, backend: Backend) -> None:
        """One more."""
        self._put((*self.backends, backend))

    def remove(self, backend: Backend) -> None:
        """One less; nothing may be in flight there."""
        self._put(tuple(each for each in self.backends if each is not backend))

    def named(self, name: str) -> Backend | None:
        """The backend of this name, if there is one."""
        return self._by_name.get(name)

    def asked(self, model: str | None, now: float, hints: RoutingHints = NO_HINTS) -> list[Backend]:
        """Who may be asked: of those that serve the model and take such prompts, those that can be reached and are not
        ejected. Where none is, the attempt tells. Where nobody lists the model, it may be one of those that keep their
        list to themselves, or else the engine says that there is none. Empty when there is no backend, or none that is
        to take requests.
        """
        serving = self._serving(model)
        if hints.prompt_tokens is not None:
            serving = [backend for backend in serving if hints.prompt_tokens in backend.prompts] or serving
        if hints.without:
            serving = [backend for backend in serving if backend not in hints.without]
        taking = [backend for backend in serving if _open(backend, now)]
        if taking:
            return taking
        wanted = [backend for backend in serving if backend.health.wanted]
        return [backend for backend in wanted if _reachable(backend, now)] or wanted

    def open(self, now: float) -> Iterator[Backend]:
        """Those that can be reached and take requests, in no order."""
        return (backend for backend in self.backends if _open(backend, now))

    def _serving(self, model: str | None) -> Sequence[Backend]:
        if model is None:
            return self.backends
        listing = [backend for backend in self.backends if model in backend.models]
        if listing:
            return listing
        return [backend for backend in self.backends if not backend.models] or self.backends

    def answering(self, now: float) -> tuple[Backend, ...]:
        """Those that can be reached and are not on their way out; all of them when none can."""
        staying = [backend for backend in self.backends if not backend.health.leaving]
        return tuple(backend for backend in staying if _reachable(backend, now)) or tuple(staying)

    def preferred(self, trail: Trail) -> Backend | None:
        """Who has probably seen the beginning of such a request, or should be the first to."""
        if not self.policy.affinity_margin:
            return None
        name = self._affinity.preferred(trail)
        return None if name is None else self.named(name)

    def sent(self, backend: Backend, trail: Trail, now: float) -> None:
        """A request goes to this backend."""
        backend.health.sent(now)
        if self.policy.affinity_margin:
            self._affinity.sent(trail, backend.name)


def _reachable(backend: Backend, now: float) -> bool:
    return backend.occupancy.reached or backend.occupancy.telemetry(now) is not TelemetryState.UNREACHABLE


def _open(backend: Backend, now: float) -> bool:
    return backend.health.takes(now) and _reachable(backend, now)


def _promised(backend: Backend) -> float:
    """How full it gets if everything runs to its expected end; cheap, and right enough to say where to look first."""
    occupancy = backend.occupancy
    if occupancy.capacity is None:
        return float(backend.ledger.live)
    return (occupancy.foreign_blocks + occupancy.ledger.reserved_blocks) / occupancy.capacity.blocks


def shortlist(asked: Sequence[Backend], preferred: Backend | None) -> list[Backend]:
    """Those of `asked` to look at first: all of a few, of many the one that promised least and the preferred one."""
    if len(asked) <= FEW:
        return list(asked)
    least = min(asked, key=_promised)
    return [least] if preferred is None or preferred is least or preferred not in asked else [least, preferred]
