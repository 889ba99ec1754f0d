"""Completion in shells: the script of bash is run, those of the others are looked at."""

import subprocess

import pytest

from kvguard.cli import main
from kvguard.completion import SHELLS


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    main(["completion", shell])
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        (["se"], {"serve"}),
        (["comp"], {"completion"}),
        (["serve", "--adm"], {"--admin-port"}),
        (["serve", "--log-level", "w"], {"warning"}),
        (["completion", ""], set(SHELLS)),
    ],
)
def test_bash_completes(typed: list[str], completed: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Commands, their options, and the choices of those."""
    words = " ".join(f"'{word}'" for word in ("kvguard", *typed))
    asking = f"COMP_WORDS=({words}); COMP_CWORD={len(typed)}; _shtab_kvguard; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    run = subprocess.run(
        ["bash", "--norc", "-c", f"{script('bash', capsys)}\n{asking}"], capture_output=True, text=True, check=True
    )
    assert {line.strip() for line in run.stdout.splitlines() if line.strip()} >= completed
    assert run.stderr == ""


def test_bash_completes_files_where_files_are_meant(
    capsys: pytest.CaptureFixture[str], tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After --config, what is in the directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kvguard.yaml").touch()
    asking = 'COMP_WORDS=(kvguard serve --config kv); COMP_CWORD=3; _shtab_kvguard; echo "${COMPREPLY[@]}"'
    run = subprocess.run(
        ["bash", "--norc", "-c", f"{script('bash', capsys)}\n{asking}"], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "kvguard.yaml"


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_knows_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A script for each, of whatever commands there are."""
    text = script(shell, capsys)
    for command in ("serve", "check-config", "estimate", "explain", "replay", "completion"):
        assert command in text
