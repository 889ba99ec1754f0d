"""Running a client as its users do, as a script in a process of its own, and reading what it tells."""
# ruff: noqa: TID251 - runs real processes, with the caller's environment

import asyncio
import json
import os
from dataclasses import dataclass
from pathlib import Path

from tests.vllm.server import ROOT, vllm_python

SCRIPTS = Path(__file__).with_name("clients")
PATIENCE_SECONDS = 120.0

ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # the package's own list of prices, not the one of the day
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "NO_PROXY": "127.0.0.1",
    "PYTHONDONTWRITEBYTECODE": "",  # compiled once, not by each of dozens of runs
}
# Offline this one reaches no address at all, not even one of this machine.
OWN_ENVIRONMENT = {"inference_client": {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_TELEMETRY": "1"}}


def clients_python() -> Path:
    """The interpreter of the environment that `make test-vllm` makes for them."""
    return Path(os.environ.get("KVGUARD_CLIENTS_VENV", ROOT / ".venv-clients")) / "bin" / "python"


def legacy_python() -> Path:
    """The interpreter of the client that needs older versions of what the others bring."""
    return Path(os.environ.get("KVGUARD_LEGACY_CLIENTS_VENV", ROOT / ".venv-legacy-clients")) / "bin" / "python"


@dataclass(frozen=True)
class Told:
    """What a client told of each call, by name, and everything it wrote."""

    outcomes: dict[str, dict]
    text: str


def command_of(client: str, url: str, *calls: str, model: Path) -> list[str]:
    """How a client is started against a server."""
    if client == "locust":
        flags = ["--headless", "--users", "1", "--host", url, "--only-summary"]
        return [str(clients_python()), "-m", "locust", "-f", str(SCRIPTS / "locustfile.py"), *flags]
    if client == "bench_serve":
        return [str(vllm_python()), str(SCRIPTS / "bench_serve.py"), url, str(model)]
    python = legacy_python() if client == "text_generation_client" else clients_python()
    return [str(python), str(SCRIPTS / f"{client}.py"), url, *calls]


async def run_client(client: str, url: str, *calls: str, model: Path = ROOT) -> Told:
    """Let a client make its calls against a server. Raises AssertionError with what it wrote if it fails."""
    process = await asyncio.create_subprocess_exec(
        *command_of(client, url, *calls, model=model),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, **ENVIRONMENT, **OWN_ENVIRONMENT.get(client, {})},
    )
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    text = output.decode(errors="replace")
    assert process.returncode == 0, text
    told = [json.loads(line) for line in text.splitlines() if line.startswith('{"call"')]
    return Told({one.pop("call"): one for one in told}, text)
