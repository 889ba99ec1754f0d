"""kvguard in front of a twin of an engine, and a real Prometheus that reads both."""

import contextlib
import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.monitoring.overload import PATH, PROMPT
from tests.monitoring.process import started
from tests.monitoring.prometheus import Prometheus, running_prometheus
from tests.vllm.kvguard_process import KvguardProcess, kvguard_process
from tests.vllm.server import free_port

TWIN = Path(__file__).with_name("twin.py")
# 256 blocks of 16 tokens, or as many tokens of TGI: some eight requests of an overload.
VLLM = "sim://?num_gpu_blocks=257&max_model_len=1024&max_num_seqs=32&enable_prefix_caching=true"
TGI = "sim+tgi://?max_batch_total_tokens=4096&max_total_tokens=1024"
GEOMETRY = "llama-3.2-1b"
KEY = "of the one in shadow mode"


@dataclass(frozen=True)
class Scene:
    """What runs."""

    kvguard: KvguardProcess
    prometheus: Prometheus

    def try_out(self) -> int:
        """One request of the caller for whom everything is only reported; the status it was answered with."""
        body = {"model": "sim-tiny", "prompt": PROMPT, "max_tokens": 400}
        headers = {"authorization": f"Bearer {KEY}"}
        url = f"{self.kvguard.url}{PATH}"
        return httpx.post(url, json=body, headers=headers, timeout=60, trust_env=False).status_code


@contextlib.contextmanager
def running_scene(directory: Path, *, engine: str = VLLM, everything: bool = False) -> Iterator[Scene]:
    """All of it, in `directory`. kvguard is the job `kvguard`, the twin the job `engine`. With `everything` the
    settings are such that every metric has samples.
    """
    port, tgi = free_port(), engine.startswith("sim+tgi://")
    address = f"127.0.0.1:{port}"
    backend = {"url": f"{'tgi+' if tgi else ''}http://{address}", "name": "tgi" if tgi else "vllm"}
    config, log = directory / "kvguard.yaml", directory / "twin.log"
    config.write_text(yaml.safe_dump(_every_feature(backend) if everything else {"backends": [backend]}))
    command = [sys.executable, str(TWIN), engine, str(port)]
    with (
        started(command, ready=f"http://{address}/metrics", log_path=log),
        kvguard_process(None, directory / "kvguard.log", config=config) as kvguard,
        running_prometheus(
            directory, targets={"kvguard": [f"127.0.0.1:{kvguard.admin_port}"], "engine": [address]}
        ) as prometheus,
    ):
        yield Scene(kvguard, prometheus)


def _every_feature(backend: dict[str, Any]) -> dict[str, Any]:
    """Callers of several kinds, a queue, a model whose bytes are known, and a name that leads nowhere."""
    nowhere = {"url": "dns+http://nowhere.test:8000", "name": "nowhere"}
    return {
        "backends": [{**backend, "geometry": GEOMETRY}, nowhere],
        "identity": {
            "keys": {hashlib.sha256(KEY.encode()).hexdigest()[:16]: {"tenant": "trial", "priority": "shadowed"}}
        },
        "classes": [{"name": "shadowed", "shadow": True}],
        "tenants": [{"name": "trial"}],
        "waiting": {"max_requests": 4, "max_seconds": 1.0},
        "discovery": {"nameservers": [f"127.0.0.1:{free_port()}"], "interval_seconds": 1},
    }
