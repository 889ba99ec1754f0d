"""Streams whose clients did not ask for usage: the engine is asked, kvguard learns, and the client sees nothing."""

import json

import pytest

from tests.kit.guard import CHAT, COMPLETIONS, Guard, guarding
from tests.kit.stub import Call, Stub, completion, exposition, running_stub

pytestmark = pytest.mark.anyio

EVENTS = (
    b'data: {"choices": [{"index": 0, "text": " x", "finish_reason": null}]}\n\n'
    b'data: {"choices": [{"index": 0, "text": " y", "finish_reason": "length"}]}\n\n'
)
USAGE = b"data: " + json.dumps({"choices": [], "usage": completion(7, 2)["usage"]}).encode() + b"\n\n"
DONE = b"data: [DONE]\n\n"
ASKED = {"include_usage": True}


async def obedient(call: Call) -> None:
    """As vLLM does: usage where it is asked for."""
    await call.start_stream()
    await call.chunk(EVENTS)
    if (call.hit.json.get("stream_options") or {}).get("include_usage"):
        await call.chunk(USAGE)
    await call.chunk(DONE)
    await call.raw(b"0\r\n\r\n")


def generated(guard: Guard) -> float | None:
    return guard.metric("kvguard_tokens_total", kind="generated")


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize(
    ("options", "forwarded", "seen"),
    [
        ({}, ASKED, False),
        ({"stream_options": None}, ASKED, False),
        ({"stream_options": {}}, ASKED, False),
        ({"stream_options": {"include_usage": False}}, ASKED, False),
        ({"stream_options": {"chunk": 3}}, {"chunk": 3, **ASKED}, False),
        # Which says nothing by itself, and beside the other would put usage into every chunk.
        ({"stream_options": {"continuous_usage_stats": True}}, {"continuous_usage_stats": False, **ASKED}, False),
        ({"stream_options": {"include_usage": True}}, ASKED, True),
        ({"stream_options": {"include_usage": "true"}}, {"include_usage": "true"}, True),
    ],
)
async def test_usage_is_asked_for_and_taken_out_again(path: str, options: dict, forwarded: dict, seen: bool) -> None:
    """The client gets the stream it asked for, tokens are counted either way, and other fields stay as they came."""
    async with running_stub(Stub(answer=obedient)) as stub, guarding(stub) as guard:
        body = {"prompt": [1]} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "hi"}]}
        asked = {"temperature": 0.30, **body, "stream": True, **options}
        answer = await guard.client.post(path, json=asked)
        assert answer.content == EVENTS + (USAGE if seen else b"") + DONE
        assert stub.hits[-1].json == {**asked, "stream_options": forwarded}
        if seen:
            assert stub.hits[-1].body == answer.request.content
        assert generated(guard) == 2


@pytest.mark.parametrize("sections", [{"streams": {"ask_usage": False}}, {"mode": "shadow"}])
async def test_nothing_is_asked_where_it_is_switched_off_or_only_watched(sections: dict) -> None:
    """The request passes byte for byte, and its tokens are not known."""
    async with running_stub(Stub(answer=obedient)) as stub, guarding(stub, **sections) as guard:
        answer = await guard.complete(stream=True)
        assert answer.content == EVENTS + DONE
        assert stub.hits[-1].body == answer.request.content
        assert not generated(guard)


async def test_a_plain_request_is_not_touched() -> None:
    """Only streams hide their usage; options without one are the engine's to refuse."""
    async with running_stub(Stub()) as stub, guarding(stub) as guard:
        answer = await guard.complete(stream_options={"include_usage": False})
        assert stub.hits[-1].body == answer.request.content


@pytest.mark.parametrize("option", ["include_usage", "continuous_usage_stats"])
async def test_options_that_are_no_truth_value_are_refused(option: str) -> None:
    """As by the engine."""
    async with running_stub(Stub()) as stub, guarding(stub) as guard:
        answer = await guard.complete(stream=True, stream_options={option: "perhaps"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, option)
        assert not stub.hits


async def test_a_trimmed_stream_asks_too() -> None:
    """Both changes reach the engine; only the trim is announced."""
    async with running_stub(Stub(page=exposition(0.75), answer=obedient)) as stub, guarding(stub) as guard:
        answer = await guard.complete(stream=True, max_tokens=1000)
        assert answer.headers["x-kvguard-degraded"].startswith("max_tokens=1000->")
        assert stub.hits[-1].json["stream_options"] == ASKED
        assert answer.content == EVENTS + DONE


async def test_a_stream_that_breaks_while_its_end_is_kept_back_loses_nothing() -> None:
    """What was kept back is passed on before the error, and there is no success."""

    async def breaks(call: Call) -> None:
        await call.start_stream()
        await call.chunk(EVENTS)
        call.reset()

    async with running_stub(Stub(answer=breaks)) as stub, guarding(stub) as guard:
        answer = await guard.complete(stream=True)
        assert answer.content.startswith(EVENTS)
        assert b'"error"' in answer.content[len(EVENTS) :]
        assert DONE not in answer.content
        assert guard.backend.ledger.live == 0
