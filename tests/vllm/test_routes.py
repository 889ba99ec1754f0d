"""Messages, responses and invocations in front of the real vLLM: counted, followed, trimmed and refused as they are."""

import json

import httpx
import pytest

from kvguard.protocols.routes import VLLM
from kvguard.protocols.sse import StreamReader, read_usage
from tests.kit.dialects import INVOCATIONS, MESSAGES, RESPONSES
from tests.vllm.server import VllmServer
from tests.vllm.test_proxy import MODEL, guarded

pytestmark = pytest.mark.anyio

TEXT = "The quick brown fox jumps over the lazy dog. " * 8
TURNS = [
    {"role": "user", "content": TEXT},
    {"role": "assistant", "content": "Yes?"},
    {"role": "user", "content": [{"type": "text", "text": "Go on, "}, {"type": "text", "text": "naïve café."}]},
]
SYSTEM = [{"type": "text", "text": "Be brief. "}, {"type": "text", "text": "Be kind."}]
BODIES = [
    (MESSAGES, "max_tokens", {"messages": TURNS, "system": SYSTEM}),
    (MESSAGES, "max_tokens", {"messages": [{"role": "user", "content": "Hello"}]}),
    (MESSAGES, "max_tokens", {"messages": [*TURNS, {"role": "system", "content": "Now."}, TURNS[0]]}),
    (RESPONSES, "max_output_tokens", {"input": TEXT, "instructions": "Be brief."}),
    (RESPONSES, "max_output_tokens", {"input": [TURNS[0], {"role": "assistant", "content": "Yes?"}, TURNS[0]]}),
    (INVOCATIONS, "max_tokens", {"messages": TURNS[:1]}),
    (INVOCATIONS, "max_tokens", {"prompt": TEXT}),
]


def bodies(**fields: object) -> list[tuple[str, str, dict[str, object]]]:
    return [(path, cap, {"model": MODEL, "temperature": 0, **body, **fields}) for path, cap, body in BODIES]


async def test_what_is_counted_is_what_the_engine_bills(vllm_server: VllmServer) -> None:
    """The prompt to the token, whole and streamed, and a stream has no more events than the answer has tokens."""
    async with guarded(vllm_server) as guard:
        for path, cap, body in bodies(ignore_eos=True):
            plain = await guard.client.post(path, json={**body, cap: 20})
            assert plain.status_code == 200, plain.text
            usage = read_usage(plain.content)
            assert usage is not None
            assert guard.decision(plain)["prompt_tokens"] == usage.prompt_tokens, body
            streamed = await guard.client.post(path, json={**body, cap: 20, "stream": True})
            reader = StreamReader(VLLM.generating[path].stream)
            reader.feed(streamed.content)
            assert (reader.complete, reader.failed) == (True, False), streamed.text
            # The engine was asked for the usage of the OpenAI streams, and it was taken out again.
            assert reader.usage() in (None, usage)
            # Tokens that come while the server is busy share an event; the OpenAI streams have two more.
            assert 0 < reader.events <= usage.completion_tokens + 2, streamed.text
        ended = [line for line in guard.logs if line["event"] == "end" and line["end"] == "complete"]
        assert len(ended) == 2 * len(BODIES)
        assert guard.backend.ledger.live == 0


@pytest.mark.parametrize("at", [{"trim_at": 0.001}, {"trim_at": 0.001, "restrict_at": 0.002}])
async def test_a_trimmed_request_is_one_the_engine_takes(vllm_server: VllmServer, at: dict[str, float]) -> None:
    """Under TRIM and RESTRICT the cap is lowered by its own name, and the answer ends there."""
    async with guarded(vllm_server, tiers={"exit_margin": 0.0, **at}) as guard:
        for path, cap, body in bodies(ignore_eos=True):
            answer = await guard.client.post(path, json={**body, cap: 200})
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-kvguard-tier"] == str(len(at))
            assert answer.headers["x-kvguard-degraded"] == f"{cap}=200->100"
            usage = read_usage(answer.content)
            # The engine does not read `ignore_eos` of messages.
            assert usage is not None
            assert usage.completion_tokens == 100 or path == MESSAGES


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (MESSAGES, {"messages": TURNS[:1], "max_tokens": 1}),
        (MESSAGES, {"messages": TURNS[:1]}),
        (MESSAGES, {"messages": TURNS[:1], "max_tokens": 0}),
        (MESSAGES, {"messages": [{"role": "tool", "content": "x"}], "max_tokens": 1}),
        (MESSAGES, {"messages": TURNS[:1], "max_tokens": 1, "n": 3, "truncate_prompt_tokens": 1, "min_tokens": 9}),
        (RESPONSES, {"input": "x", "max_output_tokens": 1, "truncation": "auto"}),
        (RESPONSES, {"input": "x", "max_output_tokens": 1, "truncation": None}),
        (RESPONSES, {"input": "x", "max_output_tokens": 1, "truncation": "middle"}),
        (RESPONSES, {"input": "x", "max_output_tokens": 0}),
        (RESPONSES, {"input": "x", "max_output_tokens": 1, "n": 3, "min_tokens": 9}),
        (RESPONSES, {"input": "x", "max_output_tokens": 1, "background": True}),
        (RESPONSES, {"input": "x", "previous_response_id": "resp_none"}),
        (INVOCATIONS, {"max_tokens": 1}),
        (INVOCATIONS, {"messages": TURNS[:1], "max_tokens": 0}),
    ],
)
async def test_kvguard_and_the_engine_take_and_refuse_the_same(
    vllm_server: VllmServer, vllm_client: httpx.AsyncClient, path: str, body: dict[str, object]
) -> None:
    """With the same class of status, and the same shape where it is the engine's that passes."""
    async with guarded(vllm_server) as guard:
        own = await vllm_client.post(path, json={"model": MODEL, **body})
        ours = await guard.client.post(path, json={"model": MODEL, **body})
        assert ours.status_code == own.status_code, (own.text, ours.text)
        assert ours.status_code != 400 or "error" in json.loads(ours.content)
