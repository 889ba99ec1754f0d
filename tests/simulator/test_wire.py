import contextlib
import json

import pytest

from kvguard.simulator.config import SimConfig
from kvguard.simulator.wire import ApiError, chat_call, completion_call, messages_call, responses_call, tokenize_answer

CONFIG = SimConfig(max_model_len=100)


def completion(**body):
    return completion_call(json.dumps({"prompt": "a"} | body).encode(), CONFIG)


def chat(**body):
    return chat_call(json.dumps({"messages": [{"role": "user", "content": "a"}]} | body).encode(), CONFIG)


def refusal(parse, raw):
    """The error object a body is refused with."""
    with pytest.raises(ApiError) as caught:
        parse(raw if isinstance(raw, bytes) else json.dumps(raw).encode(), CONFIG)
    error = caught.value.body["error"]
    assert error["code"] == caught.value.status
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize(
    ("prompt", "lengths"),
    [
        ("a b", [2]),
        ([5, 6, 7], [3]),
        (["a", "a b", "5"], [1, 2, 1]),
        ([[5], [6, 7]], [1, 2]),
    ],
)
def test_each_form_of_prompt(prompt, lengths):
    """A string and a flat list of ids are one prompt; lists of strings and of id lists are many."""
    call = completion(prompt=prompt)
    assert [sequence.prompt_tokens for sequence in call.sequences] == lengths
    assert call.prompt_tokens == sum(lengths)


def test_n_multiplies_sequences_and_not_prompt_tokens():
    """Sequences come prompt by prompt, n of each, and the prompt is counted once."""
    call = completion(prompt=["a", "a b"], n=2)
    assert [sequence.prompt_tokens for sequence in call.sequences] == [1, 1, 2, 2]
    assert call.prompt_tokens == 3


@pytest.mark.parametrize(
    ("fields", "cap"),
    [
        ({}, 16),
        ({"max_tokens": None}, 16),
        ({"max_tokens": "5"}, 5),
        ({"max_tokens": 5.0}, 5),
        ({"max_tokens": 99}, 99),
        ({"max_tokens": 100}, 99),
    ],
)
def test_the_cap_of_a_completion(fields, cap):
    """Absent means 16, numbers may be strings, and what exceeds the context is clamped silently."""
    assert completion(**fields).sequences[0].max_tokens == cap


@pytest.mark.parametrize(
    ("fields", "cap"),
    [({}, 96), ({"max_tokens": 7}, 7), ({"max_completion_tokens": 5, "max_tokens": 7}, 5), ({"max_tokens": 100}, 96)],
)
def test_the_cap_of_a_chat(fields, cap):
    """max_completion_tokens wins over max_tokens and absent means the rest of the context."""
    assert chat(**fields).sequences[0].max_tokens == cap


def test_every_prompt_is_clamped_for_itself():
    """A long prompt shortens its own output only."""
    call = completion(prompt=[[1] * 90, [1] * 10], max_tokens=50)
    assert [sequence.max_tokens for sequence in call.sequences] == [10, 50]


def test_fields_that_shape_the_output():
    """min_tokens, ignore_eos and the stream options reach the call; unknown keys do not matter."""
    call = chat(
        min_tokens=3,
        ignore_eos=True,
        stream="true",
        stream_options={"include_usage": True, "continuous_usage_stats": True},
        num_beams=4,
    )
    assert (call.sequences[0].min_tokens, call.sequences[0].ignore_eos) == (3, True)
    assert (call.stream, call.include_usage, call.continuous_usage) == (True, True, True)
    assert not chat(stream=True, stream_options={"continuous_usage_stats": True}).continuous_usage


@pytest.mark.parametrize("model", [None, "", "sim-tiny"])
def test_a_missing_model_is_the_model_that_is_there(model):
    """Only an unknown name is refused."""
    assert completion(model=model).sequences


def test_the_width_of_a_beam_search_is_n():
    """Beams are that many sequences, also without sampling."""
    assert len(completion(use_beam_search=True, n=4, temperature=0).sequences) == 4


