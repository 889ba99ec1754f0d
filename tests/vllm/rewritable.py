"""Requests that vLLM takes, for kvguard to shorten and to narrow: every field that lives beside a cap or a count.

Rows are what each adds to the plainest request of its route, whose cap is eight tokens.
"""

from collections.abc import Iterator

from tests.vllm.examples import ASKED, NAMED, TALK, TOOL, UNIT, Body

CAP = 8
EARLY = ["a", "e", "i", "o"]  # ends an answer whose cap is far away

COMMON: list[Body] = [
    {},
    {"min_tokens": 1},
    {"min_tokens": CAP},
    {"min_tokens": 6, "ignore_eos": True},
    {"ignore_eos": True, "n": 2},
    {"n": 3},
    {"n": 3, "temperature": 0.5, "seed": 7},
    {"n": 2, "min_tokens": 5},
    {"n": "2"},
    {"n": 2.0},
    {"temperature": 0},
    {"temperature": 0, "n": 1, "best_of": 4, "num_beams": 4},
    {"n": 2, "best_of": 4},
    {"use_beam_search": True, "n": 2},
    {"use_beam_search": True, "n": 4, "temperature": 0},
    {"use_beam_search": True, "n": 4, "temperature": 0, "top_p": 1, "length_penalty": 0.5},
    {"use_beam_search": "true", "n": 3, "stop": ["x", "y"], "include_stop_str_in_output": True},
    {"use_beam_search": True, "n": 2, "min_tokens": CAP},
    {"use_beam_search": True, "n": 2, "min_tokens": CAP + 1},
    {"use_beam_search": True, "n": 2, "ignore_eos": True, "best_of": 2},
    {"use_beam_search": True, "n": 2, "structured_outputs": {"choice": ["yes", "no"]}},
    {"use_beam_search": True, "n": 1, "temperature": 0},
    {"stop": "x"},
    {"stop": ["1", "2", "3", "4"], "n": 2},
    {"stop": [], "stop_token_ids": [9, 10], "min_tokens": 2},
    {"structured_outputs": {"choice": ["yes", "no"]}, "n": 2},
    {"structured_outputs": {"regex": "[a-c]{2,9}"}},
    {"structured_outputs": {"json": UNIT}},
    {"structured_outputs": {"json": UNIT}, "min_tokens": 2},
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "u", "schema": UNIT}}, "n": 2},
    {"response_format": {"type": "text"}},
    {"logit_bias": {"9": 5}, "n": 2},
    {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1},
    {"top_k": 5, "top_p": 0.9, "min_p": 0.1, "n": 2, "seed": 1},
    {"allowed_token_ids": [11, 12, 13], "bad_words": ["x"], "n": 2},
    {"max_tokens": "8"},
    {"max_tokens": 8.0},
    {"max_tokens": None, "stop": EARLY},
    {"prompt_logprobs": 0},
    {"truncate_prompt_tokens": 2},
    {"cache_salt": "salt", "priority": 1, "user": "u", "request_id": "r"},
    {"skip_special_tokens": False, "spaces_between_special_tokens": False},
    {"stream": True},
    {"stream": True, "n": 2},
    {"stream": True, "stream_options": {}},
    {"stream": True, "stream_options": None},
    {"stream": True, "stream_options": {"include_usage": False}},
    {"stream": True, "stream_options": {"include_usage": None}},
    {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}, "n": 2},
    {"stream": True, "stream_options": {"continuous_usage_stats": True}},
    {"stream": True, "min_tokens": 4, "stop": "x", "prompt_logprobs": 0},
    {"unknown": {"n": 9}, "max_new_tokens": 900},
]

COMPLETION_ONLY: list[Body] = [
    {"echo": True},
    {"echo": True, "max_tokens": 0},
    {"echo": True, "max_tokens": 0, "logprobs": 1},
    {"echo": True, "logprobs": 2, "n": 2},
    {"echo": True, "stream": True},
    {"logprobs": 0, "n": 2},
    {"logprobs": 5, "stream": True},
    {"prompt": [11, 12, 13], "n": 2},
    {"prompt": ["One", "Two"], "n": 2},
    {"prompt": [[11, 12], [13]], "use_beam_search": True, "n": 2, "temperature": 0},
    {"prompt": ["One", "Two"], "stream": True},
    {"use_beam_search": True, "n": 2, "logprobs": 1},
    {"use_beam_search": True, "n": 2, "echo": True},
    {"add_special_tokens": False},
    {"prompt_logprobs": 1},
]

