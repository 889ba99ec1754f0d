"""One real vLLM for the session, shared by every test here. Marks all of them `vllm`."""

import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from tests.vllm.server import ROOT, VllmServer, last_cpu, vllm_python


def pytest_itemcollected(item: pytest.Item) -> None:
    """Called for the items below this directory only."""
    item.add_marker(pytest.mark.vllm)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def vllm_model() -> Path:
    """The tiny model, written anew: it takes a fraction of a second and always fits its maker."""
    directory = ROOT / ".models" / "tiny"
    if not vllm_python().exists():
        pytest.fail("no vLLM here: run tests/vllm/install.sh", pytrace=False)
    subprocess.run([vllm_python(), Path(__file__).with_name("make_model.py"), directory], check=True)
    return directory


# Without hardware for it bfloat16 takes twice the time, and nothing here depends on the precision.
QUICK = ("--dtype", "float32")
# Tools that a model may call as it likes, and the routes that take and give token ids.
ALL_ROUTES = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--enable-scale-out")


@pytest.fixture(scope="session")
def vllm_server(vllm_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """128 blocks of 32 tokens, so that a few long requests fill the cache, on its own core; token ids may be sent."""
    log_path = tmp_path_factory.mktemp("vllm") / "server.log"
    with VllmServer(
        vllm_model,
        num_blocks=128,
        block_size=32,
        extra_args=(*QUICK, *ALL_ROUTES),
        engine_cpus=last_cpu(),
        log_path=log_path,
    ) as server:
        yield server


@pytest.fixture(scope="session")
def pooling_server(vllm_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """The same model, asked for vectors instead of texts."""
    log_path = tmp_path_factory.mktemp("vllm") / "pooling.log"
    pooling = (*QUICK, "--runner", "pooling", "--convert", "embed")
    with VllmServer(
        vllm_model, num_blocks=128, block_size=32, extra_args=pooling, engine_cpus=last_cpu(), log_path=log_path
    ) as server:
        yield server


@pytest.fixture
def idle_vllm(vllm_server: VllmServer) -> VllmServer:
    """The server with an empty prefix cache, so that no prompt finds blocks of an earlier test."""
    httpx.post(f"{vllm_server.url}/reset_prefix_cache", timeout=10).raise_for_status()
    return vllm_server


@pytest.fixture
async def vllm_client(vllm_server: VllmServer) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=vllm_server.url, timeout=60) as client:
        yield client
