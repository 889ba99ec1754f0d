"""The answers of `tgi_answers`, key by key as the recordings have them."""

import json

import msgspec
import pytest

from kvguard.simulator.engine import FinishReason, SimToken
from kvguard.simulator.tgi_answers import ChatShape, Choice, CompletionShape, Head, NativeShape, frame
from kvguard.simulator.tgi_config import TgiSimConfig
from kvguard.simulator.tgi_engine import TgiRequest
from kvguard.simulator.tgi_wire import TgiCall, TgiError, native_call, out_of_memory, overloaded
from tests.kit.recordings import recorded, recorded_json

from .recorded_shapes import frames_of, shape_of, violations

LAST = (3, 3, 6)
HEAD = Head(created=1764496800, model="meta-llama/Llama-3.1-8B-Instruct", version="3.3.6-dev0")
LENGTH, STOP = FinishReason.LENGTH, FinishReason.STOP
SCHEMAS = recorded_json("openapi.json")["components"]["schemas"]


def call_of(*prompts, **settings):
    requests = tuple(TgiRequest(prompt_tokens=prompt, max_new_tokens=9) for prompt in prompts or (6,))
    return TgiCall(requests=requests, **settings)


def tokens_of(number, reason, sequence_id=0):
    """So many tokens, the last of them with the reason."""
    return [
        SimToken(sequence_id=sequence_id, position=n, finish_reason=reason if n == number - 1 else None)
        for n in range(number)
    ]


def choices_of(call, *answers):
    choices = [Choice(number, request.prompt_tokens) for number, request in enumerate(call.requests)]
    for choice, tokens in zip(choices, answers, strict=True):
        for token in tokens:
            choice.add(token)
    return choices


def streamed(shape, call, tokens, error=None, release=LAST):
    """The bytes of a stream of (choice, token), ended by itself or by an error."""
    choices = [Choice(number, request.prompt_tokens) for number, request in enumerate(call.requests)]
    parts = []
    for choice, token in tokens:
        choices[choice].add(token)
        parts.append(frame(shape.event(choice, token, choices), release))
    ends = shape.closing(choices) if error is None else shape.failure(error)
    return b"".join([*parts, *(frame(content, release) for content in ends)])


def of_one(tokens):
    return [(0, token) for token in tokens]


@pytest.mark.parametrize(
    ("name", "release"), [("sse_generate_stream_v3.txt", LAST), ("sse_generate_stream_v1.4-v2.0.txt", (2, 0, 4))]
)
def test_a_native_stream(name, release):
    """Frames, their framing and the details of the last are those of the release."""
    call = call_of(stream=True, details=True)
    got = streamed(NativeShape(call, release), call, of_one(tokens_of(4, LENGTH)), release=release)
    assert frames_of(got) == frames_of(recorded(name))
    assert b'"finish_reason":"length","generated_tokens":4,"seed":null' in got


def test_a_native_stream_without_details():
    """They are null to the end, as in the stream that was kept alive."""
    call = call_of(stream=True)
    got = streamed(NativeShape(call, LAST), call, of_one(tokens_of(4, LENGTH)))
    assert frames_of(got) == [
        each for each in frames_of(recorded("sse_generate_stream_v3_queued_keepalive.txt")) if each != ":"
    ]


@pytest.mark.parametrize(
    ("name", "tokens", "settings"),
    [
        ("sse_chat_v3.txt", tokens_of(4, STOP), {}),
        ("sse_chat_v3_include_usage.txt", tokens_of(4, STOP), {"include_usage": True}),
        ("sse_chat_v3_length.txt", tokens_of(2, LENGTH), {}),
    ],
)
def test_a_chat_stream(name, tokens, settings):
    """A chunk for each token, the usage where it was asked for, and the end mark."""
    call = call_of(39, stream=True, **settings)
    got = streamed(ChatShape(call, HEAD, LAST), call, of_one(tokens))
    assert frames_of(got) == frames_of(recorded(name))
    assert b'"usage":{"prompt_tokens":39,"completion_tokens":4,"total_tokens":43}' in got or not settings


def test_two_prompts_share_a_completion_stream():
    """Their chunks alternate, and the last of each has a usage of its own."""
    call = call_of(6, 8, stream=True)
    both = zip(tokens_of(3, LENGTH), tokens_of(3, LENGTH, 1), strict=True)
    tokens = [(choice, token) for pair in both for choice, token in enumerate(pair)]
    got = streamed(CompletionShape(call, HEAD, LAST), call, tokens)
    assert frames_of(got) == frames_of(recorded("sse_completions_v3_two_prompts.txt"))
    assert got.count(b'"usage"') == 2
    assert b'"prompt_tokens":8,"completion_tokens":3,"total_tokens":11' in got


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("sse_generate_stream_v3_oom_midstream.txt", NativeShape(call_of(), LAST)),
        ("sse_chat_v3_oom_midstream.txt", ChatShape(call_of(), HEAD, LAST)),
    ],
)
def test_a_shard_that_dies_ends_a_stream(name, shape):
    """After two tokens comes the error, to the byte, and on OpenAI's routes the end mark."""
    got = streamed(shape, call_of(), of_one(tokens_of(2, None)), out_of_memory())
    assert frames_of(got) == frames_of(recorded(name))
    assert got.split(b"\n\n")[2:] == recorded(name).split(b"\n\n")[2:]


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("sse_generate_stream_v3_overloaded.txt", NativeShape(call_of(), LAST)),
        ("sse_chat_v3_overloaded.txt", ChatShape(call_of(), HEAD, LAST)),
    ],
)
def test_a_stream_that_finds_no_permit(name, shape):
    """It is the error alone, to the byte."""
    assert streamed(shape, call_of(), [], overloaded()) == recorded(name)


