"""Settings: precedence, every fault at once, nothing silently ignored."""

import contextlib
from pathlib import Path

import pytest

from kvguard.admission.condition import SignalPolicy
from kvguard.admission.decision import BlindPolicy
from kvguard.admission.footprint import Trait
from kvguard.admission.occupancy import Signal
from kvguard.errors import SettingsError
from kvguard.sources import load_settings, worker_faults


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WEB_CONCURRENCY", raising=False)


def faults_of(tmp_path: Path, text: str) -> tuple[str, ...]:
    file = tmp_path / "k.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_settings(config=file)
    return caught.value.faults


def test_the_defaults_are_the_tier_table() -> None:
    """Without any source the thresholds are 70, 85 and 95 % and the embedded engine is the backend."""
    settings = load_settings()
    tiers = settings.admission_policy().tiers
    assert (tiers.trim.enter, tiers.restrict.enter, tiers.reject.enter) == (0.70, 0.85, 0.95)
    assert tiers.reject.signals == (Signal.PROJECTED, Signal.PEAK)
    assert settings.backends[0].url == "sim://"
    assert settings.admission_policy().blind is BlindPolicy.LEDGER


def test_signals_become_what_the_core_takes(tmp_path: Path) -> None:
    """A gauge keeps everybody out down to the margin below REJECT; limits are off unless set."""
    signals = load_settings().signal_policy()
    assert signals == SignalPolicy(full_ratio=0.95 - 0.02)
    assert load_settings().admission_policy().max_prefill_backlog_tokens is None
    file = tmp_path / "k.yaml"
    file.write_text(
        "signals: {stall_seconds: 5, probe_seconds: 2, max_preemptions_per_second: 0, max_prefill_backlog_tokens: 9}"
    )
    chosen = load_settings(config=file)
    assert chosen.signal_policy() == SignalPolicy(
        stall_seconds=5, probe_seconds=2, max_preemptions_per_second=0, full_ratio=0.95 - 0.02
    )
    assert chosen.admission_policy().max_prefill_backlog_tokens == 9


def test_a_flag_beats_the_environment_which_beats_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each setting comes from the strongest source that names it."""
    file = tmp_path / "k.yaml"
    file.write_text("listen: {host: 127.0.0.1, port: 1, admin_port: 2}\n")
    monkeypatch.setenv("KVGUARD_LISTEN__PORT", "3")
    monkeypatch.setenv("KVGUARD_LISTEN__ADMIN_PORT", "4")
    listen = load_settings(config=file, flags={"listen": {"admin_port": 5}}).listen
    assert (listen.host, listen.port, listen.admin_port) == ("127.0.0.1", 3, 5)


def test_kvguard_yaml_in_the_working_directory_is_read(tmp_path: Path) -> None:
    """A file of the usual name needs no flag."""
    (tmp_path / "kvguard.yaml").write_text("tiers: {trim_at: 0.5}\n")
    assert load_settings().tiers.trim_at == 0.5


def test_every_fault_is_reported_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown keys, bad values, broken rules and unknown variables all appear in one error."""
    monkeypatch.setenv("KVGUARD_TEIRS__TRIM_AT", "0.1")
    faults = faults_of(
        tmp_path,
        """
listen: {port: 99999}
backends: [{url: "ftp://x"}, {url: "http://a", kv_usage: x}]
tiers: {trim_at: 0.9}
degrade: {floor_tokens: 600}
telemetry: {when_blind: maybe, stale_after_seconds: 5}
reject: {status: {saturated: 200}, retry_min_seconds: .nan}
nope: 1
""",
    )
    text = "\n".join(faults)
    for part in (
        "KVGUARD_TEIRS__TRIM_AT: no such setting",
        "listen.port:",
        "backends.0.url: must be http(s)://host:port, tgi+http(s)://host:port, (tgi+)dns+http://name:port, sim:// or",
        "backends.1.kv_usage:",
        "tiers: trim_at < restrict_at < reject_at must hold",
        "degrade: floor_tokens must not exceed max_output_tokens",
        "telemetry.when_blind:",
        "reject.status.saturated",
        "reject.retry_min_seconds:",
        "nope:",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("tiers: {trim_at: 0.5\n", "k.yaml: line 2: expected ',' or '}'"),
        ("- a\n", "must be a mapping of settings, not a list"),
        ("backends: []\n", "backends: name at least one"),
        ("backends: [{url: 'http://a:1'}, {url: 'http://a:1'}]\n", "two backends are named a:1"),
        ("backends: [{url: 'http://u:p@a:1'}]\n", "must not hold a user or a password"),
        ("backends: [{url: 'http://:p@a:1'}]\n", "must not hold a user or a password"),
        ("backends: [{url: 'dns+http://@a:1'}]\n", "must not hold a user or a password"),
        (
            "backends: [{url: 'dns+http://a:1', name: a}, {url: 'http://b:1', name: a/10.0.0.1}]\n",
            "a/10.0.0.1 is named as a server that is found under another name",
        ),
        ("backends: [{url: 'http://a:1/v1'}]\n", "must end after host:port; kvguard adds the path"),
        ("backends: [{url: 'http://a:99999'}]\n", "backends.0.url"),
        ("backends: [{url: 'http://a:abc'}]\n", "backends.0.url"),
        ("listen: {port: 80, admin_port: 80}\n", "port and admin_port must differ"),
        ("telemetry: {interval_seconds: 3}\n", "stale_after_seconds must be at least twice interval_seconds"),
        ("reject: {retry_min_seconds: 40}\n", "retry_min_seconds must not exceed retry_max_seconds"),
        ("\xff", "k.yaml:"),
    ],
)
def test_a_broken_file_is_named_with_what_is_wrong(tmp_path: Path, text: str, part: str) -> None:
    """A file that cannot be used gives one clear line, never a traceback."""
    file = tmp_path / "k.yaml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(SettingsError) as caught:
        load_settings(config=file)
    assert part in str(caught.value)


