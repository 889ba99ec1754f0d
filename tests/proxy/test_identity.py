"""Who a request is from: trusted hops and known keys, and nothing a client can make up."""

from ipaddress import ip_network

import pytest

from kvguard.proxy.identity import ANYBODY, Caller, IdentityPolicy, fingerprint
from kvguard.proxy.upstream import Headers

KEY = b"sk-canary"
BATCH = Caller(tenant="lab", priority="sheddable")
POLICY = IdentityPolicy(
    tenant_header=b"x-tenant",
    priority_header=b"x-priority",
    trusted=(ip_network("10.0.0.0/8"), ip_network("::1/128")),
    keys={fingerprint(KEY): BATCH},
    classes=frozenset({"normal", "sheddable", "critical"}),
)
BEARER = (b"authorization", b"Bearer " + KEY)


@pytest.mark.parametrize(
    ("peer", "trusted"),
    [
        ("10.0.0.0", True),
        ("10.255.255.255", True),
        ("11.0.0.0", False),
        ("::ffff:10.1.2.3", True),
        ("::1", True),
        ("::2", False),
        ("unix", False),
        (None, False),
    ],
)
def test_only_hops_of_the_named_networks_are_trusted(peer: str | None, trusted: bool) -> None:
    """By the address of the connection, in either family; whoever has none is not trusted."""
    assert POLICY.trusts(peer) is trusted
    assert not IdentityPolicy().trusts(peer)


@pytest.mark.parametrize(
    ("headers", "trusted", "caller"),
    [
        ([], True, ANYBODY),
        ([(b"x-tenant", b"a")], True, Caller(tenant="a")),
        ([(b"X-Tenant", b"a"), (b"x-priority", b"critical")], True, Caller(tenant="a", priority="critical")),
        ([(b"x-priority", b"critical")], True, Caller(priority="critical")),
        ([(b"x-tenant", b"a"), (b"x-priority", b"critical")], False, ANYBODY),
        ([BEARER], True, BATCH),
        ([BEARER], False, BATCH),
        ([BEARER, (b"x-tenant", b"a")], True, Caller(tenant="a", priority="sheddable")),
        ([BEARER, (b"x-tenant", b"a"), (b"x-priority", b"critical")], False, BATCH),
        ([(b"authorization", b"bearer  " + KEY + b" ")], False, BATCH),
        ([(b"authorization", b"Basic " + KEY)], False, ANYBODY),
        ([(b"authorization", b"Bearer sk-other")], False, ANYBODY),
        ([(b"x-priority", b"urgent")], True, ANYBODY),
        ([BEARER, (b"x-priority", b"urgent")], True, BATCH),
        ([(b"x-tenant", b"a"), (b"x-tenant", b"b")], True, ANYBODY),
        ([(b"x-tenant", b"a b")], True, ANYBODY),
        ([(b"x-tenant", b"")], True, ANYBODY),
        ([(b"x-tenant", b"a" * 129)], True, ANYBODY),
    ],
)
def test_a_trusted_header_beats_a_known_key_and_nothing_else_counts(
    headers: Headers, trusted: bool, caller: Caller
) -> None:
    """What is repeated, malformed or no class of ours is as good as not said."""
    assert POLICY.caller(headers, trusted=trusted) == caller


def test_an_unlisted_key_is_a_tenant_only_if_keys_are_trusted() -> None:
    """A client that makes up keys stays one tenant, unless the settings say that somebody checks them."""
    headers = [(b"authorization", b"Bearer sk-other")]
    digits = fingerprint(b"sk-other")
    assert IdentityPolicy(tenant_per_key=True).caller(headers, trusted=False) == Caller(tenant=f"key-{digits}")
    assert IdentityPolicy().caller(headers, trusted=False) == ANYBODY
    assert len(digits) == 16


@pytest.mark.parametrize(("trusted", "names"), [(True, set()), (False, {b"x-tenant", b"x-priority"})])
def test_what_a_client_says_of_itself_is_withheld_from_backends(trusted: bool, names: set[bytes]) -> None:
    """A trusted hop's headers go on; with none configured there is nothing to withhold."""
    assert POLICY.withheld(trusted=trusted) == names
    assert IdentityPolicy().withheld(trusted=False) == frozenset()
