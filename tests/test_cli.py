"""The command: what it prints and how it ends."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from kvguard import __version__
from kvguard.cli import main


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    # No load balancer has to notice that these end.
    monkeypatch.setenv("KVGUARD_LISTEN__PRESTOP_SECONDS", "0")


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
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "geometry.yaml").write_text(f"backends: [{{url: 'sim://', geometry: {tmp_path}/config.json}}]")
    (tmp_path / "tokenizer.yaml").write_text(f"tokens: {{tokenizer: {tmp_path}}}")
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--port", "0", "--admin-port", "0", "--host", "127.0.0.1", *arguments])
    assert ended.value.code == 2
    assert part in capsys.readouterr().err


def test_check_config_tries_what_serving_would_build(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A geometry that cannot be read, a missing tokenizer and a bad embedded engine are all listed, at once."""
    (tmp_path / "bad.yaml").write_text(
        f"backends: [{{url: 'sim://?num_gpu_blocks=1'}}, {{url: 'http://a:1', geometry: {tmp_path}/none.json}}]\n"
        f"tokens: {{tokenizer: {tmp_path}}}\n"
    )
    with pytest.raises(SystemExit) as ended:
        main(["check-config", "--config", "bad.yaml"])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    for part in ("sim://?num_gpu_blocks=1", "none.json", "tokens.tokenizer"):
        assert part in error


def test_a_port_in_use_is_a_fault(capsys: pytest.CaptureFixture[str]) -> None:
    """The address is named and the command ends with 2."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with pytest.raises(SystemExit) as ended:
            main(["serve", "--host", "127.0.0.1", "--port", port, "--admin-port", "0"])
    assert ended.value.code == 2
    assert f"cannot bind 127.0.0.1:{port}" in capsys.readouterr().err


@contextlib.contextmanager
def served(*arguments: str, **popen: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command in front of the embedded engine, and its address once the banner is there."""
    command = [sys.executable, "-m", "kvguard", "serve", "--host", "127.0.0.1", "--port", "0", "--admin-port", "0"]
    command += arguments
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **popen}
    with subprocess.Popen(command, **pipes) as run:
        try:
            banner = ""
            while "Watch the cache fill" not in banner:
                banner += run.stderr.readline() or pytest.fail(f"ended early: {banner}")
            yield run, re.search(r"traffic +(\S+)", banner)[1]
        finally:
            run.kill()


def test_serve_says_where_it_is_answers_and_ends_on_a_signal() -> None:
    """The banner names working addresses; SIGTERM ends the process with 0 and no traceback."""
    with served() as (run, base):
        answer = httpx.post(f"{base}/v1/completions", json={"model": "sim-tiny", "prompt": "hi", "max_tokens": 2})
        assert answer.status_code == 200
        run.send_signal(signal.SIGTERM)
        _, rest = run.communicate(timeout=20)
    assert run.returncode == 0
    assert "Traceback" not in rest


LONG = {"model": "sim-tiny", "prompt": "hi", "max_tokens": 3000, "stream": True, "ignore_eos": True}


def test_a_stop_signal_refuses_new_work_and_a_second_one_ends_at_once() -> None:
    """While a stream runs, new requests get 503 draining; the second signal does not wait for the stream."""
    short = LONG | {"max_tokens": 1, "stream": False}
    with (
        served() as (run, base),
        httpx.Client(base_url=base, timeout=20) as client,
        client.stream("POST", "/v1/completions", json=LONG) as answer,
    ):
        assert answer.status_code == 200
        lines = answer.iter_lines()
        next(lines)
        run.send_signal(signal.SIGTERM)
        while (refused := httpx.post(f"{base}/v1/completions", json=short)).is_success:
            pass
        assert refused.json()["error"]["code"] == "draining"
        assert next(lines) is not None
        run.send_signal(signal.SIGTERM)
        out, rest = run.communicate(timeout=20)
    assert run.returncode == 0
    assert "Traceback" not in out + rest


def test_a_log_that_nobody_reads_does_not_stop_the_service() -> None:
    """With standard output full, requests are still answered."""
    reading, writing = os.pipe()
    try:
        with (
            served("--log-level", "debug", stdout=writing) as (_, base),
            httpx.Client(base_url=base, timeout=20) as client,
        ):
            body = {"model": "sim-tiny", "prompt": [1] * 9000, "max_tokens": 1}
            statuses = {client.post("/v1/completions", json=body).status_code for _ in range(400)}
            assert statuses == {400}
    finally:
        os.close(reading)
        os.close(writing)


def test_a_reader_that_has_seen_enough_ends_the_command_quietly() -> None:
    """Output into a pipe that is closed is no traceback."""
    command = [sys.executable, "-m", "kvguard", "estimate", "gpt2", "--batch", "1", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 0


@pytest.mark.parametrize("broken", [False, True])
def test_a_hang_up_reads_the_settings_anew(tmp_path: Path, broken: bool) -> None:
    """SIGHUP takes a changed file over at once, or says what is wrong with it; the process lives on."""
    file = tmp_path / "k.yaml"
    file.write_text("reload: {interval_seconds: 0}\n")
    with served("--config", str(file)) as (run, base):
        file.write_text("reload: {interval_seconds: 0}\nlimits: {max_body_bytes: " + ("none}\n" if broken else "10}\n"))
        run.send_signal(signal.SIGHUP)
        said = map(json.loads, iter(run.stdout.readline, ""))
        line = next(line for line in said if line["event"].startswith("reload"))
        assert (line["event"], line["level"]) == (("reload_failed", "error") if broken else ("reload", "info"))
        answer = httpx.post(f"{base}/v1/completions", json={"model": "sim-tiny", "prompt": "hi", "max_tokens": 2})
        assert answer.status_code == (200 if broken else 413)


@pytest.mark.parametrize("left", [None, ""])
def test_a_file_that_is_gone_or_empty_is_no_return_to_the_defaults(tmp_path: Path, left: str | None) -> None:
    """Found under its usual name at the start, the file has to be there and say something at every reload."""
    file = tmp_path / "kvguard.yaml"
    file.write_text("reload: {interval_seconds: 0}\nlimits: {max_body_bytes: 10}\n")
    with served() as (run, base):
        file.unlink()
        if left is not None:
            file.write_text(left)
        run.send_signal(signal.SIGHUP)
        said = map(json.loads, iter(run.stdout.readline, ""))
        line = next(line for line in said if line["event"].startswith("reload"))
        assert (line["event"], line["level"]) == ("reload_failed", "error")
        answer = httpx.post(f"{base}/v1/completions", json={"model": "sim-tiny", "prompt": "hi", "max_tokens": 2})
        assert answer.status_code == 413


def test_a_fault_of_several_settings_is_listed_beside_others(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Who sets one right does not learn of the next only then."""
    (tmp_path / "kvguard.yaml").write_text("listen: {port: 9090}\nwaiting: {max_requests: true}\n")
    with pytest.raises(SystemExit):
        main(["check-config"])
    assert capsys.readouterr().err.splitlines() == [
        "kvguard: listen: port and admin_port must differ",
        "kvguard: waiting.max_requests: must be a number, not true or false",
    ]
