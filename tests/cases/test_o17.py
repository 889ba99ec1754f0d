"""O-17: chat template and tools are missing from the count."""

import json
from pathlib import Path

import jinja2
import pytest
from tokenizers import Tokenizer

from tests.kit.guard import CHAT, guarding
from tests.kit.stub import Call, completion, running_stub
from tests.kit.tokenizer import TEMPLATE, write_tokenizer

pytestmark = pytest.mark.anyio

TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Finds a record. " * 30,
        "parameters": {"type": "object", "properties": {"id": {"type": "string"}}},
    },
}
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "tools": [TOOL], "max_tokens": 1}


def rendered_tokens(directory: Path) -> int:
    """The conversation as its template prints it, tokenised: worked out without kvguard."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    variables = {"messages": BODY["messages"], "tools": BODY["tools"], "add_generation_prompt": True}
    text = environment.from_string(TEMPLATE).render(**variables)
    return len(Tokenizer.from_file(str(directory / "tokenizer.json")).encode(text, add_special_tokens=False))


async def test_tools_and_template_are_counted_and_the_error_is_exported(tmp_path: Path) -> None:
    """The prediction is the rendered, tokenised chat; a reply that says 20 more shows as an error of 20."""
    expected = rendered_tokens(write_tokenizer(tmp_path))
    assert len(json.dumps(TOOL)) > 600

    async def twenty_more(call: Call) -> None:
        await call.reply(200, completion(prompt_tokens=expected + 20))

    async with running_stub() as stub, guarding(stub, tokens={"tokenizer": tmp_path}) as guard:
        stub.answer = twenty_more
        assert (await guard.client.post(CHAT, json=BODY)).status_code == 200
        (decision,) = [line for line in guard.logs if line["event"] == "decision"]
        assert decision["prompt_tokens"] == expected
        assert guard.metric("kvguard_token_counts_total", source="local") == 1
        assert guard.metric("kvguard_prompt_error_tokens_sum", source="local") == 20
        assert guard.metric("kvguard_prompt_error_tokens_count", source="local") == 1
        assert not stub.tokenized
