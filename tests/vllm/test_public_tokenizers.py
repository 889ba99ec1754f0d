"""The local and the engine's counter against the real vLLM with tokenizers and chat templates of public models."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from kvguard.tokenization import directory
from kvguard.tokenization.directory import read_config, read_tokenizer
from kvguard.tokenization.engine import EngineCounter
from kvguard.tokenization.local import load_local_counter
from tests.vllm import corpus
from tests.vllm.public_models import public_templates
from tests.vllm.server import MODEL_NAME, VllmServer
from tests.vllm.test_tokens import Body, chat_directory, differences, tokenize_reads_as_chat

pytestmark = pytest.mark.anyio
CHATS_PER_TEMPLATE = 25
USAGE_SAMPLE = 30


@asynccontextmanager
async def client_of(server: VllmServer) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, timeout=180) as client:
        yield client


def text_bodies() -> list[Body]:
    """Every completion of the corpus, and a few with more text than the tokenizer files say to cut at."""
    texts = [str(body["prompt"]) for body in corpus.completions()]
    long = [" ".join(texts[start::40]) for start in range(40)]
    return [{"prompt": text, "add_special_tokens": special} for text in [*texts, *long] for special in (True, False)]


async def test_a_public_tokenizer_counts_as_tokenize_says(public_server: VllmServer) -> None:
    """All texts and conversations of the corpus have the tokens the engine gives them."""
    async with client_of(public_server) as client:

        async def engine(body: Body) -> int | None:
            answer = await client.post("/tokenize", json={"model": MODEL_NAME, **body})
            return int(answer.json()["count"]) if answer.status_code == 200 else None

        bodies = [*text_bodies(), *filter(tokenize_reads_as_chat, corpus.chats())]
        counted, wrong = await differences(load_local_counter(public_server.model_dir), bodies, engine)
    assert wrong == []
    assert counted >= 700


async def test_both_counters_say_what_the_engine_bills(public_server: VllmServer) -> None:
    """For a sample spread over the corpus, both counts are usage.prompt_tokens of the request itself."""
    async with client_of(public_server) as client:
        bills: dict[str, int | None] = {}

        async def billed(body: Body) -> int | None:
            """Asked for once, whoever is compared with it."""
            asked = json.dumps(body)
            if asked not in bills:
                path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
                answer = await client.post(path, json={"model": MODEL_NAME, **body, "max_tokens": 1})
                bills[asked] = int(answer.json()["usage"]["prompt_tokens"]) if answer.status_code == 200 else None
            return bills[asked]

        async def post(path: str, body: bytes, model: str | None) -> tuple[int, bytes]:
            answer = await client.post(path, content=body, headers={"content-type": "application/json"})
            return answer.status_code, answer.content

        texts, chats = text_bodies(), [body for body in corpus.chats() if tokenize_reads_as_chat(body)]
        sample = [*texts[:: len(texts) // 21 | 1], *chats[:: len(chats) // 25]]
        for counter in (load_local_counter(public_server.model_dir), EngineCounter(post, timeout_seconds=30)):
            counted, wrong = await differences(counter, sample, billed)
            assert wrong == []
            assert counted >= USAGE_SAMPLE


@pytest.mark.parametrize("public_server", ["deepseek"], indirect=True)
async def test_public_chat_templates_render_as_on_the_engine(
    public_server: VllmServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under some sixty public templates conversations have the tokens the chat route shows, refusals apart."""
    chats = [{name: value for name, value in body.items() if name != "chat_template"} for body in corpus.chats()]
    wrong: dict[str, list[str]] = {}
    total = 0
    templates = public_templates()
    tokenizer = read_tokenizer(public_server.model_dir / "tokenizer.json", read_config(public_server.model_dir))
    # The same under every template, and large.
    monkeypatch.setattr(directory, "read_tokenizer", lambda file, config: tokenizer)
    async with client_of(public_server) as client:
        for offset, (model, source) in enumerate(templates.items()):

            async def engine(body: Body, source: str = source) -> int | None:
                request = {"model": MODEL_NAME, **body, "chat_template": source}
                answer = await client.post("/v1/chat/completions/render", json=request)
                return len(answer.json()["token_ids"]) if answer.status_code == 200 else None

            sample = chats[offset % 7 :: len(chats) // CHATS_PER_TEMPLATE]
            counter = load_local_counter(chat_directory(public_server.model_dir, source, tmp_path))
            counted, differing = await differences(counter, sample, engine)
            total += counted
            wrong |= {model: differing} if differing else {}
    assert wrong == {}
    assert len(templates) >= 60
    assert total >= len(templates) * CHATS_PER_TEMPLATE / 2
