import json

import pytest

from kvguard.simulator.tgi_config import TgiSimConfig
from kvguard.simulator.tgi_engine import TgiRequest
from kvguard.simulator.tgi_wire import (
    TgiError,
    chat_call,
    completion_call,
    default_new_tokens,
    invocations_call,
    native_call,
    vertex_calls,
)
from tests.kit.recordings import recorded_json

CONFIG = TgiSimConfig()
V31, V24 = TgiSimConfig(version="3.1.0"), TgiSimConfig(version="2.4.1")
HELLO = {"messages": [{"role": "user", "content": "hi"}]}  # role, text, end, opening: 4 tokens
ERRORS = {each["where"]: each for each in recorded_json("errors_v3.json")}


def refused(read, body, config=CONFIG, **settings):
    with pytest.raises(TgiError) as refusal:
        read(body if isinstance(body, bytes) else json.dumps(body).encode(), config, **settings)
    return refusal.value


def native(parameters=None, config=CONFIG, inputs="a b c", **settings):
    body = {"inputs": inputs} if parameters is None else {"inputs": inputs, "parameters": parameters}
    return native_call(json.dumps(body).encode(), config, **settings)


def chat(config=CONFIG, **fields):
    return chat_call(json.dumps({**HELLO, **fields}).encode(), config)


def completion(config=CONFIG, **fields):
    return completion_call(json.dumps(fields).encode(), config)


@pytest.mark.parametrize(
    ("where", "read", "body"),
    [
        (
            "non-stream, over max_total_tokens",
            native_call,
            {"inputs": "a" + " a" * 29_999, "parameters": {"max_new_tokens": 3000}},
        ),
        ("non-stream, prompt over max_input_tokens", native_call, {"inputs": "a" + " a" * 30_499}),
        ("non-stream, best_of over max_best_of", native_call, {"inputs": "a", "parameters": {"best_of": 4}}),
        ("/v1/completions with suffix", completion_call, {"prompt": "a", "suffix": "b"}),
        ("/v1/completions, too many prompts", completion_call, {"prompt": ["a"] * 5}),
    ],
)
def test_refusals_in_the_words_recorded(where, read, body):
    """Status and error object are those of the recording, up to the lengths it was made with."""
    error, recording = refused(read, body, TgiSimConfig(**settings_of(where))), ERRORS[where]
    assert (error.status, error.content_type) == (recording["status"], recording["content_type"])
    assert json.loads(error.body) == words_of(recording["body"], where)


def settings_of(where):
    """The server of the recordings; that of the first refusal is of a release without pieces."""
    settings = {
        "max_batch_total_tokens": 35_000,
        "max_total_tokens": 32_768,
        "max_input_tokens": 30_000,
        "max_batch_prefill_tokens": 30_000,
    }
    return {**settings, "version": "2.4.1"} if "over max_total" in where else settings


def words_of(body, where):
    if "over max_total" not in where:
        return body
    return {**body, "error": body["error"].replace("32000", "30000").replace("1024", "3000")}


@pytest.mark.parametrize(
    ("where", "body"),
    [
        ("body is not JSON (text starts so)", b'{"inputs"'),
        ("JSON of the wrong shape (text starts so)", b'{"inputs":1}'),
    ],
)
def test_bodies_that_are_none(where, body):
    """Its framework answers in plain text."""
    error, recording = refused(native_call, body), ERRORS[where]
    assert (error.status, error.content_type) == (recording["status"], recording["content_type"])
    assert error.body.startswith(recording["body"].encode())


