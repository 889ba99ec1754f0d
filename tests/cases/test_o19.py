"""O-19: tokenising blocks the event loop. `make bench-tokenize` measures the gaps; here is shown that nobody waits."""

import asyncio
import threading
from pathlib import Path

import pytest

from kvguard.tokenization.segments import SegmentCounter
from tests.kit.guard import guarding
from tests.kit.stub import Driven, running_stub
from tests.kit.tokenizer import write_tokenizer

pytestmark = pytest.mark.anyio

GIANT = "the cache is full of the tokens the model read " * 110_000  # 5 MB
LIMIT = 1_000_000


async def test_a_giant_prompt_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While 5 MB are being counted, for ever, probes answer, a stream runs on and small prompts are counted."""
    counting, released = threading.Event(), threading.Event()
    count = SegmentCounter.count

    def held(self: SegmentCounter, texts: tuple[str, ...], *, special: bool) -> tuple[int, ...]:
        if len(texts[0]) > LIMIT:
            counting.set()
            released.wait(60)
        return count(self, texts, special=special)

    monkeypatch.setattr(SegmentCounter, "count", held)
    tokens = {"tokenizer": write_tokenizer(tmp_path), "exact_max_bytes": 10 * LIMIT, "counter": "local"}
    backend = Driven()
    async with running_stub() as stub, guarding(stub, tokens=tokens) as guard:
        stub.answer = backend
        streaming = asyncio.ensure_future(guard.complete("hi", max_tokens=9, stream=True))
        call = await backend.call()
        await call.start_stream()
        giant = asyncio.ensure_future(guard.complete(GIANT, max_tokens=1))
        try:
            await asyncio.get_running_loop().run_in_executor(None, counting.wait, 30)
            for _ in range(3):
                await call.token()
                assert (await guard.admin.get("/healthz")).status_code == 200
            small = asyncio.ensure_future(guard.complete("the cache is full " * 40, max_tokens=1))
            other = await backend.call()
            await other.reply(200, {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})
            backend.done(other)
            assert (await small).status_code == 200
            assert not giant.done()
            await call.end_stream()
            backend.done(call)
            assert (await streaming).status_code == 200
            assert guard.metric("kvguard_token_counts_total", source="local") == 2
        finally:
            released.set()
            giant.cancel()
