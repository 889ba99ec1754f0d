"""kvguard as its users run it: the command, in a process of its own, stopped with SIGTERM."""
# ruff: noqa: TID251 - runs a real process in real time, with the caller's environment

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.vllm.server import ROOT, free_port, has_exited, wait_for_exit

START_SECONDS = 60.0
STOP_SECONDS = 20.0


@dataclass(frozen=True)
class KvguardProcess:
    """A running kvguard: its two ports, and where its log is."""

    port: int
    admin_port: int
    log_path: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def metrics_text(self) -> str:
        return httpx.get(f"http://127.0.0.1:{self.admin_port}/metrics", timeout=10).raise_for_status().text


@contextlib.contextmanager
def kvguard_process(backend_url: str | None, log_path: Path, *, config: Path | None = None) -> Iterator[KvguardProcess]:
    """kvguard in front of a backend, or of those of the file, ready when this yields. It gets no settings but the
    address, its ports and those of the file.
    """
    running = KvguardProcess(free_port(), free_port(), log_path)
    command = [sys.executable, "-m", "kvguard", "serve", "--host", "127.0.0.1"]
    command += [] if backend_url is None else ["--backend", backend_url]
    command += ["--port", str(running.port), "--admin-port", str(running.admin_port)]
    command += [] if config is None else ["--config", str(config)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KVGUARD_")}
    environment["PYTHONPATH"] = str(ROOT)
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=log_path.parent)
    try:
        _wait_until_ready(process, running, deadline=time.monotonic() + START_SECONDS)
        yield running
    finally:
        process.send_signal(signal.SIGTERM)
        wait_for_exit(process, seconds=STOP_SECONDS)
        process.kill()
        process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], running: KvguardProcess, *, deadline: float) -> None:
    while time.monotonic() < deadline and not has_exited(process):
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"http://127.0.0.1:{running.admin_port}/readyz", timeout=10).status_code == httpx.codes.OK:
                return
        wait_for_exit(process, seconds=0.1)
    raise RuntimeError(f"kvguard is not ready:\n{running.log_path.read_text(errors='replace')}")
