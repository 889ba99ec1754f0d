"""What is published: built, looked into, and installed where there is nothing else."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from kvguard import __version__

pytestmark = pytest.mark.package

ROOT = Path(__file__).parents[2]
# What is of use in the repository alone.
NOT_PUBLISHED = (".ci/", ".git", ".dockerignore")
# Nothing is found that is not installed.
ELSEWHERE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # noqa: TID251  for others
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def run(*command: object, cwd: Path | None = None) -> str:
    """What the command prints; one that fails shows all of it."""
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=ELSEWHERE, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@dataclass(frozen=True)
class Environment:
    """A virtual environment of its own."""

    path: Path

    @classmethod
    def made(cls, path: Path) -> "Environment":
        venv.create(path, with_pip=True)
        made = cls(path)
        made.pip("install", "--upgrade", "pip>=25.1")
        return made

    @property
    def python(self) -> Path:
        return self.path / "bin" / "python"

    @property
    def kvguard(self) -> Path:
        return self.path / "bin" / "kvguard"

    def pip(self, *arguments: object, cwd: Path | None = None) -> str:
        return run(self.python, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments, cwd=cwd)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel that was built from it."""
    builder, out = Environment.made(tmp_path_factory.mktemp("builder")), tmp_path_factory.mktemp("dist")
    builder.pip("install", "build")
    run(builder.python, "-m", "build", "--outdir", out, ROOT)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def unpacked(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is in the sdist."""
    there = tmp_path_factory.mktemp("sdist")
    with tarfile.open(built[0]) as archive:
        archive.extractall(there, filter="data")
    return there / f"kvguard-{__version__}"


@pytest.fixture(scope="module")
def clean(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the wheel and what it asks for."""
    environment = Environment.made(tmp_path_factory.mktemp("clean"))
    environment.pip("install", built[1])
    return environment


def test_the_sdist_has_every_file_of_the_repository(unpacked: Path) -> None:
    """Code, tests, docs, charts, dashboards: a distributor needs nothing else."""
    kept = run("git", "ls-files", cwd=ROOT).splitlines()
    wanted = {name for name in kept if not name.startswith(NOT_PUBLISHED)}
    assert {name for name in wanted if not (unpacked / name).exists()} == set()


def test_the_wheel_is_the_package_alone(built: tuple[Path, Path]) -> None:
    """Typed, with its presets and its licence, and nothing beside."""
    with zipfile.ZipFile(built[1]) as archive:
        names = set(archive.namelist())
    assert {name.split("/")[0] for name in names} == {"kvguard", f"kvguard-{__version__}.dist-info"}
    assert "kvguard/py.typed" in names
    assert f"kvguard-{__version__}.dist-info/licenses/LICENSE" in names
    assert set(run("git", "ls-files", "kvguard", cwd=ROOT).splitlines()) <= names


def test_the_command_is_there_and_says_its_version(clean: Environment) -> None:
    """Also as a module, and from any directory."""
    assert run(clean.kvguard, "--version") == f"kvguard {__version__}\n"
    assert run(clean.python, "-m", "kvguard", "--version", cwd=clean.path) == f"kvguard {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [("check-config",), ("estimate", "llama-3-8b", "--batch", "1"), ("estimate", "--list"), ("completion", "bash")],
)
def test_commands_run_without_any_extra(clean: Environment, arguments: tuple[str, ...]) -> None:
    """Everything they need comes with the package."""
    assert run(clean.kvguard, *arguments, cwd=clean.path)


@contextlib.contextmanager
def serving(environment: Environment) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The installed command in front of the embedded engine, and its port."""
    command = [environment.kvguard, "serve", "--host", "127.0.0.1", "--port", "0", "--admin-port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen([*map(str, command)], cwd=environment.path, env=ELSEWHERE, **pipes) as process:
        try:
            told = map(json.loads, iter(process.stdout.readline, ""))
            port = next(line["port"] for line in told if line["event"] == "started")
            next(line for line in told if line["event"] == "ready")
            yield process, port
        finally:
            process.kill()


def test_the_installed_proxy_serves_and_ends(clean: Environment) -> None:
    """A request is answered, and an interrupt ends the process with 0."""
    with serving(clean) as (process, port):
        body = {"model": "sim-tiny", "prompt": "hi", "max_tokens": 2}
        assert httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body).status_code == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


@pytest.mark.parametrize("extra", sorted(PROJECT["optional-dependencies"]))
def test_every_extra_can_be_had(built: tuple[Path, Path], clean: Environment, extra: str) -> None:
    """What it names is on the index, and goes with the rest."""
    report = clean.pip("install", "--dry-run", "--report", "-", f"{built[1]}[{extra}]")
    named = {entry["metadata"]["name"].lower() for entry in json.loads(report)["install"]}
    assert {requirement.split(">")[0] for requirement in PROJECT["optional-dependencies"][extra]} <= named


def test_type_checkers_see_the_types(clean: Environment, tmp_path: Path) -> None:
    """A wrong call of the installed package is found."""
    (tmp_path / "wrong.py").write_text("from kvguard.admission.tiers import Tier\n\nname: int = Tier.TRIM.name\n")
    command = [sys.executable, "-m", "mypy", "--python-executable", str(clean.python), "wrong.py"]
    checked = subprocess.run(command, cwd=tmp_path, env=ELSEWHERE, capture_output=True, text=True, check=False)
    assert 'expression has type "str", variable has type "int"' in checked.stdout


def test_the_tests_run_from_the_sdist(unpacked: Path, clean: Environment) -> None:
    """Those of the docs and of the command, as any distributor would run them."""
    clean.pip("install", "--group", "test", cwd=unpacked)
    told = run(clean.python, "-m", "pytest", "-n0", "tests/docs", "tests/test_sources.py", cwd=unpacked)
    assert "passed" in told or told.rstrip().endswith("[100%]")
