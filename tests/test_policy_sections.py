"""Settings about who is treated how: what combines to which policy, and every fault of theirs."""

from pathlib import Path
from typing import Any

import pytest

from kvguard.admission.decision import BlindPolicy
from kvguard.admission.policies import NORMAL
from kvguard.admission.policy import TrimMode
from kvguard.errors import SettingsError
from kvguard.settings import Settings
from kvguard.sources import load_settings

CHAT = "/v1/chat/completions"


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def loaded(**sections: Any) -> Settings:
    return load_settings(flags=sections)


def test_the_built_in_classes_are_shed_in_order() -> None:
    """Sheddable first, then normal, then critical; what is exempt never is. Whatever the plain thresholds are."""
    for tiers in (
        {},
        {"trim_at": 0.1, "restrict_at": 0.2, "reject_at": 0.3},
        {"trim_at": 0.97, "restrict_at": 0.98, "reject_at": 0.99},
    ):
        table = loaded(tiers=tiers).policy_plan().table()
        policies = {name: table.of("m", CHAT, name) for name in table.classes}
        assert list(policies) == ["sheddable", NORMAL, "critical", "exempt"]
        assert [policies[name].exempt for name in policies] == [False, False, False, True]
        assert sorted(table.classes.values(), key=lambda each: -each.rank) == list(table.classes.values())
    assert loaded().policy_plan().table().default.tiers.reject.enter == 0.95


def test_a_class_goes_over_an_override_which_goes_over_the_plain_settings() -> None:
    """Each names only what differs; the first override that covers a request is the only one."""
    table = (
        loaded(
            tiers={"trim_at": 0.1, "restrict_at": 0.8, "reject_at": 0.9},
            degrade={"floor_tokens": 10, "max_output_tokens": 100},
            overrides=[
                {"models": "big-*", "routes": [CHAT], "tiers": {"trim_at": 0.2}, "degrade": {"mode": "proportional"}},
                {"models": "big-*", "tiers": {"trim_at": 0.3, "restrict_at": 0.7}},
            ],
            classes=[
                {"name": "low", "tiers": {"restrict_at": 0.5}, "degrade": {"floor_tokens": 20, "allow_opt_out": True}}
            ],
        )
        .policy_plan()
        .table()
    )
    found = {
        (model, route, priority): table.of(model, route, priority)
        for model in ("big-1", "small")
        for route in (CHAT, "/v1/completions")
        for priority in (NORMAL, "low")
    }
    enters = {key: (each.tiers.trim.enter, each.tiers.restrict.enter) for key, each in found.items()}
    assert enters == {
        ("big-1", CHAT, NORMAL): (0.2, 0.8),
        ("big-1", CHAT, "low"): (0.2, 0.5),
        ("big-1", "/v1/completions", NORMAL): (0.3, 0.7),
        ("big-1", "/v1/completions", "low"): (0.3, 0.5),
        ("small", CHAT, NORMAL): (0.1, 0.8),
        ("small", CHAT, "low"): (0.1, 0.5),
        ("small", "/v1/completions", NORMAL): (0.1, 0.8),
        ("small", "/v1/completions", "low"): (0.1, 0.5),
    }
    chosen = found["big-1", CHAT, "low"].degrade
    assert (chosen.mode, chosen.floor_tokens, chosen.max_output_tokens) == (TrimMode.PROPORTIONAL, 20, 100)
    assert chosen.allow_opt_out
    assert not found["big-1", CHAT, NORMAL].degrade.allow_opt_out


@pytest.mark.parametrize(
    ("sections", "part"),
    [
        ({"classes": [{"name": "low", "tiers": {"reject_at": 0.8}}]}, "classes.low: trim_at < restrict_at < reject_at"),
        (
            {"overrides": [{"tiers": {"trim_at": 0.9}}], "classes": [{"name": "top", "tiers": {"restrict_at": 0.91}}]},
            "overrides.0: trim_at < restrict_at < reject_at must hold",
        ),
        (
            {
                "overrides": [{"tiers": {"trim_at": 0.8}}],
                "classes": [{"name": "low", "tiers": {"restrict_at": 0.75}}],
            },
            "overrides.0 with classes.low: trim_at < restrict_at < reject_at must hold",
        ),
        ({"classes": [{"name": "low", "tiers": {"trimat": 0.8}}]}, "classes.low: trimat: Extra inputs"),
        ({"classes": [{"name": "low", "degrade": {"floor_tokens": 600}}]}, "floor_tokens must not exceed"),
        ({"classes": [{"name": "a"}, {"name": "a"}]}, "classes: two are named a"),
        ({"classes": [{"name": "a b"}]}, "classes.0.name"),
        ({"tenants": [{"name": "a"}, {"name": "a"}]}, "tenants: two are named a"),
        ({"tenants": [{"name": "a", "max_share": 0}]}, "tenants.0.max_share"),
        ({"tenants": [{"name": "a", "max_share": 1.1}]}, "tenants.0.max_share"),
        ({"tenants": [{"name": "a", "weight": 0}]}, "tenants.0.weight"),
        ({"identity": {"keys": {"0" * 16: {"tenant": "a", "priority": "vip"}}}}, "there is no class vip"),
        ({"identity": {"tenant_header": "Authorization"}}, "must be a header that means nothing else"),
        ({"identity": {"tenant_header": "x tenant"}}, "must be a header that means nothing else"),
        (
            {"identity": {"tenant_header": "X-Who", "priority_header": "x-who"}},
            "tenant_header and priority_header must",
        ),
        ({"identity": {"priority_header": "X-Request-Id"}}, "must be a header that means nothing else"),
        ({"identity": {"tenant_header": "proxy-authorization"}}, "must be a header that means nothing else"),
        ({"identity": {"keys": {"0" * 16: {"tenant": "other"}}}}, f"identity.keys.{'0' * 16}.tenant: other is what"),
        ({"tenants": [{"name": "other"}]}, "tenants.0.name: other is what metrics call"),
        ({"tenants": [{"name": "**"}]}, "tenants.0.name"),
        ({"mode": "off"}, "mode:"),
    ],
)
def test_what_cannot_be_meant_is_a_fault(sections: dict[str, Any], part: str) -> None:
    """Every combination is checked when the settings are read."""
    with pytest.raises(SettingsError) as caught:
        loaded(**sections)
    assert part in str(caught.value)


