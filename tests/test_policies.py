"""From settings to everything that goes by them."""

from pathlib import Path
from typing import Any

import pytest

from kvguard.admission.capacity import CapacityPolicy
from kvguard.errors import SettingsError
from kvguard.policies import config_hash, governance_of, policies_of
from kvguard.pool.health import HealthPolicy
from kvguard.pool.pool import RoutingPolicy
from kvguard.proxy.identity import Caller, fingerprint
from kvguard.settings import Settings
from kvguard.sources import load_settings


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def loaded(**sections: Any) -> Settings:
    return load_settings(flags=sections)


def test_who_asks_decides_on_terms() -> None:
    """Class, rank, share and weight are found by who the request is from."""
    governance = governance_of(
        loaded(
            identity={
                "tenant_header": "x-tenant",
                "trusted_proxies": ["10.0.0.0/8"],
                "keys": {fingerprint(b"k"): {"tenant": "nightly", "priority": "sheddable"}},
            },
            tenants=[{"name": "nightly", "max_share": 0.4, "weight": 2}, {"name": "*", "max_share": 0.6}],
        )
    )
    by_key = governance.identity.caller([(b"authorization", b"Bearer k")], trusted=False)
    terms = governance.terms("/v1/completions", "m", by_key)
    assert (terms.caller, terms.priority.rank) == (Caller(tenant="nightly", priority="sheddable"), 10)
    assert (terms.tenant.max_share, terms.tenant.weight) == (0.4, 2)
    assert terms.policy.tiers.reject.enter == 0.80
    by_header = governance.identity.caller([(b"x-tenant", b"a")], trusted=governance.identity.trusts("10.1.1.1"))
    assert governance.terms("/v1/completions", "m", by_header).tenant.max_share == 0.6
    assert not terms.shadow_on("sim")


def test_an_override_for_a_route_there_is_not_is_a_fault() -> None:
    """A mistyped path is not silently without effect."""
    with pytest.raises(SettingsError, match="overrides: /v1/chat: no such route; there are /v1/completions"):
        governance_of(loaded(overrides=[{"routes": ["/v1/chat"]}]))


def test_policies_are_made_of_the_settings() -> None:
    """Of every section that may change while kvguard runs; how large a cache is, is each backend's own."""
    settings = loaded(
        telemetry={"stale_after_seconds": 9},
        signals={"stall_seconds": 7},
        tiers={"reject_at": 0.9},
        forecast={"quantile": 0.8},
        reject={"retry_min_seconds": 2},
        routing={"affinity_margin": 0.2, "session_header": "X-Session-Id"},
        health={"failures": 0, "eject_seconds": 1, "max_eject_seconds": 3},
    )
    policies = policies_of(settings)
    assert (policies.occupancy.stale_after_seconds, policies.occupancy.capacity) == (9, CapacityPolicy())
    assert policies.routing == RoutingPolicy(affinity_margin=0.2)
    assert policies.health == HealthPolicy(failures=None, eject_seconds=1, max_eject_seconds=3)
    assert (policies.lengths.quantile, policies.retry.min_seconds, policies.path.retry_after_seconds) == (0.8, 2, 2)
    assert (policies.signals.stall_seconds, policies.signals.full_ratio) == (7, pytest.approx(0.88))
    assert policies.in_force.config_hash == config_hash(settings) != config_hash(loaded())