@pytest.mark.parametrize(
    ("parameters", "settings", "message"),
    [
        ({"best_of": 0}, {}, "`best_of` must be > 0 and <= 2. Given: 0"),
        ({"best_of": 2}, {}, "you must use sampling when `best_of` is > 1"),
        ({"best_of": 2, "do_sample": True, "seed": 1}, {}, "`seed` must not be set when `best_of` > 1"),
        ({"best_of": 2}, {"stream": True}, "`best_of` != 1 is not supported when streaming tokens"),
        ({"best_of": 0}, {"stream": True}, "`best_of` != 1 is not supported when streaming tokens"),
        ({"temperature": 0}, {}, "`temperature` must be strictly positive"),
        ({"top_k": 0}, {}, "`top_k` must be strictly positive"),
        ({"repetition_penalty": 0}, {}, "`repetition_penalty` must be strictly positive"),
        ({"top_p": 1.0}, {}, "`top_p` must be > 0.0 and < 1.0"),
        ({"typical_p": 0.0}, {}, "`typical_p` must be > 0.0 and < 1.0"),
        ({"frequency_penalty": 2.5}, {}, "`frequency_penalty` must be >= -2.0 and <= 2.0"),
        ({"top_n_tokens": 6}, {}, "`top_n_tokens` must be >= 0 and <= 5. Given: 6"),
        ({"stop": ["a"] * 5}, {}, "`stop` supports up to 4 stop sequences. Given: 5"),
        ({"truncate": 0}, {}, "`truncate` must be strictly positive and less than 4095. Given: 0"),
        ({"truncate": 4096}, {}, "`truncate` must be strictly positive and less than 4095. Given: 4096"),
        ({"max_new_tokens": 0}, {}, "`max_new_tokens` must be strictly positive"),
        (
            {"decoder_input_details": True},
            {"stream": True},
            "`decoder_input_details` == true is not supported when streaming tokens",
        ),
    ],
)
def test_parameters_out_of_range(parameters, settings, message):
    """Each is refused by name."""
    error = refused(native_call, {"inputs": "a", "parameters": parameters}, **settings)
    assert (error.message, error.kind) == (f"Input validation error: {message}", "validation")


def test_an_empty_prompt():
    """There is nothing to continue."""
    assert refused(native_call, {"inputs": ""}).message == "Input validation error: `inputs` cannot be empty"


def test_a_cap_has_thirty_two_bits():
    """One beyond is the wrong shape, as for the server."""
    assert native({"max_new_tokens": 2**32 - 1}).requests[0].max_new_tokens == 2**32 - 1
    assert refused(native_call, {"inputs": "a", "parameters": {"max_new_tokens": 2**32}}).kind is None


@pytest.mark.parametrize("name", ["do_sample", "details", "stop", "watermark"])
def test_null_where_there_is_a_default(name):
    """It is the wrong shape."""
    assert refused(native_call, {"inputs": "a", "parameters": {name: None}}).kind is None


@pytest.mark.parametrize(
    ("version", "default"),
    [("3.3.6", None), ("3.0.0", None), ("2.4.1", 100), ("1.3.0", 100), ("1.2.2", None), ("1.1.1", 20)],
)
def test_what_an_open_cap_means(version, default):
    """A number, or the rest of a context of 4096 after three tokens."""
    config = TgiSimConfig(version=version)
    assert default_new_tokens(config.release) == default
    [request] = native(config=config).requests
    assert request == TgiRequest(prompt_tokens=3, max_new_tokens=default or 4093, named=False)


@pytest.mark.parametrize(("config", "fits"), [(CONFIG, True), (V31, False), (V24, False)])
def test_where_answers_come_in_pieces_a_cap_may_be_any(config, fits):
    """Only the first 1024 have to fit since 3.1.1."""
    if fits:
        assert native({"max_new_tokens": 100_000}, config).requests[0].max_new_tokens == 100_000
    else:
        error = refused(native_call, {"inputs": "a b c", "parameters": {"max_new_tokens": 100_000}}, config)
        assert error.message.endswith("Given: 3 `inputs` tokens and 100000 `max_new_tokens`")


@pytest.mark.parametrize(
    ("parameters", "prompt_tokens"), [({}, 3), ({"truncate": 2}, 2), ({"truncate": 3}, 3), ({"truncate": 9}, 3)]
)
def test_a_truncated_prompt(parameters, prompt_tokens):
    """It counts with what is left of it."""
    assert native(parameters).requests[0].prompt_tokens == prompt_tokens


def test_copies_of_one_prompt():
    """Two generations are one request to the counter."""
    call = native({"best_of": 2, "do_sample": True, "max_new_tokens": 5})
    assert call.requests == (TgiRequest(prompt_tokens=3, max_new_tokens=5),) * 2
    assert (call.counted, call.most_tokens) == (1, 2048)


def test_no_parameters_sample():
    """Without the object `do_sample` is true, within it false: `best_of` needs it."""
    assert len(native({"best_of": 2, "temperature": 0.5}).requests) == 2
    assert native().requests == native({}).requests


