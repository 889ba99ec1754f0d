"""The image: linted, and its very steps run in a directory of their own, for nothing here builds images."""

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.chart.release import ROOT, TOOLS

pytestmark = pytest.mark.chart

DOCKERFILE = ROOT / "deploy" / "Dockerfile"
INSTRUCTIONS = re.sub(r"\\\n", " ", DOCKERFILE.read_text()).splitlines()
PREFIX = "/opt/kvguard"
# Root without its privileges may write as little of what is read only as anybody else.
UNPRIVILEGED = ["setpriv", "--no-new-privs", *(["--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else [])]


def instructions(name: str) -> list[str]:
    """The arguments of each instruction of this name."""
    return [line.split(maxsplit=1)[1] for line in INSTRUCTIONS if line.startswith(f"{name} ")]


def test_it_is_linted() -> None:
    """By hadolint, without an exception."""
    done = subprocess.run(
        [TOOLS / "venv" / "bin" / "hadolint", DOCKERFILE], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_last_stage_has_no_compiler() -> None:
    """It starts anew from a slim base, installs nothing, and takes the environment alone."""
    last = INSTRUCTIONS[max(number for number, line in enumerate(INSTRUCTIONS) if line.startswith("FROM ")) :]
    assert len(instructions("FROM")) == 2
    assert all("slim" in each for each in instructions("ARG"))
    assert not any(line.startswith("RUN ") for line in last)
    assert [line for line in last if line.startswith("COPY ")] == [f"COPY --from=build {PREFIX} {PREFIX}"]


def test_what_is_copied_is_sent_to_the_builder() -> None:
    """The ignore file lets through what the build reads, and nothing else."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    sent = {line.removeprefix("!") for line in lines if line.startswith("!")}
    copied = {source for each in instructions("COPY") if "--from" not in each for source in each.split()[:-1]}
    assert copied == sent
    assert "*" in lines


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the build stage makes: its files alone, its own commands, at another place."""
    source, prefix = tmp_path_factory.mktemp("src"), tmp_path_factory.mktemp("opt") / "kvguard"
    for each in instructions("COPY"):
        if "--from" not in each:
            for name in each.split()[:-1]:
                copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
                copy(ROOT / name, source / name)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # noqa: TID251
    for step in instructions("RUN"):
        command = step.replace(PREFIX, str(prefix))
        done = subprocess.run(
            ["sh", "-ec", command], cwd=source, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    shutil.rmtree(source)
    return prefix


def test_its_steps_make_an_image_that_serves(image: Path, tmp_path: Path) -> None:
    """Without a privilege, of files that cannot be written, it serves, passes its health check, and ends with 0."""
    (entry,) = (json.loads(each) for each in instructions("ENTRYPOINT"))
    subprocess.run(["chmod", "-R", "a-w", image], check=True)
    assert subprocess.run([*UNPRIVILEGED, "touch", image / "theirs"], capture_output=True, check=False).returncode != 0
    command = [*UNPRIVILEGED, image / "bin" / entry[0], "serve", "--host=127.0.0.1", "--port=0", "--admin-port=0"]
    environment = {"PATH": f"{image / 'bin'}:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen([*map(str, command)], cwd=tmp_path, env=environment, **pipes) as process:
        try:
            told = map(json.loads, iter(process.stdout.readline, ""))
            started = next(line for line in told if line["event"] == "started")
            next(line for line in told if line["event"] == "ready")
            body = {"model": "sim-tiny", "prompt": "hi", "max_tokens": 2}
            assert httpx.post(f"http://127.0.0.1:{started['port']}/v1/completions", json=body).status_code == 200
            assert healthy(started["admin_port"], image) == 0
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
        finally:
            process.kill()
    assert healthy(started["admin_port"], image) != 0


def healthy(admin_port: int, image: Path) -> int:
    """The exit status of the image's health check, at the port that is free here."""
    check = json.loads(instructions("HEALTHCHECK")[0].partition("CMD ")[2])
    check[0] = str(image / "bin" / check[0])
    check = [each.replace(":9090/", f":{admin_port}/") for each in check]
    return subprocess.run(check, capture_output=True, check=False).returncode


def test_it_has_no_installer(image: Path) -> None:
    """Nothing can be added to it from inside."""
    assert not list((image / "bin").glob("pip*"))
