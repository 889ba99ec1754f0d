"""O-40: several workers, several truths."""

import subprocess
import sys
from pathlib import Path

import pytest

import kvguard


def run(*arguments: str, directory: Path, **environment: str) -> subprocess.CompletedProcess:
    """Run the command of the code under test in `directory`, with an environment of nothing else."""
    code = str(Path(kvguard.__file__).parent.parent)
    return subprocess.run(
        [sys.executable, "-m", "kvguard", *arguments],
        cwd=directory,
        env={"PYTHONPATH": code, **environment},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize(
    ("flags", "environment", "named"),
    [
        (("--workers", "2"), {}, "--workers=2"),
        ((), {"WEB_CONCURRENCY": "2"}, "WEB_CONCURRENCY=2"),
    ],
)
def test_a_second_worker_is_refused(tmp_path: Path, flags: tuple, environment: dict, named: str) -> None:
    """Asked for two workers by flag or environment, the command exits with 2, says why and what to do instead."""
    ended = run("serve", "--port", "0", "--admin-port", "0", *flags, directory=tmp_path, **environment)
    assert ended.returncode == 2
    assert named in ended.stderr
    assert "ledger" in ended.stderr
    assert "replicas" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not ended.stdout


def test_one_worker_is_fine(tmp_path: Path) -> None:
    """WEB_CONCURRENCY=1, which some platforms set everywhere, is no fault."""
    assert run("check-config", directory=tmp_path, WEB_CONCURRENCY="1").returncode == 0
