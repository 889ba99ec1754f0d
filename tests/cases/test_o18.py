"""O-18: images counted as text."""

import json
from pathlib import Path

import pytest

from tests.kit.guard import CHAT, guarding
from tests.kit.stub import Stub, exposition, running_stub
from tests.kit.tokenizer import write_tokenizer

pytestmark = pytest.mark.anyio

WORDS = "what is in this picture and what does it say about caches"
PAYLOAD = "data:image/png;base64," + "iVBORw0KGgoAAAANSUhEUg" + "A" * 2_500_000


@pytest.mark.parametrize("local", [True, False])
async def test_a_picture_is_allowed_for_and_never_tokenised(tmp_path: Path, local: bool) -> None:
    """Twelve words and 2.5 million characters of picture are below 10,000 tokens and more than the text alone."""
    tokens = {"tokenizer": write_tokenizer(tmp_path)} if local else {}
    picture = {"type": "image_url", "image_url": {"url": PAYLOAD}}
    with_picture = {
        "model": "tiny",
        "max_tokens": 1,
        "messages": [{"role": "user", "content": [{"type": "text", "text": WORDS}, picture]}],
    }
    body = json.dumps(with_picture).encode()
    async with running_stub() as stub, guarding(stub, tokens=tokens) as guard:
        alone = await guard.chat(WORDS, max_tokens=1)
        answer = await guard.client.post(CHAT, content=body)
        assert (alone.status_code, answer.status_code) == (200, 200)
        text, both = [line["prompt_tokens"] for line in guard.logs if line["event"] == "decision"]
        assert text < both < 10_000
        assert stub.hits[-1].body == body
        assert not any(b"AAAAAAAA" in hit.body for hit in stub.tokenized)


@pytest.mark.parametrize(
    "content", ["hi", [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}], "x" * 26_000]
)
async def test_headroom_does_not_save_an_answer_from_being_shortened(content: object) -> None:
    """At 0.75 a cap of 1024 goes out as 512, with a picture of unknown size and a guessed text as with two letters."""
    stub = Stub(page=exposition(0.75, blocks=100_000), context_tokens=8192)
    body = {"model": "tiny", "max_tokens": 1024, "messages": [{"role": "user", "content": content}]}
    async with running_stub(stub), guarding(stub, tokens={"engine_max_bytes": 10_000}) as guard:
        answer = await guard.client.post(CHAT, json=body)
        assert answer.headers["x-kvguard-degraded"] == "max_tokens=1024->512"
        assert stub.hits[-1].json["max_tokens"] == 512
