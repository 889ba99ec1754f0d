"""A real vLLM, CPU build, started for a test and stopped with everything it started.

Owns the process, its flags and its address. Must not know what is tested. Stdlib and httpx only, so that it also runs
by itself: `python tests/vllm/server.py --blocks 128 --port 8000`, until SIGINT or SIGTERM.
"""
# ruff: noqa: TID251 - runs a real process in real time, with the caller's environment

import argparse
import os
import re
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

ROOT = Path(__file__).resolve().parents[2]
MODEL_NAME = "tiny"
START_SECONDS = 600.0  # behind others on a busy core
STOP_SECONDS = 20.0
LOG_TAIL_CHARACTERS = 4000

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "2",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # opens /reset_prefix_cache
    "PYTHONDONTWRITEBYTECODE": "",  # half of a start is compiling otherwise, see install.sh
    "TORCHDYNAMO_DISABLE": "1",  # some steps of sampling are compiled at first use, for half a minute each
}

SERIES = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
CONSTANT_LABELS = {"engine", "model_name"}
ERROR_LINE = re.compile(r"^\w+Error: .*$", re.MULTILINE)


class ServerExitedError(RuntimeError):
    """vLLM ended, or did not answer in time; the message holds the end of its log."""


def vllm_python() -> Path:
    """The interpreter of the environment `install.sh` makes."""
    return Path(os.environ.get("KVGUARD_VLLM_VENV", ROOT / ".venv-vllm")) / "bin" / "python"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def parse_metrics(text: str) -> dict[str, float]:
    """Series to value. Labels that are the same on every series of one server are left out of the key."""
    values = {}
    for match in SERIES.finditer(text):
        labels = [f'{k}="{v}"' for k, v in LABEL.findall(match["labels"] or "") if k not in CONSTANT_LABELS]
        key = match["name"] + ("{" + ",".join(labels) + "}" if labels else "")
        values[key] = float(match["value"])
    return values


