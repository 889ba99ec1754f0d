"""O-18: images counted as text."""

import json
from pathlib import Path

import pytest

from tests.kit.guard import CHAT, guarding
from tests.kit.stub import running_stub
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
