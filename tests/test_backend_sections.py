"""Settings of backends: names that stand for many servers, and how they are looked up."""

from typing import Any

import pytest

from kvguard.backend_sections import BackendSettings, DiscoverySettings
from kvguard.discovery import DiscoveryPolicy
from kvguard.engines.kind import EngineKind
from kvguard.errors import SettingsError
from kvguard.settings import Settings


@pytest.mark.parametrize(
    ("url", "kind", "discovers", "host", "label"),
    [
        ("dns+http://vllm:8000", EngineKind.VLLM, True, "vllm", "vllm:8000"),
        ("dns+http://vllm.prod.svc.cluster.local.:8000/", EngineKind.VLLM, True, "vllm.prod.svc.cluster.local.", None),
        ("tgi+dns+http://tgi:3000", EngineKind.TGI, True, "tgi", "tgi:3000"),
        ("dns+http://10.0.0.5:8000", EngineKind.VLLM, True, "10.0.0.5", "10.0.0.5:8000"),
        ("http://dns:8000", EngineKind.VLLM, False, "dns", "dns:8000"),
        ("tgi+https://tgi:3000", EngineKind.TGI, False, "tgi", "tgi:3000"),
        ("sim://", EngineKind.VLLM, False, "", "sim"),
    ],
)
def test_an_address_says_whether_it_is_a_name_to_look_up(
    url: str, kind: EngineKind, discovers: bool, host: str, label: str | None
) -> None:
    """`dns+` comes after the engine's prefix, and the label has neither."""
    backend = BackendSettings(url=url)
    assert (backend.kind, backend.discovers, backend.host) == (kind, discovers, host)
    assert backend.label == (label or "vllm.prod.svc.cluster.local.:8000")


@pytest.mark.parametrize(
    ("entry", "address", "url", "label"),
    [
        ({"url": "dns+http://vllm:8000"}, "10.0.0.5", "http://10.0.0.5:8000", "vllm:8000/10.0.0.5"),
        ({"url": "dns+http://vllm:8000", "name": "chat"}, "10.0.0.5", "http://10.0.0.5:8000", "chat/10.0.0.5"),
        ({"url": "dns+http://vllm", "name": "chat"}, "10.0.0.5", "http://10.0.0.5:80", "chat/10.0.0.5"),
        ({"url": "dns+http://vllm:8000", "name": "chat"}, "fd00::5", "http://[fd00::5]:8000", "chat/fd00::5"),
        ({"url": "tgi+dns+http://tgi:3000", "name": "chat"}, "10.0.0.5", "tgi+http://10.0.0.5:3000", "chat/10.0.0.5"),
    ],
)
def test_each_address_is_a_backend_of_its_own(entry: dict[str, Any], address: str, url: str, label: str) -> None:
    """A plain one, called after the entry and the address, for which the rest of the entry holds."""
    backend = BackendSettings(**entry, capacity_blocks=7, geometry="llama-3-8b")
    expected = BackendSettings(url=url, name=label, capacity_blocks=7, geometry="llama-3-8b")
    assert backend.at(address) == expected
    assert not expected.discovers


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("dns+https://vllm:8000", "certificates are for names"),
        ("tgi+dns+https://tgi:3000", "certificates are for names"),
        ("dns+tgi+http://tgi:3000", "\\(tgi\\+\\)dns\\+http://name:port"),
        ("dns+dns+http://vllm:8000", "\\(tgi\\+\\)dns\\+http://name:port"),
        ("dns+vllm:8000", "\\(tgi\\+\\)dns\\+http://name:port"),
        ("dns+http://", "\\(tgi\\+\\)dns\\+http://name:port"),
        ("dns+sim://", "\\(tgi\\+\\)dns\\+http://name:port"),
        ("dns+http://vllm:8000/v1", "must end after host:port"),
        ("dns+http://vllm:0", "port must be 1 to 65535"),
    ],
)
def test_a_name_that_cannot_be_looked_up_is_a_fault(url: str, fault: str) -> None:
    """It says what would be right."""
    with pytest.raises(SettingsError, match=fault):
        Settings(backends=[{"url": url}])


def test_two_entries_of_one_name_need_names_of_their_own() -> None:
    """Their backends would have the same labels."""
    with pytest.raises(SettingsError, match="two backends are named vllm:8000"):
        Settings(backends=[{"url": "dns+http://vllm:8000"}, {"url": "http://vllm:8000"}])


def test_embedded_engines_are_numbered() -> None:
    """Their addresses tell nothing apart; those that have names keep them."""
    urls = ["sim://", "sim://?max_num_seqs=4", "sim://"]
    settings = Settings(backends=[*({"url": url} for url in urls), {"url": "sim://", "name": "own"}])
    assert [backend.label for backend in settings.backends] == ["sim", "sim-2", "sim-3", "own"]


def test_look_ups_go_by_their_section() -> None:
    """The defaults are those of the policy; whatever is set is in it."""
    assert DiscoverySettings().policy() == DiscoveryPolicy()
    chosen = {"interval_seconds": 1.0, "timeout_seconds": 0.5, "nameservers": ("10.0.0.10", "[fd00::10]:5353")}
    assert Settings(discovery=chosen).discovery.policy() == DiscoveryPolicy(**chosen)


@pytest.mark.parametrize("nameserver", ["dns.test", "10.0.0.10:0", "https://10.0.0.10/dns-query"])
def test_a_name_server_has_an_address(nameserver: str) -> None:
    """A name would have to be looked up first."""
    with pytest.raises(SettingsError, match="must be an address"):
        Settings(discovery={"nameservers": [nameserver]})