def test_a_stream_that_does_not_validate():
    """It is the error alone, to the byte."""
    raw = json.dumps({"inputs": "x", "parameters": {"best_of": 2, "do_sample": True}}).encode()
    with pytest.raises(TgiError) as refused:
        native_call(raw, TgiSimConfig(), stream=True)
    got = streamed(NativeShape(call_of(), LAST), call_of(), [], refused.value)
    assert got == recorded("sse_generate_stream_v3_validation.txt")


@pytest.mark.parametrize(
    ("release", "body"),
    [
        ((2, 4, 1), b'data: {"error":{"message":"Model is overloaded","http_status_code":422}}\n\ndata: [DONE]\n\n'),
        ((2, 4, 0), b'data: {"error":"Model is overloaded","error_type":"overloaded"}\n\ndata: [DONE]\n\n'),
        ((2, 2, 0), b'data: {"error":"Model is overloaded","error_type":"overloaded"}\n\ndata: [DONE]\n\n'),
        ((2, 1, 1), b'data: {"error":"Model is overloaded","error_type":"overloaded"}\n\n'),
        ((2, 0, 4), b'data:{"error":"Model is overloaded","error_type":"overloaded"}\n\n'),
    ],
)
def test_how_releases_write_an_error(release, body):
    """OpenAI's form since 2.4.1, the end mark since 2.2, the space since 2.1."""
    call = call_of(stream=True)
    assert streamed(ChatShape(call, HEAD, release), call, [], overloaded(), release) == body


FOUR = tokens_of(4, LENGTH)


@pytest.mark.parametrize(
    ("name", "shape", "answers", "schema"),
    [
        ("generate_response_v3_no_details.json", NativeShape(call_of(), LAST), [FOUR], "GenerateResponse"),
        ("generate_response_v3_details.json", NativeShape(call_of(details=True), LAST), [FOUR], "GenerateResponse"),
        (
            "generate_response_v3_best_of_2.json",
            NativeShape(call_of(6, 6, details=True), LAST),
            [FOUR, FOUR],
            "GenerateResponse",
        ),
        ("chat_response_v3.json", ChatShape(call_of(39), HEAD, LAST), [tokens_of(4, STOP)], "ChatCompletion"),
        ("completions_response_v3.json", CompletionShape(call_of(), HEAD, LAST), [FOUR], "CompletionFinal"),
    ],
)
def test_whole_answers(name, shape, answers, schema):
    """Keys and types are those of the recording, and both are what TGI's own description says."""
    prompts = [39] if schema == "ChatCompletion" else [6] * len(answers)
    got = msgspec.json.decode(msgspec.json.encode(shape.whole(choices_of(call_of(*prompts), *answers))))
    assert shape_of(got) == shape_of(recorded_json(name))
    assert got.get("usage") == recorded_json(name).get("usage")
    for answer in (got, recorded_json(name)):
        assert violations(answer, SCHEMAS[schema], SCHEMAS) == []


def test_the_answer_of_the_root_is_a_list():
    """Of one, with the prompt before the text."""
    call = call_of(inputs="What is deep learning?", full_text=True)
    got = NativeShape(call, LAST, listed=True).whole(choices_of(call, FOUR))
    assert shape_of(got) == shape_of(recorded_json("root_post_response_v3.json"))
    assert got[0]["generated_text"].startswith("What is deep learning?")


def test_events_are_what_the_description_says():
    """Native ones and those of a chat."""
    call = call_of(stream=True, details=True)
    choices = choices_of(call, tokens_of(2, STOP))
    last = choices[0].tokens[-1]
    native = NativeShape(call, LAST).event(0, last, choices)
    assert violations(native, SCHEMAS["StreamResponse"], SCHEMAS) == []
    assert native["token"]["special"] is True
    chat = ChatShape(call, HEAD, LAST).event(0, last, choices)
    assert violations(chat, SCHEMAS["ChatCompletionChunk"], SCHEMAS) == []


def test_reasons_by_route():
    """What ends by itself is `eos_token` to the native API and to a streamed completion, elsewhere `stop`."""
    call = call_of(stream=True, details=True)
    choices = choices_of(call, tokens_of(1, STOP))
    [token] = choices[0].tokens
    assert NativeShape(call, LAST).event(0, token, choices)["details"]["finish_reason"] == "eos_token"
    completion = CompletionShape(call, HEAD, LAST)
    assert completion.event(0, token, choices)["choices"][0]["finish_reason"] == "eos_token"
    assert completion.whole(choices)["choices"][0]["finish_reason"] == "stop"
    assert ChatShape(call, HEAD, LAST).event(0, token, choices)["choices"][0]["finish_reason"] == "stop"
