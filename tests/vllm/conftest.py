"""The real engines, shared by every test here. Marks all of them `vllm`, and puts first what can begin first."""

import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from tests.vllm.engines import ENGINES, TINY, Engines
from tests.vllm.public_models import LAYERS
from tests.vllm.server import VllmServer, vllm_python


def pytest_itemcollected(item: pytest.Item) -> None:
    """Called for the items below this directory only."""
    item.add_marker(pytest.mark.vllm)


def engines_of(item: pytest.Item) -> list[str]:
    """The engines a test asks for, in the order in which they start."""
    asked = {*getattr(item, "fixturenames", ())}
    if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
        asked.add(item.callspec.params.get("public_server"))
    return [name for name in ENGINES if name in asked]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """First what needs no engine, then each test when the last of its engines has had time to start."""
    order = [*ENGINES]
    items.sort(key=lambda item: max((order.index(name) for name in engines_of(item)), default=-1))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def vllm_model() -> Path:
    """The tiny model, written anew: it takes a fraction of a second and always fits its maker."""
    if not vllm_python().exists():
        pytest.fail("no vLLM here: run tests/vllm/install.sh", pytrace=False)
    subprocess.run([vllm_python(), Path(__file__).with_name("make_model.py"), TINY], check=True)
    return TINY


@pytest.fixture(scope="session")
def engines(vllm_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    engines = Engines(tmp_path_factory.mktemp("vllm"))
    yield engines
    engines.stop()


@pytest.fixture(scope="session", autouse=True)
def begun_ahead(request: pytest.FixtureRequest) -> None:
    """Every engine that a test of this session will ask for is on its way."""
    asked = {name for item in request.session.items for name in engines_of(item)}
    if asked:
        request.getfixturevalue("engines").begin([name for name in ENGINES if name in asked])


@pytest.fixture(scope="session")
def vllm_server(engines: Engines) -> VllmServer:
    return engines.running("vllm_server")


@pytest.fixture(scope="session")
def pooling_server(engines: Engines) -> VllmServer:
    return engines.running("pooling_server")


@pytest.fixture(scope="session", params=LAYERS, ids=[f"{kind}-{name}" for name, kind in LAYERS.items()])
def public_server(request: pytest.FixtureRequest, engines: Engines) -> VllmServer:
    """One engine after the other, each with another public tokenizer and another kind of layers."""
    return engines.running(request.param)


@pytest.fixture
def idle_vllm(vllm_server: VllmServer) -> VllmServer:
    """The server with an empty prefix cache, so that no prompt finds blocks of an earlier test."""
    httpx.post(f"{vllm_server.url}/reset_prefix_cache", timeout=10).raise_for_status()
    return vllm_server


@pytest.fixture
async def vllm_client(vllm_server: VllmServer) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=vllm_server.url, timeout=60) as client:
        yield client
