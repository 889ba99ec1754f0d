"""What passes, as a table for each engine, and the table of vLLM. What is not in it does not pass."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kvguard.protocols import (
    anthropic_messages,
    chat_batch,
    generate,
    invocations,
    openai_chat,
    openai_completions,
    openai_responses,
    pooling,
    scoring,
)
from kvguard.protocols.error_format import ErrorFormat
from kvguard.protocols.openai_errors import OPENAI_ERRORS
from kvguard.protocols.route import Route

MODELS: Final = "/v1/models"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteTable:
    """All that passes to an engine: routes that take KV, by POST, and reads that take none, each by its one method.

    Both are by path, and one path may be in both. `below` has the errors of what lies below a path that is no route
    itself, `elsewhere` is how they look where nothing else is said.
    """

    generating: Mapping[str, Route]
    reads: Mapping[str, str]
    below: Mapping[str, ErrorFormat] = field(default_factory=dict)
    elsewhere: ErrorFormat = OPENAI_ERRORS

    def errors_at(self, path: str) -> ErrorFormat:
        """How errors look there: as the route's, which those below it share."""
        if path in self.generating:
            return self.generating[path].errors
        above = {route.path: route.errors for route in self.generating.values()} | dict(self.below)
        return next((errors for top, errors in above.items() if path.startswith(f"{top}/")), self.elsewhere)

    def methods(self, path: str) -> tuple[str, ...]:
        """The methods a path takes, none where there is no such route."""
        posts = ("POST",) if path in self.generating else ()
        return (self.reads[path], *posts) if path in self.reads else posts


def by_path(*routes: Route) -> dict[str, Route]:
    """Each route under its own path."""
    return {route.path: route for route in routes}


VLLM: Final = RouteTable(
    generating=by_path(
        openai_completions.ROUTE,
        openai_chat.ROUTE,
        openai_responses.ROUTE,
        anthropic_messages.ROUTE,
        invocations.ROUTE,
        chat_batch.ROUTE,
        generate.ROUTE,
        scoring.ROUTE,
        *pooling.ROUTES,
    ),
    reads={
        MODELS: "GET",
        "/version": "GET",
        "/tokenize": "POST",
        "/detokenize": "POST",
        "/v1/messages/count_tokens": "POST",
        "/v1/completions/render": "POST",
        "/v1/chat/completions/render": "POST",
        "/v1/messages/render": "POST",
        "/v1/responses/render": "POST",
    },
)
