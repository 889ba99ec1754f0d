"""O-20: LoRA names."""

from pathlib import Path

import pytest

from tests.kit.guard import guarding
from tests.kit.stub import Call, Stub, answer_at_once, running_stub
from tests.kit.tokenizer import write_tokenizer

pytestmark = pytest.mark.anyio

NOT_FOUND = {"error": {"message": "The model `nope` does not exist.", "type": "NotFoundError", "code": 404}}


async def served(call: Call) -> None:
    """Answer for the models listed, 404 for any other."""
    if call.hit.json["model"] == "nope":
        await call.reply(404, NOT_FOUND)
    else:
        await answer_at_once(call)


async def test_an_adapter_is_predicted_as_its_base_model(tmp_path: Path) -> None:
    """A request for `ad-1` gets the same prediction as one for `tiny`; one for `nope` gets the engine's own 404."""
    write_tokenizer(tmp_path)
    tokens = {"tokenizers": {"tiny": tmp_path}, "aliases": {"tiny-latest": "tiny"}}
    async with running_stub(Stub(adapters={"ad-1": "tiny"})) as stub, guarding(stub, tokens=tokens) as guard:
        stub.answer = served
        for model in ("tiny", "ad-1", "tiny-latest"):
            assert (await guard.complete("the cache is full " * 20, max_tokens=4, model=model)).status_code == 200
        decisions = [line for line in guard.logs if line["event"] == "decision"]
        assert len({(line["prompt_tokens"], line["predicted_blocks"]) for line in decisions}) == 1
        assert guard.metric("kvguard_token_counts_total", source="local") == 3
        assert [hit.json["model"] for hit in stub.hits] == ["tiny", "ad-1", "tiny-latest"]
        answer = await guard.complete("the cache", max_tokens=4, model="nope")
        assert (answer.status_code, answer.json()) == (404, NOT_FOUND)
        assert guard.metric("kvguard_ledger_blocks", backend="b0") == 0
