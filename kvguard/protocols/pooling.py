"""The routes of pooling models, which compute their prompts and generate nothing: embeddings, classes, scores, ranks.

A prompt holds blocks while it is computed, so there is nothing to trim, no length to learn, and all of a request is
counted as if it were computed at once. What the engine makes of a pair of query and document depends on the model: see
`PairedPrompts`. Its score templates and the prefixes of Cohere's `input_type` only the server knows; `AROUND_TOKENS`
for each query and each document are more than those of public models.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from kvguard.errors import InvalidRequest
from kvguard.protocols.fields import Fields, is_set, read_fields, read_int, read_text
from kvguard.protocols.pooling_prompt import (
    cohere_prompt_of,
    embedding_prompt_of,
    input_prompt_of,
    rerank_prompt_of,
    score_prompt_of,
)
from kvguard.protocols.prefill import read_prefill
from kvguard.protocols.prompts import PairedPrompts, Prompt
from kvguard.protocols.request import InferenceRequest
from kvguard.protocols.route import Route

AROUND_TOKENS: Final = 80
TRUNCATE = "truncate_prompt_tokens"

_TO_CONTEXT = -1


def _reading(prompt_of: Callable[[Fields], Prompt]) -> Callable[[bytes], InferenceRequest]:
    def parse(body: bytes) -> InferenceRequest:
        fields = read_fields(body)
        truncate_to = read_int(fields, TRUNCATE)
        if truncate_to is not None and truncate_to < _TO_CONTEXT:
            raise InvalidRequest(f"'{TRUNCATE}' must be at least -1", param=TRUNCATE)
        prompt = prompt_of(fields)
        padded = read_text(fields, "padding") == "max_length"
        request = read_prefill(body, fields, prompt, output_tokens=0, truncate_to=None if padded else truncate_to)
        if isinstance(prompt, PairedPrompts):
            request = replace(request, around_tokens=AROUND_TOKENS, special_tokens=True)
        return replace(request, padded=padded)

    return parse


def parse_cohere(body: bytes) -> InferenceRequest:
    """Read a request in Cohere's form, which has its own names. Raises InvalidRequest naming the field at fault."""
    fields = read_fields(body)
    request = read_prefill(body, fields, cohere_prompt_of(fields), output_tokens=0, truncate_to=_truncate_of(fields))
    around = AROUND_TOKENS if is_set(fields, "input_type") else 0
    return replace(request, around_tokens=around, special_tokens=True)


def _truncate_of(fields: Fields) -> int | None:
    """To the context unless the client says otherwise."""
    limit = read_int(fields, "max_tokens")
    if limit is not None and limit < _TO_CONTEXT:
        raise InvalidRequest("'max_tokens' must be at least -1", param="max_tokens")
    if read_text(fields, "truncate") == "NONE":
        return None
    return _TO_CONTEXT if limit is None else limit


parse_embeddings: Final = _reading(embedding_prompt_of)
parse_pooling: Final = _reading(input_prompt_of)
parse_score: Final = _reading(score_prompt_of)
parse_rerank: Final = _reading(rerank_prompt_of)

ROUTES: Final = (
    Route(path="/v1/embeddings", parse=parse_embeddings),
    Route(path="/v2/embed", parse=parse_cohere),
    *(Route(path=path, parse=parse_pooling) for path in ("/pooling", "/classify")),
    *(Route(path=path, parse=parse_score) for path in ("/score", "/v1/score")),
    *(Route(path=path, parse=parse_rerank) for path in ("/rerank", "/v1/rerank", "/v2/rerank")),
)
