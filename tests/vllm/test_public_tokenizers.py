"""The local and the engine's counter against the real vLLM with tokenizers and chat templates of public models."""

from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from kvguard.tokenization.engine import EngineCounter
from kvguard.tokenization.local import load_local_counter
from tests.vllm import corpus
from tests.vllm.public_models import CONTEXT_TOKENS, TOKENIZERS, public_templates, write_public_model
from tests.vllm.server import MODEL_NAME, VllmServer
from tests.vllm.test_tokens import Body, chat_directory, differences, tokenize_reads_as_chat

pytestmark = pytest.mark.anyio
CHATS_PER_TEMPLATE = 25
USAGE_SAMPLE = 30


@pytest.fixture(scope="module")
def directories(vllm_model: Path) -> dict[str, Path]:
    """A model directory for each tokenizer."""
    return {name: write_public_model(name, vllm_model.parent / name) for name in TOKENIZERS}


@pytest.fixture(scope="module")
def servers(directories: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, VllmServer]]:
    """All of them at once: what takes time is starting."""
    logs = tmp_path_factory.mktemp("vllm-public")
    with ExitStack() as stack, ThreadPoolExecutor() as threads:
        made = {
            name: VllmServer(
                directory,
                num_blocks=CONTEXT_TOKENS // 32 + 2,
                max_model_len=CONTEXT_TOKENS,
                log_path=logs / f"{name}.log",
                extra_args=("--trust-request-chat-template", "--enable-scale-out"),
            )
            for name, directory in directories.items()
        }
        for server in made.values():
            stack.callback(server.stop)
        list(threads.map(VllmServer.start, made.values()))
        yield made


@asynccontextmanager
async def client_of(server: VllmServer) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        yield client


def text_bodies() -> list[Body]:
    """Every completion of the corpus, and a few with more text than the tokenizer files say to cut at."""
    texts = [str(body["prompt"]) for body in corpus.completions()]
    long = [" ".join(texts[start::40]) for start in range(40)]
    return [{"prompt": text, "add_special_tokens": special} for text in [*texts, *long] for special in (True, False)]


@pytest.mark.parametrize("name", TOKENIZERS)
async def test_a_public_tokenizer_counts_as_tokenize_says(
    servers: dict[str, VllmServer], directories: dict[str, Path], name: str
) -> None:
    """All texts and conversations of the corpus have the tokens the engine gives them."""
    async with client_of(servers[name]) as client:

        async def engine(body: Body) -> int | None:
            answer = await client.post("/tokenize", json={"model": MODEL_NAME, **body})
            return int(answer.json()["count"]) if answer.status_code == 200 else None

        bodies = [*text_bodies(), *filter(tokenize_reads_as_chat, corpus.chats())]
        counted, wrong = await differences(load_local_counter(directories[name]), bodies, engine)
    assert wrong == []
    assert counted >= 700


@pytest.mark.parametrize("name", TOKENIZERS)
async def test_both_counters_say_what_the_engine_bills(
    servers: dict[str, VllmServer], directories: dict[str, Path], name: str
) -> None:
    """For a sample spread over the corpus, both counts are usage.prompt_tokens of the request itself."""
    async with client_of(servers[name]) as client:

        async def billed(body: Body) -> int | None:
            path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
            answer = await client.post(path, json={"model": MODEL_NAME, **body, "max_tokens": 1})
            return int(answer.json()["usage"]["prompt_tokens"]) if answer.status_code == 200 else None

        async def post(path: str, body: bytes, model: str | None) -> tuple[int, bytes]:
            answer = await client.post(path, content=body, headers={"content-type": "application/json"})
            return answer.status_code, answer.content

        texts, chats = text_bodies(), [body for body in corpus.chats() if tokenize_reads_as_chat(body)]
        sample = [*texts[:: len(texts) // 21 | 1], *chats[:: len(chats) // 25]]
        for counter in (load_local_counter(directories[name]), EngineCounter(post, timeout_seconds=30)):
            counted, wrong = await differences(counter, sample, billed)
            assert wrong == []
            assert counted >= USAGE_SAMPLE


async def test_public_chat_templates_render_as_on_the_engine(
    servers: dict[str, VllmServer], directories: dict[str, Path], tmp_path: Path
) -> None:
    """Under some sixty public templates conversations have the tokens the chat route shows, refusals apart."""
    chats = [{name: value for name, value in body.items() if name != "chat_template"} for body in corpus.chats()]
    wrong: dict[str, list[str]] = {}
    total = 0
    templates = public_templates()
    async with client_of(servers["deepseek"]) as client:
        for offset, (model, source) in enumerate(templates.items()):

            async def engine(body: Body, source: str = source) -> int | None:
                request = {"model": MODEL_NAME, **body, "chat_template": source}
                answer = await client.post("/v1/chat/completions/render", json=request)
                return len(answer.json()["token_ids"]) if answer.status_code == 200 else None

            sample = chats[offset % 7 :: len(chats) // CHATS_PER_TEMPLATE]
            counter = load_local_counter(chat_directory(directories["deepseek"], source, tmp_path))
            counted, differing = await differences(counter, sample, engine)
            total += counted
            wrong |= {model: differing} if differing else {}
    assert wrong == {}
    assert len(templates) >= 60
    assert total >= len(templates) * CHATS_PER_TEMPLATE / 2
