"""What real clients do when kvguard refuses: they come back when it said, and stay away when it said that is pointless.

The engine is a stub that is full first and free afterwards; time is real, since the clients wait by themselves.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator

import pytest

from tests.kit.stub import Call, Stub, completion, exposition, running_stub
from tests.vllm.client_scripts import run_client
from tests.vllm.hop import RecordingHop, recording_hop
from tests.vllm.test_proxy import guarded

pytestmark = pytest.mark.anyio

# More than any of them waits before its first retry if it is told nothing; curl reads whole seconds.
RETRY_SECONDS = 1.6
WHOLE_SECONDS = 2
SLACK_SECONDS = 30.0  # of a busy machine
REJECT = {"retry_min_seconds": RETRY_SECONDS, "retry_max_seconds": RETRY_SECONDS, "retry_spread": 0}

FULL, FREE = exposition(0.99), exposition(0.0)

MESSAGE = {
    "id": "x",
    "type": "message",
    "role": "assistant",
    "model": "tiny",
    "content": [{"type": "text", "text": " x"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 1, "output_tokens": 1},
}
COMPLETION = {"id": "x", "created": 1, "model": "tiny", "usage": completion(16, 1)["usage"]}


async def answer(call: Call) -> None:
    """One word, in the form of the route."""
    if call.hit.target == "/v1/messages":
        await call.reply(200, MESSAGE)
        return
    said = {"role": "assistant", "content": " x"}
    if not call.hit.json.get("stream"):
        choice = {"index": 0, "message": said, "finish_reason": "stop"}
        await call.reply(200, {**COMPLETION, "object": "chat.completion", "choices": [choice]})
        return
    await call.start_stream()
    choice = {"index": 0, "delta": said, "finish_reason": "stop"}
    await call.event({**COMPLETION, "object": "chat.completion.chunk", "choices": [choice]})
    await call.end_stream()


@contextlib.asynccontextmanager
async def in_front_of(stub: Stub, **reject: object) -> AsyncIterator[RecordingHop]:
    """A hop for clients, before a kvguard with a short time to wait, before the stub."""
    reject = {**REJECT, **reject}
    async with running_stub(stub), guarded(stub, reject=reject) as guard, recording_hop(guard.service.port) as hop:
        yield hop
        print(hop.transcript())


# A call of each, and how long it waits by which header.
RETRYING = [
    ("openai_sdk", "chat", RETRY_SECONDS),
    ("openai_sdk", "chat streamed", RETRY_SECONDS),
    ("anthropic_sdk", "message", RETRY_SECONDS),
    ("langchain_chat", "chat", RETRY_SECONDS),
    ("litellm_sdk", "chat", RETRY_SECONDS),
    ("curl", "chat with retries", WHOLE_SECONDS),
]


@pytest.mark.parametrize(("client", "call", "seconds"), RETRYING)
async def test_a_refused_client_comes_back_when_it_was_told_to(client: str, call: str, seconds: float) -> None:
    """It waits as long as the headers say, not as long as it would by itself, and is served then."""
    stub = Stub(page=FULL, answer=answer)
    async with in_front_of(stub) as hop, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(run_client(client, hop.url, call))
        await hop.until(lambda: len(hop.passed) == 1)
        stub.page = FREE
        told = await running
    refused, *others = hop.passed
    assert [one.answer.status for one in others][-1:] == [200], told.text
    assert refused.answer.status == 503
    assert refused.answer.headers["retry-after-ms"] == str(round(RETRY_SECONDS * 1000))
    assert refused.answer.headers["retry-after"] == str(WHOLE_SECONDS)
    for before, after in itertools.pairwise(hop.passed):
        assert seconds <= after.at - before.at < seconds + SLACK_SECONDS
    assert told.outcomes[call]["content"] == " x"


GIVING_UP = [
    ("openai_sdk", "chat", "InternalServerError", 3),
    ("anthropic_sdk", "message", "ServiceUnavailableError", 3),
    ("curl", "chat", "CalledProcessError", 1),
]


@pytest.mark.parametrize(("client", "call", "error", "tries"), GIVING_UP)
async def test_a_client_that_is_refused_again_and_again_gives_up(
    client: str, call: str, error: str, tries: int
) -> None:
    """After two retries the SDKs raise their error for an overloaded server."""
    async with in_front_of(Stub(page=FULL)) as hop:
        told = await run_client(client, hop.url, call)
    assert [one.answer.status for one in hop.passed] == [503] * tries
    assert told.outcomes[call]["error"] == error


NOT_RETRYING = [
    ("openai_sdk", "chat", "BadRequestError"),
    ("anthropic_sdk", "message", "BadRequestError"),
    ("langchain_chat", "chat", "OpenAIInvalidRequestError"),
    ("litellm_sdk", "chat", "BadRequestError"),
    ("curl", "chat with retries", "CalledProcessError"),
]


@pytest.mark.parametrize(("client", "call", "error"), NOT_RETRYING)
async def test_a_prompt_that_never_fits_is_sent_once(client: str, call: str, error: str) -> None:
    """The 400 says that another try is pointless, and no client makes one."""
    stub = larger_than_the_cache()
    async with in_front_of(stub) as hop:
        told = await run_client(client, hop.url, call)
    (only,) = hop.passed
    assert (only.answer.status, only.answer.headers["x-kvguard-reason"]) == (400, "too_large")
    assert only.answer.headers["x-should-retry"] == "false"
    assert "retry-after" not in only.answer.headers
    assert told.outcomes[call]["error"] == error
    assert not stub.hits


def larger_than_the_cache() -> Stub:
    """An engine to which every prompt has more tokens than there is room for."""
    return Stub(page=exposition(0.0, blocks=100, block_size=16), tokens=1700, context_tokens=4096)


@pytest.mark.parametrize(("client", "call"), [("openai_sdk", "chat"), ("anthropic_sdk", "message")])
async def test_the_header_alone_keeps_an_sdk_from_another_try(client: str, call: str) -> None:
    """Even of a status that it retries otherwise."""
    async with in_front_of(larger_than_the_cache(), status={"too_large": 503}) as hop:
        await run_client(client, hop.url, call)
    assert [one.answer.status for one in hop.passed] == [503]
