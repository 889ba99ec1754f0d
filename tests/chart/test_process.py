"""What the chart renders, run: the command with its arguments, the file unchanged, the probes asked at their ports."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.chart.release import Release, rendered
from tests.kit.process import Process

pytestmark = [pytest.mark.chart, pytest.mark.anyio]


def free_ports() -> tuple[int, int]:
    """Two that nobody listens at."""
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


def release_on_free_ports() -> Release:
    port, admin_port = free_ports()
    listen = {"port": port, "admin_port": admin_port, "prestop_seconds": 0}
    return rendered({"config": {"listen": listen, "reload": {"interval_seconds": 0.1}}, "replicaCount": 2})


def mounted(release: Release, directory: Path) -> None:
    """The settings as a kubelet lays them out: files are links into a directory that a link stands for."""
    version = directory / f"..{len(list(directory.iterdir()))}"
    version.mkdir()
    for name, content in release.config_map["data"].items():
        (version / name).write_text(content)
        if not (directory / name).is_symlink():
            (directory / name).symlink_to(f"..data/{name}")
    new = directory / "..data_tmp"
    new.symlink_to(version.name)
    new.rename(directory / "..data")


def arguments(release: Release, mount: Path) -> list[str]:
    """The container's, with the mount where it is here."""
    (config,) = (each["mountPath"] for each in release.container["volumeMounts"] if each["name"] == "config")
    return [each.replace(config, str(mount)) for each in release.container["args"]]


@contextlib.asynccontextmanager
async def pod(release: Release, mount: Path) -> AsyncIterator[Process]:
    """The container's command, as long as it is needed."""
    pipes = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.DEVNULL}
    # The state file's directory is a volume of the pod and not there.
    environment = os.environ | {"KVGUARD_FORECAST__STATE_FILE": str(mount.parent / "lengths.json")}  # noqa: TID251
    command = [sys.executable, "-m", "kvguard", *arguments(release, mount)]
    one = Process(await asyncio.create_subprocess_exec(*command, env=environment, **pipes))
    reading = asyncio.create_task(one.read())
    try:
        yield one
    finally:
        with contextlib.suppress(ProcessLookupError):
            one.run.kill()
        await one.run.wait()
        await reading


async def asked(release: Release, name: str) -> int:
    """The status a probe of the pod gets."""
    probe = release.container[name]["httpGet"]
    ports = {each["name"]: each["containerPort"] for each in release.container["ports"]}
    async with httpx.AsyncClient() as client:
        return (await client.get(f"http://127.0.0.1:{ports[probe['port']]}{probe['path']}")).status_code


async def test_the_rendered_pod_serves(tmp_path: Path) -> None:
    """Its probes succeed, metrics are there, a request is served at the traffic port, and SIGTERM ends it with 0."""
    release, mount = release_on_free_ports(), tmp_path / "config"
    mount.mkdir()
    mounted(release, mount)
    async with pod(release, mount) as process, httpx.AsyncClient() as client:
        await process.told("ready")
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert await asked(release, probe) == 200
        port, admin_port = (each["containerPort"] for each in release.container["ports"])
        body = {"model": "sim-tiny", "prompt": "hi", "max_tokens": 2}
        assert (await client.post(f"http://127.0.0.1:{port}/v1/completions", json=body)).status_code == 200
        assert (await client.get(f"http://127.0.0.1:{port}/v1/models")).status_code == 200
        assert "kvguard_build_info" in (await client.get(f"http://127.0.0.1:{admin_port}/metrics")).text
        process.send(signal.SIGTERM)
        assert await process.ended() == 0


async def test_o36_a_new_config_map_is_taken_over(tmp_path: Path) -> None:
    """The kubelet's swap of links brings the share of five replicas to a pod that was one of two."""
    release, mount = release_on_free_ports(), tmp_path / "config"
    mount.mkdir()
    mounted(release, mount)
    listen = release.settings["listen"]
    values = {"config": {"listen": listen, "reload": release.settings["reload"]}, "replicaCount": 5}
    async with pod(release, mount) as process:
        await process.told("ready")
        mounted(rendered(values), mount)
        await process.told("reload")
        assert process.run.returncode is None


def test_every_command_named_is_there() -> None:
    """The pod of `helm test` runs what the image has."""
    command = rendered().one("Pod")["spec"]["containers"][0]["command"]
    assert command[:2] == ["python", "-c"]
    assert shutil.which(Path(sys.executable).name)
    compile(command[2], "test", "exec")