NO_NETWORK = "must be an address or a network, such as 10.0.0.0/8; names are not looked up"


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ("10.20.0.1/16", "10.20.0.1/16 goes on behind its prefix; the network is 10.20.0.0/16"),
        ("fd00::1/8", "fd00::1/8 goes on behind its prefix; the network is fd00::/8"),
        ("gateway", NO_NETWORK),
        ("10.0.0.0/33", NO_NETWORK),
        ("10.0.0", NO_NETWORK),
        (10, NO_NETWORK),
        (True, NO_NETWORK),
    ],
)
def test_a_bad_network_is_named_with_what_is_wrong(entry: object, text: str) -> None:
    """One line for the entry, which says what to write."""
    with pytest.raises(SettingsError) as caught:
        loaded(identity={"trusted_proxies": ["10.0.0.0/8", entry]})
    assert caught.value.faults == (f"identity.trusted_proxies.1: {text}",)


def test_networks_are_addresses_or_prefixes_of_both_kinds() -> None:
    """An address alone is a network of one."""
    settings = loaded(identity={"trusted_proxies": ["10.0.0.0/8", "127.0.0.1", "fd00::/8", "::1"]})
    networks = [str(network) for network in settings.identity.trusted_proxies]
    assert networks == ["10.0.0.0/8", "127.0.0.1/32", "fd00::/8", "::1/128"]
    assert loaded(identity=settings.identity.model_dump()).identity == settings.identity


def test_names_that_metrics_have_another_meaning_for_are_only_tenants() -> None:
    """A class may have any name, and so may everybody without a tenant."""
    settings = loaded(
        classes=[{"name": "other"}, {"name": "anonymous"}], tenants=[{"name": "anonymous"}, {"name": "*"}]
    )
    assert [each.name for each in settings.classes] == ["other", "anonymous"]


@pytest.mark.parametrize("name", ["sk-canary-key", "0" * 15, "0" * 17, "G" * 16, "ABCDEF0123456789"])
def test_a_key_in_place_of_its_fingerprint_is_not_repeated(name: str) -> None:
    """Whoever writes the key itself into the settings is told so without seeing it in a log."""
    with pytest.raises(SettingsError) as caught:
        loaded(identity={"keys": {name: {"tenant": "a", "nope": 1}}})
    assert "the first 16 hex digits of a key's SHA-256" in str(caught.value)
    assert name not in str(caught.value)


def test_tenants_are_named_by_settings_and_keys() -> None:
    """`*` is nobody's name."""
    settings = loaded(
        tenants=[{"name": "a", "max_share": 0.5}, {"name": "*", "max_share": 0.2, "weight": 3}],
        identity={"keys": {"0" * 16: {"tenant": "lab"}}, "tenant_header": "X-Tenant"},
    )
    assert set(settings.tenant_names()) == {"a", "lab"}
    assert settings.identity.tenant_header == "x-tenant"


@pytest.mark.parametrize(
    ("mode", "own", "shadowed"),
    [
        ("enforce", None, set()),
        ("shadow", None, {"a:1", "b:2"}),
        ("enforce", "shadow", {"a:1"}),
        ("shadow", "enforce", {"b:2"}),
    ],
)
def test_a_backends_own_mode_goes_over_that_of_all(mode: str, own: str | None, shadowed: set[str]) -> None:
    """The more specific one counts."""
    backends = [{"url": "http://a:1", "mode": own}, {"url": "http://b:2"}]
    assert loaded(mode=mode, backends=backends).shadowed() == shadowed


def test_the_backlog_is_bounded_whatever_the_class_and_the_override() -> None:
    """Like the policy for a lost gauge, it is the backend's and nobody's own."""
    settings = loaded(
        signals={"max_prefill_backlog_tokens": 1000},
        telemetry={"when_blind": "closed"},
        overrides=[{"models": "big-*", "tiers": {"trim_at": 0.6}}],
    )
    table = settings.policy_plan().table()
    for policy in (table.of(model, CHAT, name) for model in ("big-1", "small") for name in table.classes):
        assert (policy.max_prefill_backlog_tokens, policy.blind) == (1000, BlindPolicy.CLOSED)
