"""Answers of `/v1/messages` and `/v1/responses`, against vLLM 0.32.0's recorded ones."""

import json

import pytest

from kvguard.protocols import anthropic_messages, openai_responses
from kvguard.protocols.sse import StreamReader, Usage, read_usage
from kvguard.simulator.config import SimConfig
from kvguard.simulator.text import output_word
from tests.simulator.serving import FAST, serving

pytestmark = pytest.mark.anyio

MESSAGE = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
RESPONSE = {"input": "Hello", "max_output_tokens": 4}
WORDS = [output_word(position) for position in range(4)]

# The names of the recorded events, and of the members of each.
MESSAGE_EVENTS = [
    ("message_start", {"type", "message"}),
    ("content_block_start", {"type", "content_block", "index"}),
    *4 * [("content_block_delta", {"type", "delta", "index"})],
    ("content_block_stop", {"type", "index"}),
    ("message_delta", {"type", "delta", "usage"}),
    ("message_stop", {"type"}),
]
NUMBERED = {"sequence_number", "type"}
PART = NUMBERED | {"content_index", "item_id", "output_index"}
RESPONSE_EVENTS = [
    ("response.created", NUMBERED | {"response"}),
    ("response.in_progress", NUMBERED | {"response"}),
    ("response.output_item.added", NUMBERED | {"item", "output_index"}),
    ("response.content_part.added", PART | {"part"}),
    *4 * [("response.output_text.delta", PART | {"delta", "logprobs"})],
    ("response.output_text.done", PART | {"text", "logprobs"}),
    ("response.content_part.done", PART | {"part"}),
    ("response.output_item.done", NUMBERED | {"item", "output_index"}),
    ("response.completed", NUMBERED | {"response"}),
]


def named(text):
    """Name and payload of every event."""
    pairs = [block.removeprefix("event: ").split("\ndata: ") for block in text.split("\n\n") if block]
    return [(name, json.loads(data)) for name, data in pairs]


async def answers(path, body, **config):
    """The plain answer and the events of the streamed one, with the raw stream."""
    async with serving(SimConfig(**FAST, **config)) as client:
        plain = await client.post(path, json=body)
        streamed = await client.post(path, json=body | {"stream": True})
    assert (plain.status_code, streamed.status_code) == (200, 200)
    assert streamed.headers["content-type"] == "text/event-stream; charset=utf-8"
    return plain.content, named(streamed.text), streamed.content


async def test_a_message():
    """Events, members, usage and text are as recorded, and whole and streamed say the same."""
    plain, events, raw = await answers("/v1/messages", MESSAGE)
    assert [(name, set(data)) for name, data in events] == MESSAGE_EVENTS
    assert all(name == data["type"] for name, data in events)
    assert [data["delta"]["text"] for name, data in events if name == "content_block_delta"] == WORDS
    assert events[0][1]["message"]["usage"] == {"input_tokens": 5, "output_tokens": 0}
    assert events[-2][1]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    whole = json.loads(plain)
    assert set(whole) == {"id", "type", "role", "content", "model", "stop_reason", "usage"}
    assert (whole["content"], whole["stop_reason"]) == ([{"type": "text", "text": "".join(WORDS)}], "max_tokens")
    reader = StreamReader(anthropic_messages.STREAM)
    reader.feed(raw)
    assert (reader.complete, reader.failed, reader.events) == (True, False, 4)
    assert reader.usage() == read_usage(plain) == Usage(prompt_tokens=5, completion_tokens=4)


async def test_a_response():
    """Events, members, numbers, usage and text are as recorded, and whole and streamed say the same."""
    plain, events, raw = await answers("/v1/responses", RESPONSE)
    assert [(name, set(data)) for name, data in events] == RESPONSE_EVENTS
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    assert [data["delta"] for name, data in events if name == "response.output_text.delta"] == WORDS
    whole, last = json.loads(plain), events[-1][1]["response"]
    assert whole["output"][0]["content"][0]["text"] == "".join(WORDS)
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert {**last, "id": "", "output": [], "created_at": 0} == {**whole, "id": "", "output": [], "created_at": 0}
    reader = StreamReader(openai_responses.STREAM)
    reader.feed(raw)
    assert (reader.complete, reader.failed, reader.events) == (True, False, 4)
    assert reader.usage() == read_usage(plain) == Usage(prompt_tokens=5, completion_tokens=4)


async def test_an_answer_that_ends_by_itself():
    """It says so, and its end mark is counted without text."""
    async with serving() as client:
        message = (await client.post("/v1/messages", json=MESSAGE | {"max_tokens": 3000})).json()
        streamed = await client.post("/v1/messages", json=MESSAGE | {"max_tokens": 3000, "stream": True})
        response = (await client.post("/v1/responses", json={"input": "Hello"})).json()
    assert message["stop_reason"] == "end_turn"
    assert (response["status"], response["incomplete_details"]) == ("completed", None)
    events = named(streamed.text)
    deltas = [data for name, data in events if name == "content_block_delta"]
    assert len(deltas) == events[-2][1]["usage"]["output_tokens"] - 1
    assert events[-2][1]["delta"]["stop_reason"] == "end_turn"


async def test_prompts_cost_what_tokenize_says():
    """System, tools and earlier turns count, and ids in their place are the prompt."""
    tool = {"name": "f", "input_schema": {"type": "object"}}
    bodies = [
        ("/v1/messages", MESSAGE | {"system": "be brief"}, True),
        ("/v1/messages", MESSAGE | {"tools": [tool]}, True),
        ("/v1/responses", RESPONSE | {"instructions": "be brief"}, True),
        ("/v1/responses", RESPONSE | {"kv_transfer_params": {"prompt_token_ids": [7] * 9}}, False),
    ]
    async with serving() as client:
        for path, body, counted in bodies:
            usage = (await client.post(path, json=body)).json()["usage"]
            prompt = (
                (anthropic_messages if path == "/v1/messages" else openai_responses)
                .parse(json.dumps(body).encode())
                .prompt
            )
            expected = 9
            if counted:
                chat = {name: json.loads(bytes(value)) for name, value in prompt.fields.items()}
                expected = (await client.post("/tokenize", json=chat)).json()["count"]
            assert usage["input_tokens"] == expected


@pytest.mark.parametrize(
    ("path", "body", "status", "kind", "enveloped"),
    [
        ("/v1/messages", MESSAGE | {"model": "nope"}, 404, "NotFoundError", True),
        ("/v1/messages", {"messages": []}, 400, "Bad Request", False),
        ("/v1/messages", MESSAGE | {"messages": "x"}, 400, "Bad Request", False),
        (
            "/v1/messages",
            MESSAGE | {"messages": [{"role": "user", "content": "x " * 5000}]},
            400,
            "BadRequestError",
            True,
        ),
        ("/v1/responses", RESPONSE | {"model": "nope"}, 404, "NotFoundError", False),
        ("/v1/responses", RESPONSE | {"previous_response_id": "resp_x"}, 404, "NotFoundError", False),
        ("/v1/responses", {"input": 7}, 400, "Bad Request", False),
    ],
)
async def test_errors_have_vllms_shape(path, body, status, kind, enveloped):
    """Anthropic's envelope on its route, but for errors of the schema; OpenAI's object otherwise."""
    async with serving() as client:
        response = await client.post(path, json=body)
    said = response.json()
    assert (response.status_code, said["error"]["type"]) == (status, kind)
    assert set(said) == ({"type", "error"} if enveloped else {"error"})
