"""Processes that tests start: ready when a page of theirs answers, and gone, by their own id, when the test is over."""
# ruff: noqa: TID251 - waits for real processes in real time

import contextlib
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import httpx

from tests.vllm.server import has_exited, wait_for_exit

START_SECONDS = 60.0
STOP_SECONDS = 20.0
POLL_SECONDS = 0.2

Found = TypeVar("Found")


def program(*names: str) -> str:
    """The first of these programs that is installed."""
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        raise RuntimeError(f"{names[0]} is not installed: make test-monitoring installs it")
    return found


@contextlib.contextmanager
def started(command: Sequence[str], *, ready: str, log_path: Path) -> Iterator[None]:
    """The command, running while the context lasts; entered once the page at `ready` answers 200."""
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=log_path.parent)
    try:
        _wait_until_ready(process, ready, log_path)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        wait_for_exit(process, seconds=STOP_SECONDS)
        process.kill()
        process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], page: str, log_path: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and not has_exited(process):
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(page, timeout=5, trust_env=False).status_code == httpx.codes.OK:
                return
        wait_for_exit(process, seconds=POLL_SECONDS)
    raise RuntimeError(f"{page} does not answer:\n{log_path.read_text(errors='replace')[-4000:]}")


def eventually(look: Callable[[], Found | None], *, seconds: float, what: str) -> Found:
    """What `look` finds as soon as that is true of anything. Raises AssertionError naming `what` after the deadline."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(POLL_SECONDS)