def test_a_broken_file_is_not_quoted(tmp_path: Path) -> None:
    """What stands in it may be a secret by mistake, and faults end up in logs."""
    (fault,) = faults_of(tmp_path, "identity: {keys: {sk-canary: {tenant: a}\n")
    assert "sk-canary" not in fault


def test_a_missing_file_is_an_error_when_it_was_named(tmp_path: Path) -> None:
    """A mistyped --config is not silently replaced by defaults."""
    with pytest.raises(SettingsError, match="no such file"):
        load_settings(config=tmp_path / "other.yaml")


def test_a_directory_of_the_usual_name_is_an_error(tmp_path: Path) -> None:
    """Container runtimes make one where the file to be mounted is missing; that is no wish for the defaults."""
    (tmp_path / "kvguard.yaml").mkdir()
    with pytest.raises(SettingsError, match=r"^kvguard\.yaml: is a directory$"):
        load_settings()


def test_a_name_that_is_there_twice_is_a_fault(tmp_path: Path) -> None:
    """The last one is not silently taken. A key in place of its fingerprint is not told."""
    text = "waiting:\n  max_requests: 1\n  max_requests: 2\nidentity:\n  keys:\n    sk-canary: {}\n    sk-canary: {}\n"
    assert faults_of(tmp_path, text) == (
        f"{tmp_path}/k.yaml: line 3: max_requests is there twice, first in line 2",
        f"{tmp_path}/k.yaml: line 7: a name is there twice, first in line 6",
        "identity.keys: each name must be the first 16 hex digits of a key's SHA-256, in quotes; never the key",
    )


def test_an_empty_file_is_a_fault_and_one_with_a_comment_is_not(tmp_path: Path) -> None:
    """A file that was cut off on its way is not a wish for the defaults; no file, or a comment, is."""
    assert "k.yaml: is empty" in faults_of(tmp_path, "")[0]
    (tmp_path / "k.yaml").write_text("# nothing yet\n")
    assert load_settings(config=tmp_path / "k.yaml").model_dump() == load_settings().model_dump()


