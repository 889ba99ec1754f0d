"""Finds the servers behind a name: asks name servers in the background and says when the addresses change.

Of what is found it knows addresses only. What becomes of a backend that is no longer there is not its matter.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import dns.asyncresolver
import dns.exception
import dns.nameserver
import dns.resolver

from kvguard.clock import Clock
from kvguard.errors import DiscoveryError, SettingsError
from kvguard.telemetry.reporter import Reporter

RESOLV_CONF: Final = Path("/etc/resolv.conf")
DNS_PORT: Final = 53
# Name servers asked, or times one is asked, within a time-out: a datagram may get lost.
TRIES: Final = 2
# Twice what decisions are measured with; an answer of more is taken for a mistake.
MAX_ADDRESSES: Final = 512

Members = Callable[[frozenset[str]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryPolicy:
    """How often and how patiently to ask, and whom; without `nameservers` those of the system."""

    interval_seconds: float = 5.0
    timeout_seconds: float = 2.0
    nameservers: tuple[str, ...] = ()


class Resolver:
    """Looks names up by DNS. Search domains and `ndots` are those of `resolv_conf`; /etc/hosts is not read.

    Raises SettingsError when there is nobody to ask.
    """

    def __init__(self, policy: DiscoveryPolicy, resolv_conf: Path = RESOLV_CONF) -> None:
        self._seconds = policy.timeout_seconds
        self._stub = _stub(policy, resolv_conf)

    async def addresses(self, host: str) -> frozenset[str]:
        """IPv4 addresses of the name, or IPv6 ones if it has no others: a server that has both must not count twice.

        A literal address is itself and `localhost` is 127.0.0.1. Raises DiscoveryError if nothing was found.
        """
        if (known := _without_asking(host)) is not None:
            return frozenset({known})
        try:
            async with asyncio.timeout(self._seconds):
                found = await self._ask(host)
        except (dns.exception.DNSException, TimeoutError) as error:
            raise DiscoveryError(_why(error)) from error
        if not found:
            raise DiscoveryError("the name has no addresses")
        if len(found) > MAX_ADDRESSES:
            raise DiscoveryError(f"the name has more than {MAX_ADDRESSES} addresses")
        return found

    async def _ask(self, host: str) -> frozenset[str]:
        answer = await self._stub.resolve(host, "A", search=True, raise_on_no_answer=False)
        if answer.rrset is None:
            # The name as it was completed: the search must not go on to another that happens to exist.
            answer = await self._stub.resolve(answer.qname, "AAAA", raise_on_no_answer=False)
        return frozenset(record.to_text() for record in answer)


class Discovery:
    """Keeps up with the addresses behind the name of one entry of `backends`, whose label is `backend`.

    A failed look-up changes nothing: servers that are really gone are found unreachable, and a name server that fails
    must not empty the pool. An address goes once two answers in a row are without it, because name servers that stand
    in for each other learn of changes at different moments, and a backend that leaves and returns starts anew.
    """

    def __init__(
        self, backend: str, host: str, resolver: Resolver, reporter: Reporter, clock: Clock, interval_seconds: float
    ) -> None:
        self._backend = backend
        self._host = host
        self._resolver = resolver
        self._reporter = reporter
        self._clock = clock
        self._interval_seconds = interval_seconds
        self._last_answer: frozenset[str] = frozenset()
        self._members: frozenset[str] = frozenset()

    async def run(self, on_members: Members, after_look: Callable[[], None]) -> None:
        """Look for ever; `on_members` is called with all addresses whenever they are others than before, `after_look`
        after each look.
        """
        while True:
            try:
                await self.look(on_members)
            except Exception as error:  # noqa: BLE001  what becomes of a change must not end the looking
                self._failed(type(error).__name__)
            after_look()
            await self._clock.sleep(self._interval_seconds)

    async def look(self, on_members: Members) -> None:
        """Look once. A change that `on_members` raises at is tried again the next time."""
        try:
            answer = await self._resolver.addresses(self._host)
        except DiscoveryError as error:
            self._failed(str(error))
            return
        before, members = self._members, answer | _lingering(self._last_answer, answer)
        if members != before:
            on_members(members)
        self._last_answer, self._members = answer, members
        self._reporter.discovered(self._backend, before=before, after=members)

    def _failed(self, why: str) -> None:
        known = len(self._members)
        self._reporter.discovery_failed(self._backend, why=why, known=known, now=self._clock.now())


def _lingering(last: frozenset[str], answer: frozenset[str]) -> frozenset[str]:
    """Addresses of the last answer that stay beside this one: not those of the other family, which are the same servers
    once more, and none where it would be too many.
    """
    families = {":" in address for address in last | answer}
    return last if len(families) == 1 and len(last | answer) <= MAX_ADDRESSES else frozenset()


def parse_nameserver(text: str) -> tuple[str, int]:
    """Address and port of `10.0.0.10`, `127.0.0.1:5353`, `fd00::10` or `[fd00::10]:5353`. Raises ValueError."""
    with contextlib.suppress(ValueError):
        return str(ip_address(text)), DNS_PORT
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} has no usable port")
    return str(ip_address(host.removeprefix("[").removesuffix("]"))), int(port)


def _stub(policy: DiscoveryPolicy, resolv_conf: Path) -> dns.asyncresolver.Resolver:
    stub = dns.asyncresolver.Resolver(configure=False)
    with contextlib.suppress(dns.exception.DNSException, ValueError):
        stub.read_resolv_conf(resolv_conf)
    if policy.nameservers:
        stub.nameservers = [dns.nameserver.Do53Nameserver(*parse_nameserver(each)) for each in policy.nameservers]
    if not stub.nameservers:
        raise SettingsError([f"discovery.nameservers: {resolv_conf} names none; set some"])
    stub.lifetime, stub.timeout = policy.timeout_seconds, policy.timeout_seconds / TRIES
    return stub


def _without_asking(host: str) -> str | None:
    """The address of a host that needs no name server, as by RFC 6761; None for all others."""
    if host.removesuffix(".") == "localhost":
        return "127.0.0.1"
    try:
        return str(ip_address(host))
    except ValueError:
        return None


def _why(error: Exception) -> str:
    match error:
        case dns.resolver.NXDOMAIN():
            return "the name does not exist"
        case dns.resolver.NoNameservers():
            return "no name server gave a usable answer"
        case dns.exception.Timeout() | TimeoutError():
            return "no name server answered in time"
        case _:
            return "the name cannot be looked up"
