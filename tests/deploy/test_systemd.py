"""The unit of systemd agrees with the command it runs."""

import shlex
from pathlib import Path

import pytest

from kvguard.cli import EXIT_CONFIG, main
from kvguard.sections import ListenSettings

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "kvguard.service"


def values(name: str) -> list[str]:
    """What the unit says under this name, each time it does."""
    lines = (line.partition("=") for line in UNIT.read_text().splitlines() if not line.startswith("#"))
    return [value for key, _, value in lines if key == name]


def test_it_is_not_killed_before_its_last_answers() -> None:
    """The time to stop is longer than both waits together."""
    listen = ListenSettings()
    assert float(values("TimeoutStopSec")[0]) >= listen.prestop_seconds + listen.drain_seconds + 2


def test_it_does_not_try_again_what_cannot_work() -> None:
    """Faults in the settings end it with the status that is never restarted."""
    assert values("RestartPreventExitStatus") == [str(EXIT_CONFIG)]


@pytest.mark.parametrize("name", ["ExecStartPre", "ExecStart"])
def test_its_commands_are_understood(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a file of faults each comes as far as to say so, and ends with that status."""
    (line,) = values(name)
    program, *arguments = shlex.split(line)
    assert program.endswith("/kvguard")
    file = tmp_path / "kvguard.yaml"
    file.write_text("nope: 1\n")
    with pytest.raises(SystemExit) as ended:
        main([str(file) if argument == "/etc/kvguard/kvguard.yaml" else argument for argument in arguments])
    assert ended.value.code == EXIT_CONFIG
    assert "nope" in capsys.readouterr().err


def test_a_reload_sends_the_signal_that_reloads() -> None:
    """SIGHUP reads the settings anew; any other would end the process."""
    assert values("ExecReload") == ["/bin/kill -HUP $MAINPID"]


@pytest.mark.parametrize(
    "name", ["DynamicUser", "NoNewPrivileges", "PrivateDevices", "PrivateTmp", "ProtectHome", "MemoryDenyWriteExecute"]
)
def test_it_may_do_no_more_than_it_has_to(name: str) -> None:
    """No privileges, no devices, nobody's files, no code that is written while it runs."""
    assert values(name) == ["yes"]
    assert values("ProtectSystem") == ["strict"]
    assert values("CapabilityBoundingSet") == [""]