@pytest.mark.parametrize(
    ("settings", "full"), [({"stream": None}, True), ({"stream": False}, False), ({"stream": True}, False)]
)
def test_the_prompt_comes_back_from_the_root_only(settings, full):
    """By default."""
    assert native(**settings).full_text is full
    assert native({"return_full_text": not full}, **settings).full_text is not full


@pytest.mark.parametrize(
    ("version", "fields", "cap"),
    [
        ("3.3.6", {"max_tokens": 7}, 7),
        ("3.3.6", {"max_completion_tokens": 7}, 7),
        ("3.0.2", {"max_completion_tokens": 7}, 7),
        ("3.0.1", {"max_completion_tokens": 7}, 4092),
        ("2.4.1", {"max_completion_tokens": 7}, 100),
        ("2.4.1", {"max_completion_tokens": 7, "max_tokens": 8}, 8),
        ("3.3.6", {"max_tokens": None}, 4092),
    ],
)
def test_names_of_the_cap_of_a_chat(version, fields, cap):
    """The second name is known since 3.0.2."""
    [request] = chat(TgiSimConfig(version=version), **fields).requests
    assert (request.prompt_tokens, request.max_new_tokens) == (4, cap)


def test_both_names_of_the_cap():
    """They are one field given twice, whatever their values."""
    for value in (7, None):
        error = refused(chat_call, {**HELLO, "max_tokens": 7, "max_completion_tokens": value})
        assert (error.status, error.kind) == (422, None)
        assert error.message.endswith("duplicate field `max_tokens`")


@pytest.mark.parametrize(("version", "told"), [("3.3.6", True), ("2.3.0", True), ("2.2.0", False)])
def test_a_chat_asks_for_usage(version, told):
    """Releases before 2.3 know nothing of it."""
    assert chat(TgiSimConfig(version=version), stream_options={"include_usage": True}).include_usage is told
    assert refused(chat_call, {**HELLO, "stream_options": None}).kind is None


def test_content_in_parts():
    """Their texts count, and so do the tools."""
    parts = [{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {"url": "x"}}]
    split = chat(messages=[{"role": "user", "content": parts}])
    assert (split.requests, split.inputs, split.counted, split.model) == (chat().requests, "hi", 2, "tgi")
    assert chat(tools=[{"type": "function"}]).requests[0].prompt_tokens > 4
    assert chat(messages=[{"role": "assistant", "content": None}]).requests[0].prompt_tokens == 3


def test_prompts_of_a_completion():
    """Each is a generation and counted; token numbers are no prompt."""
    call = completion(prompt=["a b", "a"], max_tokens=5, n=3, model="m")
    assert [request.prompt_tokens for request in call.requests] == [2, 1]
    assert (call.counted, call.model, call.inputs) == (3, "m", "a ba")
    assert refused(completion_call, {"prompt": [1, 2]}).kind is None


@pytest.mark.parametrize(
    ("version", "body", "kind"),
    [
        ("3.3.6", {"inputs": "a"}, "native"),
        ("3.3.6", HELLO, "chat"),
        ("3.3.6", {"prompt": "a"}, "completion"),
        ("2.4.0", HELLO, "chat"),
        ("2.3.0", {"inputs": "a", **HELLO}, "native"),
    ],
)
def test_invocations_go_by_shape(version, body, kind):
    """Since 2.4; before that they are native."""
    assert invocations_call(json.dumps(body).encode(), TgiSimConfig(version=version))[0] == kind


def test_old_invocations_are_native():
    """A chat is the wrong shape."""
    assert refused(invocations_call, HELLO, TgiSimConfig(version="2.3.0")).kind is None


def test_vertex_instances():
    """Each is a call and counted once, with no parameter but cap and seed."""
    instances = [{"inputs": "a b", "parameters": {"max_new_tokens": 5, "best_of": 2, "seed": 3}}, HELLO]
    native_one, chat_one = vertex_calls(json.dumps({"instances": instances}).encode(), CONFIG)
    assert native_one.requests == (TgiRequest(prompt_tokens=2, max_new_tokens=5),)
    assert (native_one.seed, native_one.counted, chat_one.counted) == (3, 1, 1)
