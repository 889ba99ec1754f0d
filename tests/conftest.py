"""Shared by every test: asyncio is the backend of async tests, and nothing is looked up anew for each of them."""

import functools
import ssl
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def certificates_read_once() -> Iterator[None]:
    """Every client httpx makes reads the certificates of all authorities, which takes longer than most tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", functools.cache(ssl.create_default_context))
        yield


@pytest.fixture(scope="session", autouse=True)
def no_sniffio() -> Iterator[None]:
    """httpcore asks for this package at each step and searches every path for it where it is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "sniffio", None)
        yield