def test_content_parts_and_tool_calls_are_counted():
    """Text parts are joined, and an assistant message of tool calls alone costs tokens."""
    parts = chat(messages=[{"role": "user", "content": [{"type": "text", "text": "a"}]}])
    assert parts.prompt_tokens == chat().prompt_tokens == 4
    calls = chat(messages=[{"role": "assistant", "content": None, "tool_calls": [{"id": "call-1"}]}])
    assert calls.prompt_tokens > 4
    assert chat(tools=[{"type": "function"}]).prompt_tokens > 4
    assert chat(add_generation_prompt=False).prompt_tokens == 3


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"max_tokens": 0}, "max_tokens", "max_tokens must be at least 1, got 0."),
        ({"max_tokens": -1}, "max_tokens", "max_tokens must be at least 1, got -1."),
        ({"max_tokens": 101}, "max_tokens", "max_tokens=101 cannot be greater than max_model_len=100."),
        ({"prompt": [1] * 100}, "max_tokens", "max_tokens must be at least 1, got 0."),
        ({"prompt": [1] * 101}, "input_tokens", "maximum context length is 100 tokens."),
        ({"prompt": ""}, "prompt", "cannot be empty"),
        ({"prompt": []}, "prompt", "cannot be empty"),
        ({"prompt": ["a"] * 1025}, "prompt", "at most 1024"),
        ({"max_tokens": 5, "min_tokens": 6}, "min_tokens", "less than or equal to max_tokens=5, got 6."),
        ({"n": 0}, "n", "at least 1"),
        ({"n": 16385}, "n", "at most 16384"),
        ({"n": 2, "temperature": 0}, "n", "greedy"),
        ({"use_beam_search": True, "stream": True}, None, "Streaming is not currently supported with beam search"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream=True"),
    ],
)
def test_what_vllm_refuses_of_a_completion(fields, param, message):
    """Each is a 400 BadRequestError that names the field."""
    error = refusal(completion_call, {"prompt": "a"} | fields)
    assert (error["type"], error["param"], error["code"]) == ("BadRequestError", param, 400)
    assert message in error["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "body.prompt"),
        ([], "body"),
        ({"prompt": "a", "max_tokens": 5.5}, "body.max_tokens"),
        ({"prompt": "a", "min_tokens": -1}, "body.min_tokens"),
        (b'{"prompt": "a",}', "body.15"),
    ],
)
def test_a_body_of_the_wrong_shape(body, param):
    """Schema and JSON errors are a 400 of type Bad Request that says where."""
    error = refusal(completion_call, body)
    assert (error["type"], error["param"], error["code"]) == ("Bad Request", param, 400)
    assert error["message"].startswith("1 validation error:\n  {'type': ")


@pytest.mark.parametrize("flag", ["echo", "add_generation_prompt", "continue_final_message", "add_special_tokens"])
def test_a_flag_is_true_or_false(flag):
    """In any spelling pydantic takes, and nothing else."""
    for value in (3, [], "maybe"):
        assert refusal(chat_call, {"messages": [], flag: value})["param"] == f"body.{flag}"
    for value in ("yes", 0, False):
        assert chat(**{flag: value}).prompt_tokens


@pytest.mark.parametrize("prompt", [["a", 1], [1, "a"], [[1], "a"], [1.5], [-1], 7])
def test_a_mixed_prompt_is_refused(prompt):
    """A prompt is of one form throughout."""
    error = refusal(completion_call, {"prompt": prompt})
    assert (error["type"], error["code"]) == ("Bad Request", 400)


LONG = b"9" * 5000  # digits, more than Python reads


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff\xfe\xfd",
        b"[" * 200_000,
        b'{"prompt": [%s]}' % LONG,
        b'{"prompt": "a", "unknown": %s}' % LONG,
        b'{"messages": [{"role": "user", "content": %s}]}' % LONG,
    ],
)
def test_an_undecodable_body_is_refused(raw):
    """Neither broken text nor endless nesting nor an endless number gets past the parser."""
    for call in (completion_call, chat_call, tokenize_answer):
        assert (refusal(call, raw)["type"], refusal(call, raw)["code"]) == ("Bad Request", 400)


@pytest.mark.parametrize("depth", range(850, 1000))
def test_tools_nested_too_deeply_are_refused(depth):
    """What was just read may be too deep to be written again."""
    deep = b'[{"a":' + b"[" * depth + b"]" * depth + b"}]"
    body = b'{"messages": [], "max_tokens": 1, "tools": %s}' % deep
    for raw in (body, body.replace(b"[]", b'[{"role":"assistant","tool_calls":%s}]' % deep, 1)):
        with contextlib.suppress(ApiError):
            chat_call(raw, CONFIG)


