"""The local counter against the real vLLM: every form of prompt, five chat templates, and the usage it bills."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import httpx
import msgspec
import pytest

from kvguard.tokenization.counter import CountFailed, TokenCounter
from kvguard.tokenization.local import load_local_counter
from tests.vllm import corpus
from tests.vllm.server import MODEL_NAME
from tests.vllm.templates import TEMPLATES

pytestmark = pytest.mark.anyio
PARALLEL = 8
MAX_SHOWN = 10
USAGE_SAMPLE = 25
CONTEXT_TOKENS = 2048

Body = corpus.Body
# What the engine counts for a body; None where it refuses the request.
Count = Callable[[Body], Awaitable[int | None]]


async def count_of(counter: TokenCounter, body: Body) -> int | None:
    """Tokens by the counter, None where it leaves the prompt to another."""
    fields = {name: msgspec.Raw(json.dumps(value).encode()) for name, value in body.items()}
    try:
        if "prompt" in body:
            options = {name: fields[name] for name in ("add_special_tokens",) if name in fields}
            return (await counter.count_text((str(body["prompt"]),), options))[0]
        return (await counter.count_chats((fields,), {}))[0]
    except CountFailed:
        return None


async def differences(counter: TokenCounter, bodies: Iterable[Body], engine: Count) -> tuple[int, list[str]]:
    """How many bodies the engine counted, and those it counted otherwise."""
    gate = asyncio.Semaphore(PARALLEL)

    async def compare(body: Body) -> tuple[int | None, int | None, Body]:
        async with gate:
            return await count_of(counter, body), await engine(body), body

    compared = await asyncio.gather(*map(compare, bodies))
    counted = [(mine, theirs, body) for mine, theirs, body in compared if theirs is not None]
    wrong = [f"{mine} for {theirs}: {json.dumps(body)[:400]}" for mine, theirs, body in counted if mine != theirs]
    return len(counted), wrong[:MAX_SHOWN]


def tokenize_reads_as_chat(body: Body) -> bool:
    """Whether `/tokenize` renders a conversation as the chat route does: it lacks some of that route's fields."""
    absent = ("documents", "reasoning_effort", "response_format", "echo")
    return "reasoning_content" not in json.dumps(body) and not any(name in body for name in absent)


async def test_every_prompt_counts_as_tokenize_says(vllm_client: httpx.AsyncClient, vllm_model: Path) -> None:
    """All completions and conversations of the corpus that `/tokenize` takes have the tokens it gives them."""

    async def engine(body: Body) -> int | None:
        answer = await vllm_client.post("/tokenize", json={"model": MODEL_NAME, **body})
        return int(answer.json()["count"]) if answer.status_code == 200 else None

    bodies = list(corpus.completions())
    bodies += [body for body in corpus.chats() if tokenize_reads_as_chat(body)]
    counted, wrong = await differences(load_local_counter(vllm_model), bodies, engine)
    assert wrong == []
    assert counted >= 500


async def test_counts_are_what_the_engine_bills(vllm_client: httpx.AsyncClient, vllm_model: Path) -> None:
    """For a sample spread over the corpus, the count is usage.prompt_tokens of the request itself."""

    async def engine(body: Body) -> int | None:
        path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
        answer = await vllm_client.post(path, json={"model": MODEL_NAME, **body, "max_tokens": 1})
        return int(answer.json()["usage"]["prompt_tokens"]) if answer.status_code == 200 else None

    texts = list(corpus.completions())
    chats = list(corpus.chats())
    sample = [*texts[:: len(texts) // 10], *chats[:: len(chats) // 25]]
    counted, wrong = await differences(load_local_counter(vllm_model), sample, engine)
    assert wrong == []
    assert counted >= USAGE_SAMPLE


def chat_directory(model: Path, source: str, directory: Path) -> Path:
    """The model's tokenizer with another chat template."""
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        (directory / name).write_bytes((model / name).read_bytes())
    (directory / "chat_template.jinja").write_text(source)
    return directory


@pytest.mark.parametrize("name", TEMPLATES)
async def test_every_conversation_counts_as_the_chat_route_renders_it(
    vllm_client: httpx.AsyncClient, vllm_model: Path, tmp_path: Path, name: str
) -> None:
    """Under each family's template all conversations have the tokens the chat route shows, refusals apart."""
    source = TEMPLATES[name]

    async def engine(body: Body) -> int | None:
        request = {"model": MODEL_NAME, **body, "chat_template": source}
        answer = await vllm_client.post("/v1/chat/completions/render", json=request)
        return len(answer.json()["token_ids"]) if answer.status_code == 200 else None

    counter = load_local_counter(chat_directory(vllm_model, source, tmp_path))
    bodies = [{name: value for name, value in body.items() if name != "chat_template"} for body in corpus.chats()]
    counted, wrong = await differences(counter, bodies, engine)
    assert wrong == []
    assert counted >= (300 if name == "alternating" else 600)