class VllmServer:
    """Serves the model under the name `tiny` between `__enter__` and `__exit__`.

    vLLM's processes spin while they wait for each other. On a machine of few cores they then keep everyone else from
    running for up to two seconds at a time, which a test sees as latency; `engine_cpus` keeps them on those cores.
    vLLM keeps one block for itself: `num_blocks` must be over `max_model_len / block_size`, or it does not start. None
    leaves vLLM as many as fit into its 1 GiB.
    """

    def __init__(
        self,
        model_dir: Path,
        *,
        num_blocks: int | None = 128,
        block_size: int = 32,
        max_model_len: int = 2048,
        max_num_seqs: int = 64,
        extra_args: Sequence[str] = (),
        engine_cpus: AbstractSet[int] | None = None,
        port: int | None = None,
        log_path: Path | None = None,
    ) -> None:
        self.port = free_port() if port is None else port
        self.url = f"http://127.0.0.1:{self.port}"
        self.model_dir = model_dir
        self.log_path = log_path or Path(tempfile.gettempdir()) / f"kvguard-vllm-{self.port}.log"
        self._command = [str(vllm_python()), "-m", "vllm.entrypoints.openai.api_server"]
        self._command += ["--model", str(model_dir), "--served-model-name", MODEL_NAME, "--load-format", "dummy"]
        self._command += ["--host", "127.0.0.1", "--port", str(self.port), "--enforce-eager"]
        self._command += ["--block-size", str(block_size)]
        self._command += [] if num_blocks is None else ["--num-gpu-blocks-override", str(num_blocks)]
        self._command += ["--max-model-len", str(max_model_len), "--max-num-seqs", str(max_num_seqs), *extra_args]
        self._environment = {**os.environ, **ENVIRONMENT}
        self._engine_cpus = engine_cpus
        if engine_cpus:
            self._environment["OMP_NUM_THREADS"] = str(len(engine_cpus))
        self._client = httpx.Client(base_url=self.url, timeout=10)
        self._process: subprocess.Popen[bytes] | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Return once the server answers; leave nothing running if it does not."""
        self._scratch = tempfile.TemporaryDirectory(prefix="kvguard-vllm-")
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**self._environment, "TMPDIR": self._scratch.name},  # vLLM leaves its sockets behind
                start_new_session=True,  # the engine and its workers share a process group of their own
            )
        try:
            if self._engine_cpus:
                os.sched_setaffinity(self._process.pid, self._engine_cpus)  # what it starts inherits this
            self._wait_until_healthy(deadline=time.monotonic() + START_SECONDS)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server's own process group: ask first, kill what is left. A second call does nothing.

        The leader is waited for without being reaped, so its group id cannot pass to another process meanwhile.
        """
        process, self._process = self._process, None
        if process is None:
            return
        os.killpg(process.pid, signal.SIGTERM)
        wait_for_exit(process, seconds=STOP_SECONDS)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if self._scratch is not None:
            self._scratch.cleanup()
        self._client.close()

    def wait(self) -> None:
        """Return once the server has ended by itself."""
        if self._process is not None:
            wait_for_exit(self._process)

    def is_running(self) -> bool:
        return self._process is not None and not has_exited(self._process)

    def metrics(self) -> dict[str, float]:
        """One scrape, see `parse_metrics`."""
        return parse_metrics(self.metrics_text())

    def metrics_text(self) -> str:
        return self._client.get("/metrics").raise_for_status().text

    def cache_config(self) -> dict[str, str]:
        """The labels of `vllm:cache_config_info`."""
        series = next(key for key in self.metrics() if key.startswith("vllm:cache_config_info{"))
        return dict(LABEL.findall(series))

    def log_tail(self) -> str:
        """The errors named anywhere in the log, then its end: the cause comes long before the last traceback."""
        text = self.log_path.read_text(errors="replace")
        return "\n".join([*ERROR_LINE.findall(text), "...", text[-LOG_TAIL_CHARACTERS:]])

    def _wait_until_healthy(self, *, deadline: float) -> None:
        while time.monotonic() < deadline:
            if not self.is_running():
                raise ServerExitedError(f"vLLM exited while starting:\n{self.log_tail()}")
            with suppress(httpx.TransportError):
                if self._client.get("/health").status_code == httpx.codes.OK:
                    return
            if self._process is not None:
                wait_for_exit(self._process, seconds=0.25)
        raise ServerExitedError(f"vLLM did not answer within {START_SECONDS:.0f} s:\n{self.log_tail()}")


def last_cpu() -> frozenset[int]:
    """One core for the engine, which leaves the others to a proxy and its clients."""
    return frozenset({max(os.sched_getaffinity(0))})


def has_exited(process: subprocess.Popen[bytes]) -> bool:
    """Whether the process has ended, without reaping it."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def wait_for_exit(process: subprocess.Popen[bytes], *, seconds: float | None = None) -> None:
    """Return when the process has ended, or after so many seconds, without reaping it."""
    descriptor = os.pidfd_open(process.pid)
    try:
        select.select([descriptor], [], [], seconds)
    finally:
        os.close(descriptor)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=ROOT / ".models" / "tiny")
    parser.add_argument("--port", type=int)
    parser.add_argument("--blocks", type=int, default=128)
    parser.add_argument("--block-size", type=int, default=32)
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--cpu", type=int, action="append", help="keep vLLM on this core; may be repeated")
    parser.add_argument("--log", type=Path)
    parser.add_argument("extra", nargs="*", help="after `--`: more flags for vLLM")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    server = VllmServer(
        arguments.model,
        num_blocks=arguments.blocks,
        block_size=arguments.block_size,
        max_model_len=arguments.max_model_len,
        max_num_seqs=arguments.max_num_seqs,
        extra_args=arguments.extra,
        engine_cpus=frozenset(arguments.cpu or ()),
        port=arguments.port,
        log_path=arguments.log,
    )
    print(f"starting vLLM, log in {server.log_path}", flush=True)
    with suppress(KeyboardInterrupt), server:
        print(f"serving {server.url}", flush=True)
        server.wait()
        raise SystemExit(f"vLLM exited:\n{server.log_tail()}")


if __name__ == "__main__":
    main()
