"""The command: what it prints and how it ends."""

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import yaml

from kvguard import __version__
from kvguard.cli import main


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    """--version prints name and version."""
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"kvguard {__version__}\n"


def test_check_config_prints_settings_that_can_be_used_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """What check-config prints is a file that gives the same settings."""
    main(["check-config", "--backend", "http://a:1", "--backend", "http://b:2", "--port", "81"])
    printed = capsys.readouterr().out
    values = yaml.safe_load(printed)
    assert [backend["url"] for backend in values["backends"]] == ["http://a:1", "http://b:2"]
    file = tmp_path / "again.yaml"
    file.write_text(printed)
    main(["check-config", "--config", str(file)])
    assert capsys.readouterr().out == printed


def test_faults_end_the_command_with_2_and_one_line_each(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Every fault is on standard error, nothing on standard output."""
    file = tmp_path / "bad.yaml"
    file.write_text("tiers: {trim_at: 2}\nnope: 1\n")
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--config", str(file)])
    out, err = capsys.readouterr()
    assert ended.value.code == 2
    assert out == ""
    assert [line.split(":")[1].strip() for line in err.splitlines()] == ["tiers.trim_at", "nope"]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--backend", "sim://?blocks=1"], "no such setting: blocks"),
        (["--backend", "sim://?num_gpu_blocks=many"], "num_gpu_blocks must be a int"),
        (["--backend", "sim://?num_gpu_blocks=3"], "needs"),
        (["--config", "geometry.yaml"], "geometry"),
        (["--config", "tokenizer.yaml"], "tokenizer"),
    ],
)
def test_what_cannot_be_built_is_a_fault_too(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], part: str
) -> None:
    """Faults found while building end the command the same way."""
    (tmp_path / "config.json").write_text('{"model_type": "deepseek_v3", "kv_lora_rank": 512}')
    (tmp_path / "geometry.yaml").write_text(f"backends: [{{url: 'sim://', geometry: {tmp_path}/config.json}}]")
    (tmp_path / "tokenizer.yaml").write_text(f"tokens: {{tokenizer: {tmp_path}}}")
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--port", "0", "--admin-port", "0", "--host", "127.0.0.1", *arguments])
    assert ended.value.code == 2
    assert part in capsys.readouterr().err


def test_a_port_in_use_is_a_fault(capsys: pytest.CaptureFixture[str]) -> None:
    """The address is named and the command ends with 2."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with pytest.raises(SystemExit) as ended:
            main(["serve", "--host", "127.0.0.1", "--port", port, "--admin-port", "0"])
    assert ended.value.code == 2
    assert f"cannot bind 127.0.0.1:{port}" in capsys.readouterr().err


def test_serve_says_where_it_is_answers_and_ends_on_a_signal() -> None:
    """The banner names working addresses; SIGTERM ends the process with 0 and no traceback."""
    command = [sys.executable, "-m", "kvguard", "serve", "--host", "127.0.0.1", "--port", "0", "--admin-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        banner = ""
        while "Watch the cache fill" not in banner:
            banner += run.stderr.readline() or pytest.fail(f"ended early: {banner}")
        base = re.search(r"traffic +(\S+)", banner)[1]
        answer = httpx.post(f"{base}/v1/completions", json={"model": "sim-tiny", "prompt": "hi", "max_tokens": 2})
        assert answer.status_code == 200
        run.send_signal(signal.SIGTERM)
        _, rest = run.communicate(timeout=20)
    assert run.returncode == 0
    assert "Traceback" not in rest
