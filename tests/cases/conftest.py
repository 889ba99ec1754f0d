"""Shared by every case: servers stop at once."""

import asyncio
from types import SimpleNamespace

import pytest
import uvicorn.server


@pytest.fixture(autouse=True)
def servers_stop_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvicorn looks for its end every 100 ms and waits as long again; in these tests it does so every millisecond."""
    nap = asyncio.sleep  # noqa: TID251  uvicorn's own pauses, only shorter
    hurried = SimpleNamespace(**{**vars(asyncio), "sleep": lambda seconds: nap(min(seconds, 0.001))})
    monkeypatch.setattr(uvicorn.server, "asyncio", hurried)
