"""Shared by every test: asyncio is the backend of async tests."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
