"""One process that judges manifests, for all tests."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chart.release import TOOLS

Judge = Callable[[tuple[dict[str, Any], ...]], list[str]]


@pytest.fixture(scope="session")
def judge() -> Iterator[Judge]:
    """Manifests -> their faults."""
    command = [TOOLS / "venv" / "bin" / "python", Path(__file__).parent / "validate.py"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:

        def ask(manifests: tuple[dict[str, Any], ...]) -> list[str]:
            process.stdin.write(json.dumps(manifests) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield ask
        process.stdin.close()
