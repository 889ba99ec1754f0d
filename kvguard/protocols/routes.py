"""Every generating route of vLLM, and the harmless reads beside them. What is not here does not pass."""

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

GENERATING: Final = {
    route.path: route
    for route in (
        openai_completions.ROUTE,
        openai_chat.ROUTE,
        openai_responses.ROUTE,
        anthropic_messages.ROUTE,
        invocations.ROUTE,
        chat_batch.ROUTE,
        generate.ROUTE,
        scoring.ROUTE,
        *pooling.ROUTES,
    )
}

# They take no KV and pass whatever the tier: path and the one method there is.
READS: Final = {
    "/v1/models": "GET",
    "/version": "GET",
    "/tokenize": "POST",
    "/detokenize": "POST",
    "/v1/messages/count_tokens": "POST",
    "/v1/completions/render": "POST",
    "/v1/chat/completions/render": "POST",
    "/v1/messages/render": "POST",
    "/v1/responses/render": "POST",
}


def errors_at(path: str) -> ErrorFormat:
    """How errors look there: as the route's, which those below it share; OpenAI's way anywhere else."""
    if path in GENERATING:
        return GENERATING[path].errors
    above = [route.errors for route in GENERATING.values() if path.startswith(f"{route.path}/")]
    return above[0] if above else OPENAI_ERRORS
