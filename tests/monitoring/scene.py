"""kvguard in front of a twin of an engine, and a real Prometheus that reads both."""

import contextlib
import hashlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.monitoring.process import started
from tests.monitoring.prometheus import Prometheus, running_prometheus
from tests.vllm.kvguard_process import KvguardProcess, kvguard_process
from tests.vllm.server import free_port

TWIN = Path(__file__).with_name("twin.py")


@dataclass(frozen=True)
class Scene:
    """What runs."""

    kvguard: KvguardProcess
    prometheus: Prometheus


@contextlib.contextmanager
def running_scene(
    directory: Path,
    *,
    engine: str,
    backend: Mapping[str, Any] | None = None,
    alerting: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Iterator[Scene]:
    """All of it, in `directory`, around the engine of a `sim://` or `sim+tgi://` address. kvguard is the job `kvguard`,
    the twin the job `engine`. `backend` are kvguard's settings for the twin, `settings` its others; `alerting` are the
    rules and the Alertmanager of Prometheus, if it is to have some.
    """
    port, tgi = free_port(), engine.startswith("sim+tgi://")
    address = f"127.0.0.1:{port}"
    first = {"url": f"{'tgi+' if tgi else ''}http://{address}", "name": "tgi" if tgi else "vllm", **(backend or {})}
    config = directory / "kvguard.yaml"
    config.write_text(yaml.safe_dump({**settings, "backends": [first, *settings.get("backends", ())]}))
    command = [sys.executable, str(TWIN), engine, str(port)]
    with (
        started(command, ready=f"http://{address}/metrics", log_path=directory / "twin.log"),
        kvguard_process(None, directory / "kvguard.log", config=config) as kvguard,
        running_prometheus(
            directory,
            targets={"kvguard": [f"127.0.0.1:{kvguard.admin_port}"], "engine": [address]},
            **(alerting or {}),
        ) as prometheus,
    ):
        yield Scene(kvguard, prometheus)


def bearer(key: str) -> dict[str, str]:
    """The header of a caller with this key."""
    return {"authorization": f"Bearer {key}"}


def keys(**callers: tuple[str, str]) -> dict[str, Any]:
    """The setting `identity` for callers whose key is their own name: the tenant and the class of each."""
    return {
        "keys": {
            hashlib.sha256(key.encode()).hexdigest()[:16]: {"tenant": tenant, "priority": priority}
            for key, (tenant, priority) in callers.items()
        }
    }
