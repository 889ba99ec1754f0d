"""Every generating route of vLLM, and the harmless reads beside them. What is not here does not pass."""

from typing import Final

from kvguard.protocols import chat_batch, generate, openai_chat, openai_completions, pooling, scoring

GENERATING: Final = {
    route.path: route
    for route in (
        openai_completions.ROUTE,
        openai_chat.ROUTE,
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