def test_variables_and_the_file_are_found_at_fault_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes together is looked at over all sources."""
    monkeypatch.setenv("KVGUARD_LISTEN__PORT", "80")
    monkeypatch.setenv("KVGUARD_TIERS__TRIM_AT", "x")
    faults = faults_of(tmp_path, "listen: {admin_port: 80, nope: 1}\ntiers: {restrict_at: 0.5}\n")
    assert [fault.split(",")[0] for fault in faults] == [
        "listen.nope: Extra inputs are not permitted",
        "tiers.trim_at: Input should be a valid number",
        "listen: port and admin_port must differ",
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KVGUARD_SERVICE_HOST", "10.0.0.1"),
        ("KVGUARD_SERVICE_PORT", "8080"),
        ("KVGUARD_ADMIN_SERVICE_PORT_HTTP", "9090"),
        ("KVGUARD_PORT", "tcp://10.0.0.1:8080"),
        ("KVGUARD_PORT_8080_TCP", "tcp://10.0.0.1:8080"),
        ("KVGUARD_PORT_8080_TCP_ADDR", "10.0.0.1"),
    ],
)
def test_variables_kubernetes_adds_for_a_service_are_not_settings(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """A Service named kvguard in the namespace does not keep kvguard from starting."""
    monkeypatch.setenv(name, value)
    load_settings()


def test_a_variable_that_only_looks_like_a_setting_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """KVGUARD_PORT with a number is somebody's mistake for KVGUARD_LISTEN__PORT."""
    monkeypatch.setenv("KVGUARD_PORT", "8081")
    with pytest.raises(SettingsError, match="KVGUARD_PORT: no such setting"):
        load_settings()


@pytest.mark.parametrize(
    "value", ["http://a:1,http://b:2", ' [{"url": "http://a:1"}, {"url": "http://b:2"}]', "http://a:1, http://b:2"]
)
def test_backends_in_a_variable_are_json_or_plain_addresses(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """The most needed variable needs no JSON."""
    monkeypatch.setenv("KVGUARD_BACKENDS", value)
    assert [backend.url for backend in load_settings().backends] == ["http://a:1", "http://b:2"]


@pytest.mark.parametrize(("name", "value"), [("KVGUARD_LISTEN", "abc"), ("KVGUARD_BACKENDS", "[1")])
def test_a_variable_that_cannot_be_read_is_a_fault(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """Broken JSON in the environment is one clear line, like any other fault."""
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError):
        load_settings()


def test_what_is_never_trimmed_follows_the_switches() -> None:
    """Tools and structured output are spared unless switched on; reasoning models always are."""
    spared = load_settings().degrade.policy().untrimmed
    assert spared == {Trait.TOOLS, Trait.STRUCTURED_OUTPUT, Trait.REASONING}
    both = load_settings(flags={"degrade": {"trim_tools": True, "trim_structured_output": True}})
    assert both.degrade.policy().untrimmed == {Trait.REASONING}


@pytest.mark.parametrize(("flag", "variable", "faults"), [(None, None, 0), (1, "1", 0), (2, None, 1), (4, "3", 2)])
def test_more_than_one_worker_is_a_fault(
    monkeypatch: pytest.MonkeyPatch, flag: int | None, variable: str | None, faults: int
) -> None:
    """Flag and environment are both looked at."""
    if variable is not None:
        monkeypatch.setenv("WEB_CONCURRENCY", variable)
    assert len(worker_faults(flag)) == faults


@pytest.mark.parametrize(("margin", "fault"), [(0.3, False), (0.7, True), (0.96, True)])
def test_a_tier_that_was_entered_can_be_left(tmp_path: Path, margin: float, fault: bool) -> None:
    """A margin as large as the lowest threshold would keep the tier on an empty cache."""
    file = tmp_path / "kvguard.yaml"
    file.write_text(f"tiers: {{exit_margin: {margin}}}")
    with pytest.raises(SettingsError, match="exit_margin") if fault else contextlib.nullcontext():
        load_settings(config=file)