CHAT_ONLY: list[Body] = [
    {"n": None},
    {"max_completion_tokens": CAP},
    {"max_completion_tokens": CAP, "max_tokens": None},
    {"max_completion_tokens": 4, "max_tokens": CAP},
    {"max_completion_tokens": 9, "max_tokens": CAP, "min_tokens": 7},
    {"logprobs": True, "top_logprobs": 2, "n": 2},
    {"logprobs": True, "top_logprobs": 0, "stream": True},
    {"tools": [TOOL]},
    {"tools": [TOOL], "tool_choice": NAMED},
    {"tools": [TOOL], "tool_choice": NAMED, "n": 2, "stream": True},
    {"tools": [TOOL], "tool_choice": "none"},
    {"tools": [TOOL], "tool_choice": "required", "max_tokens": 60},
    {"parallel_tool_calls": False, "tools": [TOOL]},
    {"use_beam_search": True, "n": 2, "stream": True},
    {"use_beam_search": True, "n": 2, "stream": True, "stream_options": {"include_usage": False}},
    {"add_generation_prompt": False, "continue_final_message": True},
    {"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "low"},
    {"documents": [{"title": "t", "text": "x"}], "echo": True},
    {"messages": TALK, "n": 2},
]

MESSAGE_ROWS: list[Body] = [
    {},
    {"stop_sequences": ["x", "y"]},
    {"stop_sequences": []},
    {"temperature": 0, "top_k": 3, "top_p": 0.5},
    {"system": "Be brief."},
    {"system": [{"type": "text", "text": "Be brief."}]},
    {"metadata": {"user_id": "u"}},
    {"max_tokens": "8"},
    {"max_tokens": 8.0},
    {"n": 4, "use_beam_search": True},
    {"stream": True},
    {"stream": True, "stop_sequences": ["x"]},
    {"stream": None},
    {"tools": [{"name": "get", "input_schema": UNIT}]},
    {"tools": [{"name": "get", "input_schema": UNIT}], "tool_choice": {"type": "any"}},
    {"tools": [{"name": "get", "input_schema": UNIT}], "tool_choice": {"type": "tool", "name": "get"}, "stream": True},
    {"tools": [{"name": "get", "input_schema": UNIT}], "tool_choice": {"type": "none"}},
    {"thinking": {"type": "disabled"}},
    {"cache_salt": "salt"},
    {"chat_template_kwargs": {"enable_thinking": False}},
    {"unknown": 1},
]

RESPONSE_ROWS: list[Body] = [
    {},
    {"max_output_tokens": None, "stop": EARLY},
    {"max_output_tokens": "8"},
    {"temperature": 0, "top_p": 0.5},
    {"instructions": "Be brief."},
    {"input": ASKED},
    {"stream": True},
    {"stream": True, "instructions": "Be brief."},
    {"stream": None},
    {"n": 4, "use_beam_search": True, "max_tokens": 3},
    {"truncation": "disabled"},
    {"top_logprobs": 1, "include": ["message.output_text.logprobs"]},
    {"text": {"format": {"type": "json_schema", "name": "u", "schema": UNIT}}},
    {"text": {"format": {"type": "text"}}},
    {"store": False},
    {"metadata": {"a": "b"}, "user": "u"},
    {"cache_salt": "salt", "priority": 1},
    {"parallel_tool_calls": False},
    {"unknown": 1},
]

# In the member `sampling_params`.
TOKENS_IN_ROWS: list[Body] = [
    {},
    {"min_tokens": CAP},
    {"n": 3, "temperature": 1},
    {"n": 2, "seed": 1, "min_tokens": 4},
    {"stop_token_ids": [9]},
    {"ignore_eos": True},
    {"logprobs": 2},
    {"prompt_logprobs": 1},
    {"temperature": 0, "top_p": 0.5, "top_k": 3},
    {"logit_bias": {"9": 5}},
    {"structured_outputs": {"choice": ["yes", "no"]}},
    {"skip_reading_prefix_cache": True},
    {"max_tokens": None, "stop": EARLY},
]

BATCH_ROWS: list[Body] = [row for row in COMMON if not {"use_beam_search", "stream", "n"} & set(row)]

COMPLETION: Body = {"model": "tiny", "prompt": "Once upon", "max_tokens": CAP}
CHAT: Body = {"model": "tiny", "messages": ASKED, "max_tokens": CAP}
SAMPLED: Body = {"model": "tiny", "token_ids": [11, 12, 13]}


def _rows(base: Body, *tables: list[Body]) -> Iterator[Body]:
    for table in tables:
        yield from ({**base, **row} for row in table)


REWRITABLE: dict[str, list[Body]] = {
    "/v1/completions": [*_rows(COMPLETION, COMMON, COMPLETION_ONLY)],
    "/v1/chat/completions": [*_rows(CHAT, COMMON, CHAT_ONLY)],
    "/invocations": [*_rows(COMPLETION, COMMON[:25], COMPLETION_ONLY), *_rows(CHAT, COMMON[25:], CHAT_ONLY)],
    "/v1/messages": [*_rows(CHAT, MESSAGE_ROWS)],
    "/v1/responses": [*_rows({"model": "tiny", "input": "Name a city.", "max_output_tokens": CAP}, RESPONSE_ROWS)],
    "/v1/chat/completions/batch": [*_rows({**CHAT, "messages": [ASKED, TALK]}, BATCH_ROWS)],
    "/inference/v1/generate": [
        {**SAMPLED, "sampling_params": {"max_tokens": CAP, **row}, **extra}
        for row in TOKENS_IN_ROWS
        for extra in ({}, {"stream": True}, {"stream": True, "stream_options": {"include_usage": False}})
    ],
    # One token of each item is all there is: nothing to shorten.
    "/generative_scoring": [{"model": "tiny", "query": "Is it", "items": [" red"], "label_token_ids": [11, 12]}],
}
