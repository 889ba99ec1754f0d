"""A few requests for every route, as clients of vLLM send them: what it serves, and what it refuses by itself.

Prompts stay below one block of tokens, so that no answer rests on what an earlier one left in the prefix cache.
"""

from collections.abc import Iterator

Body = dict[str, object]

GREEDY: Body = {"model": "tiny", "temperature": 0, "max_tokens": 6}
SEEDED: Body = {"model": "tiny", "temperature": 1, "seed": 7, "max_tokens": 6}
ASKED: list[Body] = [{"role": "user", "content": "Name a city."}]
TALK: list[Body] = [{"role": "system", "content": "Be brief."}, *ASKED]
UNIT: Body = {
    "type": "object",
    "properties": {"unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
    "required": ["unit"],
    "additionalProperties": False,
}
TOOL: Body = {"type": "function", "function": {"name": "get", "parameters": UNIT}}
NAMED: Body = {"type": "function", "function": {"name": "get"}}
MANY_IDS = [7] * 2100  # more than the model's context, less than the cache

COMPLETIONS: list[Body] = [
    {**GREEDY, "prompt": "Once upon a time"},
    {**GREEDY, "prompt": [11, 12, 13], "echo": True, "logprobs": 2},
    {**SEEDED, "prompt": ["One", "Two"], "n": 2},
    {**GREEDY, "prompt": "Yes or no?", "structured_outputs": {"choice": ["yes", "no"]}},
    {**GREEDY, "prompt": "x", "stop": ["*", "("], "unknown_field": {"kept": [1, 2.50, "é\u2028"]}},
]
BEAMS: Body = {**GREEDY, "prompt": "Once", "use_beam_search": True, "n": 3}

CHATS: list[Body] = [
    {**GREEDY, "messages": ASKED},
    {"model": "tiny", "temperature": 0, "messages": TALK, "max_completion_tokens": 6, "logprobs": True},
    {**SEEDED, "messages": ASKED, "n": 2},
    {**GREEDY, "messages": ASKED, "max_tokens": 40, "tools": [TOOL], "tool_choice": NAMED},
    {**GREEDY, "messages": ASKED, "tools": [TOOL]},
    {**GREEDY, "messages": ASKED, "use_beam_search": True, "n": 3},
    {
        **GREEDY,
        "messages": ASKED,
        "max_tokens": 40,
        "response_format": {"type": "json_schema", "json_schema": {"name": "unit", "schema": UNIT}},
    },
]

MESSAGES: list[Body] = [
    {**GREEDY, "messages": ASKED},
    {**GREEDY, "messages": ASKED, "system": "Be brief.", "stop_sequences": ["*"], "top_k": 1},
    {
        **GREEDY,
        "messages": ASKED,
        "max_tokens": 40,
        "tools": [{"name": "get", "input_schema": UNIT}],
        "tool_choice": {"type": "tool", "name": "get"},
    },
]

PLAIN_RESPONSE: Body = {"model": "tiny", "temperature": 0, "max_output_tokens": 6}
RESPONSES: list[Body] = [
    {**PLAIN_RESPONSE, "input": "Name a city."},
    {**PLAIN_RESPONSE, "input": ASKED, "instructions": "Be brief."},
]


def streams(bodies: list[Body]) -> Iterator[Body]:
    """Each as a stream whose client does not ask for usage, asks for it, and says that it wants none."""
    for body in bodies:
        yield {**body, "stream": True}
        yield {**body, "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    yield {**bodies[0], "stream": True, "stream_options": {"include_usage": False}}


def streamed(bodies: list[Body]) -> list[Body]:
    """Each as a stream, on a route whose streams always tell their usage."""
    return [{**body, "stream": True} for body in bodies]


TOKENS: Body = {"model": "tiny", "token_ids": [11, 12, 13], "sampling_params": {"max_tokens": 6, "temperature": 0}}
SCORING: Body = {"model": "tiny", "query": "Is it", "items": [" red", " green"], "label_token_ids": [11, 12]}
BATCH: Body = {**GREEDY, "messages": [ASKED, TALK]}

NOBODY: Body = {"model": "nobody"}

SERVED: dict[str, list[Body]] = {
    "/v1/completions": [*COMPLETIONS, BEAMS, *streams(COMPLETIONS)],
    "/v1/chat/completions": [*CHATS, *streams(CHATS)],
    "/v1/messages": [*MESSAGES, *streamed(MESSAGES)],
    "/v1/responses": [*RESPONSES, *streamed(RESPONSES)],
    # Whatever model it names.
    "/invocations": [
        {**CHATS[0], **NOBODY},
        *COMPLETIONS[:3],
        *CHATS[:3],
        BEAMS,
        *streams(COMPLETIONS[:2]),
        *streams(CHATS[:2]),
    ],
    "/v1/chat/completions/batch": [BATCH, {**BATCH, "stream": True}],
    "/inference/v1/generate": [TOKENS, {**TOKENS, "stream": True}],
    "/generative_scoring": [SCORING, {**SCORING, "item_first": True, "apply_softmax": False}],
    "/v1/models": [{}],
    "/version": [{}],
    "/tokenize": [{"model": "tiny", "prompt": "Once upon"}, {"model": "tiny", "messages": TALK, "tools": [TOOL]}],
    "/detokenize": [{"model": "tiny", "tokens": [11, 12, 13]}],
    "/v1/messages/count_tokens": [{"model": "tiny", "messages": ASKED}],
    "/v1/completions/render": [COMPLETIONS[0], COMPLETIONS[2]],
    "/v1/chat/completions/render": [CHATS[0], CHATS[3]],
    "/v1/messages/render": [MESSAGES[0]],
    "/v1/responses/render": [RESPONSES[0]],
}

# What only the engine looks at, so that the refusal is its own.
HOT: Body = {"temperature": "hot"}

REFUSED: dict[str, list[Body]] = {
    "/v1/completions": [
        {**COMPLETIONS[0], **NOBODY},
        {**COMPLETIONS[0], **NOBODY, "stream": True},
        {**COMPLETIONS[0], **HOT},
        {**COMPLETIONS[0], "prompt": MANY_IDS},
        {**COMPLETIONS[0], "prompt": MANY_IDS, "stream": True},
        {**BEAMS, "stream": True},
        {**COMPLETIONS[0], "n": 2},
        {**COMPLETIONS[0], "stop": ["1", "2", "3", "4", "5"]},
        {**COMPLETIONS[0], "min_tokens": 9},
    ],
    "/v1/chat/completions": [
        {**CHATS[0], **NOBODY},
        {**CHATS[0], **HOT, "stream": True},
        {**CHATS[0], "messages": [{"role": "user", "content": "a b " * 1100}]},
        {**CHATS[0], "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "missing"}}},
        {**CHATS[0], "top_logprobs": 3},
    ],
    "/v1/messages": [
        {**MESSAGES[0], **NOBODY},
        {**MESSAGES[0], **HOT},
        {**MESSAGES[0], "messages": [{"role": "user", "content": "a b " * 1100}]},
        {**MESSAGES[0], **NOBODY, "stream": True},
    ],
    "/v1/responses": [
        {**RESPONSES[0], **NOBODY},
        {**RESPONSES[0], **HOT},
        {**RESPONSES[0], "input": "a b " * 1100},
    ],
    "/invocations": [{**COMPLETIONS[0], **HOT}, {**CHATS[0], **HOT}, {**COMPLETIONS[0], "prompt": MANY_IDS}],
    "/v1/chat/completions/batch": [{**BATCH, **NOBODY}, {**BATCH, **HOT}],
    "/inference/v1/generate": [{**TOKENS, **NOBODY}, {**TOKENS, "token_ids": MANY_IDS}],
    "/generative_scoring": [{**SCORING, **NOBODY}, {**SCORING, "label_token_ids": []}],
    "/tokenize": [{"model": "nobody", "prompt": "x"}, {"prompt": 5}],
    "/detokenize": [{"model": "tiny", "tokens": "x"}],
    "/v1/messages/count_tokens": [{"model": "nobody", "messages": ASKED}],
    "/v1/completions/render": [{**COMPLETIONS[0], **NOBODY}],
    "/v1/chat/completions/render": [{**CHATS[0], **NOBODY}],
    "/v1/messages/render": [{**MESSAGES[0], **NOBODY}],
    "/v1/responses/render": [{**RESPONSES[0], **NOBODY}],
    "/v1/models": [],
    "/version": [],
}

# Routes of models that make vectors of texts; one that makes vectors has no classes.
INPUT: Body = {"model": "tiny", "input": "Once upon a time"}
PAIR: Body = {"model": "tiny", "text_1": "Once upon", "text_2": ["a time", "a city"]}
RANKED: Body = {"model": "tiny", "query": "Once upon", "documents": ["a time", "a city"]}
POOLING: dict[str, list[Body]] = {
    "/v1/embeddings": [INPUT, {**INPUT, "input": ["a", "b"]}, {"model": "tiny", "input": [11, 12]}],
    "/v2/embed": [{"model": "tiny", "texts": ["a", "b"], "embedding_types": ["float"]}],
    "/pooling": [INPUT],
    "/classify": [],
    "/score": [PAIR],
    "/v1/score": [PAIR],
    "/rerank": [RANKED],
    "/v1/rerank": [RANKED, {**RANKED, "top_n": 1}],
    "/v2/rerank": [RANKED],
}
SERVED |= POOLING
REFUSED |= {path: [{**body, **NOBODY} for body in bodies[:1]] for path, bodies in POOLING.items()}
REFUSED["/classify"] = [INPUT]
