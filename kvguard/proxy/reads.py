"""Where reads go: requests that take no KV and pass at any tier.

One that names a model goes to a backend that serves it, any other to any backend that answers. Where backends differ
in what they list, no single one could tell, so kvguard answers for all.
"""

from dataclasses import dataclass

from kvguard.pool.backend import Backend
from kvguard.protocols.model_name import model_named
from kvguard.protocols.routes import MODELS
from kvguard.proxy.controller import Controller
from kvguard.proxy.model_list import merged

Json = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A read; one that is sent with a body may name a model in it."""

    method: str
    path: str
    body: bytes

    @property
    def model(self) -> str | None:
        """The model it is about, where it says so."""
        return model_named(self.body) if self.method == "POST" else None


def own_answer(read: Read, controller: Controller, now: float) -> bytes | None:
    """What kvguard answers itself; None for a read that is a backend's to answer."""
    return merged(controller.pool.answering(now)) if read.path == MODELS else None


def explain_read(read: Read, controller: Controller, now: float) -> Json:
    """Where it would go, in the form of any explanation."""
    model = read.model
    said: Json = {"route": read.path, "model": model, "decision": "read", "reason": None, "status": None}
    if own_answer(read, controller, now) is not None:
        backend, why = None, "kvguard answers by itself, because the backends list different models"
    else:
        backend = controller.reachable(model, now)
        why = f"a read takes no KV and passes at any tier; {_choice(model, controller.backends)}"
    name = backend.name if backend else None
    return {**said, "changes": [], "why": [why], "backend": name, "backends": [], "notes": []}


def _choice(model: str | None, backends: tuple[Backend, ...]) -> str:
    """Which backends it may go to."""
    if not model:
        return "it names no model, so it goes to any backend"
    if any(model in backend.models for backend in backends):
        return "it goes to a backend that lists this model"
    return "no backend is known to list this model, so it goes to any, and the engine may say 404"
