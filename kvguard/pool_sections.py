"""What is set of several backends together: how one is chosen, and when one is left alone."""

from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from kvguard.pool.health import HealthPolicy
from kvguard.pool.pool import RoutingPolicy
from kvguard.section import Ratio, Seconds, Section, together


class RoutingSettings(Section):
    """Which backend a request goes to: the one it fills least, of those that serve its model."""

    affinity_margin: Ratio = 0.1
    """How much fuller a backend may get than the emptiest would, as a share of its cache, and still be chosen because
    it has probably seen the beginning of the prompt; never at the price of a higher tier. 0 looks at fullness alone."""
    session_header: Annotated[str, StringConstraints(to_lower=True, pattern=r"^[A-Za-z0-9-]+$")] | None = None
    """Header whose value keeps requests of one session together, before their prompts do, such as `x-session-id`."""

    def policy(self) -> RoutingPolicy:
        """The pool's value."""
        return RoutingPolicy(affinity_margin=self.affinity_margin)


class HealthSettings(Section):
    """When a backend that fails requests is left alone. Refusals, kvguard's and the engine's, are no failures."""

    failures: Annotated[int, Field(ge=0)] = 5
    """Requests in a row that no connection was made for, that broke off or were answered 424, 500, 502 or 504, after
    which a backend is ejected, as long as another one can be asked; 0 never ejects: a server whose `/health` is fine
    may fail every request."""
    eject_seconds: Seconds = 5.0
    """How long; then one request finds out. Twice as long each time that one fails as well."""
    max_eject_seconds: Seconds = 120.0
    """Longest time between two that find out."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.max_eject_seconds < self.eject_seconds:
            text = "health.max_eject_seconds must be at least health.eject_seconds"
            raise together(text, "eject_seconds", "max_eject_seconds")
        return self

    def policy(self) -> HealthPolicy:
        """The pool's value."""
        return HealthPolicy(
            failures=self.failures or None,
            eject_seconds=self.eject_seconds,
            max_eject_seconds=self.max_eject_seconds,
        )