def test_half_a_character_is_not_repeated():
    """It could not be sent."""
    error = refusal(chat_call, rb'{"messages": [], "model": "\ud800"}')
    assert error["message"] == "The model `?` does not exist. Valid aliases: sim-tiny."


def test_an_unknown_model_is_not_found():
    """The 404 has vLLM's words."""
    assert refusal(chat_call, {"model": "nope", "messages": []}) == {
        "message": "The model `nope` does not exist. Valid aliases: sim-tiny.",
        "type": "NotFoundError",
        "param": "model",
        "code": 404,
    }


def test_an_image_is_refused():
    """A text-only model takes no other content parts."""
    content = [{"type": "image_url", "image_url": {"url": "x"}}]
    assert "image_url" in refusal(chat_call, {"messages": [{"role": "user", "content": content}]})["message"]


def test_a_long_value_is_not_repeated_in_full():
    """An error message stays short whatever the client sent."""
    assert len(refusal(completion_call, {"prompt": "a", "max_tokens": "x" * 9999})["message"]) < 400


def test_tokenize_counts_what_a_call_will_cost():
    """The count of a prompt or of messages is the prompt_tokens of the call."""
    messages = [{"role": "user", "content": "hello"}]
    answer = tokenize_answer(json.dumps({"messages": messages}).encode(), CONFIG)
    assert answer["count"] == len(answer["tokens"]) == chat(messages=messages).prompt_tokens
    assert answer["max_model_len"] == 100
    assert tokenize_answer(b'{"prompt": "hello"}', CONFIG)["count"] == completion(prompt="hello").prompt_tokens
    assert refusal(tokenize_answer, {})["param"] == "body.prompt"


SHARING = SimConfig(max_model_len=100, block_size=4, enable_prefix_caching=True)
TEXT = {"prompt": "a b c d e f g h i"}
CHAT = {"messages": [{"role": "user", "content": "a b c d e f g"}]}
RESPONSE = {"input": "a b c d e f g"}


def prefix(parse, body, config=SHARING):
    return parse(json.dumps(body).encode(), config).sequences[0].prefix


@pytest.mark.parametrize(
    ("parse", "body"),
    [
        (completion_call, TEXT),
        (completion_call, {"prompt": [5, 6, 7, 8, 9, 10, 11, 12, 13]}),
        (chat_call, CHAT),
        (messages_call, {**CHAT, "max_tokens": 5}),
        (responses_call, RESPONSE),
    ],
)
def test_every_full_block_of_a_prompt_has_its_hash(parse, body):
    """The same body has the same hashes whoever sends it, and none while prefixes are not shared."""
    assert len(prefix(parse, body)) == 2
    assert prefix(parse, body) == prefix(parse, {**body, "user": "someone"})
    assert prefix(parse, body, CONFIG) == ()


@pytest.mark.parametrize(("parse", "body"), [(completion_call, TEXT), (chat_call, CHAT), (responses_call, RESPONSE)])
def test_a_salt_keeps_prefixes_apart(parse, body):
    """Only requests with the same salt share, and those without one do not share with them."""
    salted = [prefix(parse, {**body, "cache_salt": salt}) for salt in ("x", "x", "y")]
    assert salted[0] == salted[1]
    assert not set(salted[0]) & (set(salted[2]) | set(prefix(parse, body)))


def test_prompts_that_begin_alike_share_their_beginning():
    """A conversation that goes on keeps the blocks of what was said."""
    longer = {"messages": [*CHAT["messages"], {"role": "assistant", "content": "yes and no and yes"}]}
    assert prefix(chat_call, longer)[:2] == prefix(chat_call, CHAT)
    assert prefix(completion_call, {"prompt": "z" + TEXT["prompt"]})[0] != prefix(completion_call, TEXT)[0]


def test_a_prompt_of_which_only_the_length_is_read_shares_nothing():
    """Token ids that replace the messages are counted and not kept."""
    body = {**RESPONSE, "kv_transfer_params": {"prompt_token_ids": [1] * 12}}
    call = responses_call(json.dumps(body).encode(), SHARING)
    assert (call.prompt_tokens, call.sequences[0].prefix) == (12, ())
