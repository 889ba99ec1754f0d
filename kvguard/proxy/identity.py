"""Who sends a request: a header of a hop that is trusted, else the hash of an API key, never the client's own word.

A key is hashed at once and its hash looked up; neither it nor a header's value goes anywhere else.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Final

from kvguard.admission.policies import NORMAL
from kvguard.proxy.headers import find, sane_request_id
from kvguard.proxy.upstream import Headers

ANONYMOUS: Final = "anonymous"
FINGERPRINT_DIGITS: Final = 16
_SCHEME = b"bearer "


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Whose share a request counts towards, and the class it is decided by."""

    tenant: str = ANONYMOUS
    priority: str = NORMAL


ANYBODY: Final = Caller()


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityPolicy:
    """What is believed. `trusted` are the networks of the hops whose headers are; `keys` are callers by fingerprint.

    With `tenant_per_key` every key is a tenant of its own, listed or not. `classes` are the priorities there are.
    """

    tenant_header: bytes | None = None
    priority_header: bytes | None = None
    trusted: tuple[IPv4Network | IPv6Network, ...] = ()
    keys: Mapping[str, Caller] = field(default_factory=dict)
    tenant_per_key: bool = False
    classes: frozenset[str] = frozenset({NORMAL})

    def trusts(self, peer: str | None) -> bool:
        """Whether the headers of whoever connected from this address are believed."""
        if peer is None or not self.trusted:
            return False
        try:
            address = ip_address(peer)
        except ValueError:
            return False
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network for network in self.trusted)

    def caller(self, headers: Headers, *, trusted: bool) -> Caller:
        """Who the request is from; `trusted` says that the identity headers are believed."""
        known = self._by_key(headers)
        if not trusted:
            return known
        tenant, priority = _stated(headers, self.tenant_header), _stated(headers, self.priority_header)
        return Caller(
            tenant=tenant or known.tenant,
            priority=priority if priority in self.classes else known.priority,
        )

    def withheld(self, *, trusted: bool) -> frozenset[bytes]:
        """Headers that do not reach a backend: what a client says of itself."""
        names = (self.tenant_header, self.priority_header)
        return frozenset() if trusted else frozenset(name for name in names if name is not None)

    def _by_key(self, headers: Headers) -> Caller:
        if not self.keys and not self.tenant_per_key:
            return ANYBODY
        value = find(headers, b"authorization")
        if value is None or value[: len(_SCHEME)].lower() != _SCHEME:
            return ANYBODY
        digits = fingerprint(value[len(_SCHEME) :].strip())
        unlisted = Caller(tenant=f"key-{digits}") if self.tenant_per_key else ANYBODY
        return self.keys.get(digits, unlisted)


def fingerprint(key: bytes) -> str:
    """What a key is known by: the first digits of its SHA-256, in hex."""
    return hashlib.sha256(key).hexdigest()[:FINGERPRINT_DIGITS]


def _stated(headers: Iterable[tuple[bytes, bytes]], name: bytes | None) -> str | None:
    """The value of a trusted header. One that comes twice was not written by one hop, and is not believed."""
    values = [value for key, value in headers if key.lower() == name]
    return sane_request_id(values[0]) if len(values) == 1 else None
