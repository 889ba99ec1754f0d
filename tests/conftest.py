"""Shared by every test: asyncio is the backend of async tests, and what only takes time is done once or at once."""

import asyncio
import functools
import ssl
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import uvicorn.server


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def patch() -> Iterator[pytest.MonkeyPatch]:
    """For the whole session."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="session", autouse=True)
def certificates_read_once(patch: pytest.MonkeyPatch) -> None:
    """Every client httpx makes reads the certificates of all authorities, which takes longer than most tests."""
    patch.setattr(ssl, "create_default_context", functools.cache(ssl.create_default_context))


@pytest.fixture(scope="session", autouse=True)
def sniffio_missed_once(patch: pytest.MonkeyPatch) -> None:
    """httpcore asks for this package at each step, and searches every path where it is not installed."""
    patch.setitem(sys.modules, "sniffio", None)


@pytest.fixture(scope="session", autouse=True)
def servers_stop_at_once(patch: pytest.MonkeyPatch) -> None:
    """uvicorn looks for its end every 100 ms and waits as long again; here it does so every millisecond."""
    nap = asyncio.sleep  # noqa: TID251  uvicorn's own pauses, only shorter
    hurried = SimpleNamespace(**{**vars(asyncio), "sleep": lambda seconds: nap(min(seconds, 0.001))})
    patch.setattr(uvicorn.server, "asyncio", hurried)
