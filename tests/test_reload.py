"""What a change of the settings file takes with it, and what has to wait for a restart. O-36 shows the rest."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvguard.clock import ManualClock
from kvguard.errors import SettingsError
from kvguard.reload import SECTIONS, Reloader, SettingsFile, differences, merged
from kvguard.settings import Settings
from kvguard.sources import load_settings


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def loaded(**sections: Any) -> Settings:
    return load_settings(flags=sections)


@pytest.mark.parametrize(
    ("sections", "kept"),
    [
        ({"tiers": {"trim_at": 0.5}}, []),
        ({"degrade": {"mode": "proportional"}}, []),
        ({"reject": {"status": {"saturated": 429}}}, []),
        ({"mode": "shadow"}, []),
        ({"classes": []}, []),
        ({"tenants": [{"name": "a"}]}, []),
        ({"overrides": [{"models": "m"}]}, []),
        ({"identity": {"tenant_per_key": True}}, []),
        ({"signals": {"stall_seconds": 5, "max_prefill_backlog_tokens": 1}}, []),
        ({"forecast": {"quantile": 0.5, "min_answers": 1, "half_life_answers": 9}}, []),
        (
            {"forecast": {"state_file": "lengths.json", "state_interval_seconds": 1}},
            ["forecast.state_file", "forecast.state_interval_seconds"],
        ),
        ({"limits": {"max_body_bytes": 1}}, []),
        ({"backends": [{"url": "sim://", "mode": "shadow"}]}, []),
        ({"telemetry": {"when_blind": "closed", "queue_floor_ratio": 0.1, "stale_after_seconds": 7}}, []),
        ({"telemetry": {"interval_seconds": 0.1, "timeout_seconds": 9}}, ["interval_seconds", "timeout_seconds"]),
        ({"listen": {"port": 1}}, ["listen.port"]),
        ({"log": {"level": "debug"}, "tokens": {"counter": "local"}}, ["tokens.counter", "log.level"]),
        ({"decision_log": {"sample": 0.5}}, ["decision_log.sample"]),
        ({"backends": [{"url": "http://a:1"}]}, ["backends"]),
    ],
)
def test_what_can_be_had_without_a_restart(sections: dict[str, Any], kept: list[str]) -> None:
    """All of it is taken over but what is named; that is as it was."""
    old, wanted = loaded(), loaded(**sections)
    new = merged(old, wanted)
    assert [name.removeprefix("telemetry.") for name in differences(new, wanted)] == kept
    assert (new.model_dump() == wanted.model_dump()) is not bool(kept)
    assert (new.model_dump() == old.model_dump()) is bool(kept)


def test_every_section_is_settled_one_way_or_the_other() -> None:
    """A new section needs a decision whether it can be reloaded."""
    restart = {
        "listen",
        "backends",
        "tokens",
        "upstream",
        "discovery",
        "log",
        "decision_log",
        "alerts",
        "tracing",
        "reload",
    }
    assert set(SECTIONS) | restart == set(Settings.model_fields)


class _Reports:
    """What the reporter is told."""

    def __init__(self) -> None:
        self.failures: list[tuple[str, ...]] = []
        self.reloads: list[tuple[bool, tuple[str, ...]]] = []

    def reload_failed(self, faults: tuple[str, ...]) -> None:
        self.failures.append(faults)

    def reloaded(self, config_hash: str, *, changed: bool, kept: tuple[str, ...]) -> None:
        self.reloads.append((changed, kept))


def raising(error: Exception) -> Callable[..., Any]:
    def act(*_: Any) -> Any:
        raise error

    return act


@pytest.mark.parametrize(
    ("load", "put", "faults"),
    [
        (raising(SettingsError(["a", "b"])), print, ("a", "b")),
        (raising(RecursionError("deep")), print, ("RecursionError",)),
        (lambda: loaded(mode="shadow"), raising(SettingsError(["c"])), ("c",)),
    ],
)
def test_whatever_goes_wrong_the_settings_in_force_stay(
    load: Callable[[], Settings], put: Callable[[Settings], None], faults: tuple[str, ...]
) -> None:
    """Reading and putting in place may fail; both are reported, and neither ends the following."""
    reports, settings = _Reports(), loaded()
    reloader = Reloader(SettingsFile(path=Path("k.yaml"), load=load), settings, put, reports, ManualClock())
    reloader.reload()
    assert (reports.failures, reports.reloads) == ([faults], [])
    assert reloader.settings is settings


def test_the_same_settings_are_not_put_in_place_again() -> None:
    """A file that says the same in other words changes nothing."""
    reports = _Reports()
    file = SettingsFile(path=Path("k.yaml"), load=loaded)
    Reloader(file, loaded(), raising(AssertionError()), reports, ManualClock()).reload()
    assert (reports.failures, reports.reloads) == ([], [(False, ())])
