"""Discovery: what a name server's answers, and its failures, make of the addresses behind a name."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from kvguard.clock import ManualClock
from kvguard.discovery import MAX_ADDRESSES, Discovery, DiscoveryPolicy, Resolver, parse_nameserver
from kvguard.errors import DiscoveryError, SettingsError
from tests.kit.dns_server import DnsServer, Failure, Query, running_dns_server

pytestmark = pytest.mark.anyio

NOWHERE = Path("/nonexistent/resolv.conf")


def resolver(*servers: DnsServer, timeout_seconds: float = 10.0, resolv_conf: Path = NOWHERE) -> Resolver:
    """One that asks these servers."""
    nameservers = tuple(server.address for server in servers)
    return Resolver(DiscoveryPolicy(timeout_seconds=timeout_seconds, nameservers=nameservers), resolv_conf)


@pytest.mark.parametrize(
    ("records", "found"),
    [
        (["10.0.0.1"], {"10.0.0.1"}),
        (["10.0.0.1", "10.0.0.2", "10.0.0.3"], {"10.0.0.1", "10.0.0.2", "10.0.0.3"}),
        (["fd00::1", "fd00:0:0::2"], {"fd00::1", "fd00::2"}),
        (["10.0.0.1", "fd00::1", "10.0.0.2", "fd00::2"], {"10.0.0.1", "10.0.0.2"}),
        ([f"10.1.{n // 256}.{n % 256}" for n in range(MAX_ADDRESSES)], None),
    ],
)
async def test_a_name_is_its_addresses_each_server_once(records: list[str], found: set[str] | None) -> None:
    """IPv6 addresses count where there are no others; the largest answer that is taken is taken whole."""
    async with running_dns_server(DnsServer({"vllm.test": records})) as names:
        assert await resolver(names).addresses("vllm.test.") == (found or set(records))


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("10.0.0.5", "10.0.0.5"),
        ("fd00:0::5", "fd00::5"),
        ("localhost", "127.0.0.1"),
        ("localhost.", "127.0.0.1"),
    ],
)
async def test_an_address_and_localhost_need_no_name_server(host: str, address: str) -> None:
    """They are what they are, and nobody is asked."""
    async with running_dns_server() as names:
        assert await resolver(names).addresses(host) == {address}
        assert names.queries == []


async def test_an_answer_cut_short_is_asked_for_again_over_tcp() -> None:
    """Part of an answer is never taken for the whole."""
    records = [f"10.0.0.{n}" for n in range(40)]
    async with running_dns_server(DnsServer({"vllm.test": records})) as names:
        assert await resolver(names).addresses("vllm.test.") == set(records)
    assert names.queries == [Query("udp", "vllm.test", "A"), Query("tcp", "vllm.test", "A")]


@pytest.mark.parametrize(
    ("server", "host", "why"),
    [
        (DnsServer(), "vllm.test.", "the name does not exist"),
        (DnsServer({"vllm.test": []}), "vllm.test.", "the name has no addresses"),
        (DnsServer(failure=Failure.SERVFAIL), "vllm.test.", "no name server gave a usable answer"),
        (DnsServer(), f"{'x' * 64}.test.", "the name cannot be looked up"),
        (
            DnsServer({"vllm.test": [f"10.1.{n // 256}.{n % 256}" for n in range(MAX_ADDRESSES + 1)]}),
            "vllm.test.",
            f"the name has more than {MAX_ADDRESSES} addresses",
        ),
    ],
)
async def test_a_look_up_that_gives_nothing_says_why(server: DnsServer, host: str, why: str) -> None:
    """Each kind of failure has words of its own."""
    async with running_dns_server(server):
        with pytest.raises(DiscoveryError) as failed:
            await resolver(server).addresses(host)
    assert str(failed.value) == why


async def test_a_silent_name_server_is_waited_for_no_longer_than_set() -> None:
    """After the time-out the look-up has failed."""
    async with running_dns_server(DnsServer(failure=Failure.SILENCE)) as names:
        with pytest.raises(DiscoveryError, match="no name server answered in time"):
            await resolver(names, timeout_seconds=0.05).addresses("vllm.test.")


@pytest.mark.parametrize("failure", list(Failure))
async def test_the_next_name_server_is_asked_when_one_fails(failure: Failure) -> None:
    """One that is silent leaves time for the other."""
    broken, sound = DnsServer(failure=failure), DnsServer({"vllm.test": ["10.0.0.1"]})
    async with running_dns_server(broken), running_dns_server(sound):
        assert await resolver(broken, sound, timeout_seconds=2.0).addresses("vllm.test.") == {"10.0.0.1"}
    assert len(broken.queries) == 1


POD_CONF = "search prod.svc.cluster.test svc.cluster.test cluster.test\noptions ndots:5\n"


@pytest.mark.parametrize(
    ("host", "asked"),
    [
        ("vllm", ["vllm.prod.svc.cluster.test"]),
        ("vllm.stage", ["vllm.stage.prod.svc.cluster.test", "vllm.stage.svc.cluster.test"]),
        ("vllm.prod.svc.cluster.test.", ["vllm.prod.svc.cluster.test"]),
        ("other", ["other.prod.svc.cluster.test", "other.svc.cluster.test", "other.cluster.test", "other"]),
    ],
)
async def test_short_names_are_completed_as_in_a_pod(host: str, asked: list[str], tmp_path: Path) -> None:
    """The search domains are tried in order up to a name that exists; a name that ends in a dot is complete."""
    conf = tmp_path / "resolv.conf"
    conf.write_text(POD_CONF)
    table = {"vllm.prod.svc.cluster.test": ["10.0.0.1"], "vllm.stage.svc.cluster.test": ["10.0.0.1"]}
    async with running_dns_server(DnsServer({**table, "other": ["10.0.0.1"]})) as names:
        assert await resolver(names, resolv_conf=conf).addresses(host) == {"10.0.0.1"}
    assert [query.name for query in names.queries] == asked


async def test_a_name_that_exists_without_addresses_ends_the_search(tmp_path: Path) -> None:
    """A service without pods is not mistaken for a namesake in another domain."""
    conf = tmp_path / "resolv.conf"
    conf.write_text(POD_CONF)
    table = {"vllm.prod.svc.cluster.test": [], "vllm.cluster.test": ["192.0.2.1"], "vllm": ["192.0.2.2"]}
    async with running_dns_server(DnsServer(table)) as names:
        with pytest.raises(DiscoveryError, match="has no addresses"):
            await resolver(names, resolv_conf=conf).addresses("vllm")
    kinds = [(query.name, query.type) for query in names.queries]
    assert kinds == [("vllm.prod.svc.cluster.test", "A"), ("vllm.prod.svc.cluster.test", "AAAA")]


@pytest.mark.parametrize("content", [None, "search cluster.test\n", "nameserver here\n"])
def test_nobody_to_ask_is_a_fault_of_the_settings(content: str | None, tmp_path: Path) -> None:
    """Without a usable name server in the system's file there must be one in the settings."""
    conf = tmp_path / "resolv.conf"
    if content is not None:
        conf.write_text(content)
    with pytest.raises(SettingsError, match=r"discovery\.nameservers: .*resolv\.conf names none"):
        Resolver(DiscoveryPolicy(), conf)
    Resolver(DiscoveryPolicy(nameservers=("127.0.0.1",)), conf)


@pytest.mark.parametrize(
    ("text", "server"),
    [
        ("10.0.0.10", ("10.0.0.10", 53)),
        ("127.0.0.1:5353", ("127.0.0.1", 5353)),
        ("127.0.0.1:65535", ("127.0.0.1", 65535)),
        ("fd00::10", ("fd00::10", 53)),
        ("[fd00::10]:5353", ("fd00::10", 5353)),
    ],
)
def test_a_name_server_is_an_address_with_or_without_a_port(text: str, server: tuple[str, int]) -> None:
    """Port 53 is the default."""
    assert parse_nameserver(text) == server


@pytest.mark.parametrize(
    "text", ["", "dns.test", "dns.test:53", "10.0.0.10:", "10.0.0.10:0", "10.0.0.10:65536", "10.0.0.10:+5", "10.0.0:53"]
)
def test_anything_else_is_no_name_server(text: str) -> None:
    """Neither names nor ports that cannot be are taken."""
    with pytest.raises(ValueError, match=r"has no usable port|does not appear to be an IPv4 or IPv6 address"):
        parse_nameserver(text)


class Reports:
    """Remembers what discovery reports."""

    def __init__(self) -> None:
        self.said: list[tuple[object, ...]] = []

    def discovered(self, backend: str, *, before: frozenset[str], after: frozenset[str]) -> None:
        self.said.append((backend, set(before), set(after)))

    def discovery_failed(self, backend: str, *, why: str, known: int, now: float) -> None:
        self.said.append((backend, why, known, now))


class Scripted:
    """Stands in for a resolver: gives these answers one after the other, the last one again and again."""

    def __init__(self, *answers: str | Exception) -> None:
        self.answers = list(answers)

    async def addresses(self, host: str) -> frozenset[str]:
        assert host == "vllm.test"
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return frozenset(answer.split())


GONE = DiscoveryError("the name does not exist")


class Bench:
    """Discovery of one backend by scripted answers."""

    def __init__(self, *answers: str | Exception) -> None:
        self.clock = ManualClock(100.0)
        self.reports = Reports()
        self.changes: list[set[str]] = []
        self.looks: list[float] = []
        self.discovery = Discovery("pool", "vllm.test", Scripted(*answers), self.reports, self.clock, 5.0)

    def note(self, members: frozenset[str]) -> None:
        self.changes.append(set(members))


MANY = " ".join(f"10.0.{number // 256}.{number % 256}" for number in range(MAX_ADDRESSES))


@pytest.mark.parametrize(
    ("answers", "changes"),
    [
        (["a b"] * 4, [{"a", "b"}]),
        (["a", "a b", "a b"], [{"a"}, {"a", "b"}]),
        (["a b", "a", "a"], [{"a", "b"}, {"a"}]),
        (["a b", "a", "a b", "a", "a b"], [{"a", "b"}]),
        (["a", "b", "b"], [{"a"}, {"a", "b"}, {"b"}]),
        (["a b", "a", GONE, "a"], [{"a", "b"}, {"a"}]),
        (["a b", GONE, GONE, GONE, "a b"], [{"a", "b"}]),
        ([GONE, GONE, "a"], [{"a"}]),
        ([GONE, GONE], []),
        # The same servers by their other family, and a change of more than there may be.
        (["a", "::1", "::1"], [{"a"}, {"::1"}]),
        ([MANY, "a", "a"], [set(MANY.split()), {"a"}]),
    ],
)
async def test_addresses_come_at_once_and_go_after_two_answers_without_them(
    answers: list[str | Exception], changes: list[set[str]]
) -> None:
    """Only changes are told, and a failed look-up is no answer: however many there are, the known addresses stay."""
    bench = Bench(*answers)
    for _ in answers:
        await bench.discovery.look(bench.note)
    assert bench.changes == changes


async def test_every_look_up_is_reported() -> None:
    """A failure with its reason and how many addresses stay, a success with what it changed."""
    bench = Bench(GONE, "a", GONE, "a b")
    for _ in range(4):
        await bench.discovery.look(bench.note)
    assert bench.reports.said == [
        ("pool", "the name does not exist", 0, 100.0),
        ("pool", set(), {"a"}),
        ("pool", "the name does not exist", 1, 100.0),
        ("pool", {"a"}, {"a", "b"}),
    ]


@contextlib.asynccontextmanager
async def in_background(bench: Bench, on_members: object):
    """Discovery running for as long as the context lasts."""
    task = asyncio.ensure_future(bench.discovery.run(on_members, lambda: bench.looks.append(bench.clock.now())))
    try:
        await bench.clock.settle()
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_the_name_is_looked_up_at_once_and_then_every_interval() -> None:
    """A change is told when it is due and not before."""
    bench = Bench("a", "a b")
    async with in_background(bench, bench.note):
        assert bench.changes == [{"a"}]
        await bench.clock.advance(4.9)
        assert bench.changes == [{"a"}]
        await bench.clock.advance(0.1)
        assert bench.changes == [{"a"}, {"a", "b"}]
        assert bench.looks == [100.0, 105.0]


async def test_a_change_that_could_not_be_made_is_tried_again() -> None:
    """An error of whoever is told is reported by its type and ends nothing."""
    bench = Bench("a", "a", "a")

    def fail_at_first(members: frozenset[str]) -> None:
        bench.note(members)
        if len(bench.changes) == 1:
            raise RuntimeError("no room")

    async with in_background(bench, fail_at_first):
        await bench.clock.advance(10.0)
    assert bench.changes == [{"a"}, {"a"}]
    assert bench.reports.said == [
        ("pool", "RuntimeError", 0, 100.0),
        ("pool", set(), {"a"}),
        ("pool", {"a"}, {"a"}),
    ]


async def test_pods_that_come_and_go_are_followed_by_dns() -> None:
    """From the name server's table to the addresses in use, through a failure that changes nothing."""
    bench = Bench("")
    async with running_dns_server(DnsServer({"vllm.test": ["127.0.0.1"]})) as names:
        found = Discovery("pool", "vllm.test", resolver(names), bench.reports, bench.clock, 5.0)
        for records, failure in [
            (["127.0.0.1", "127.0.0.2"], None),
            (["127.0.0.2"], Failure.SERVFAIL),
            (["127.0.0.2"], None),
            (["127.0.0.2"], None),
        ]:
            names.table["vllm.test"], names.failure = records, failure
            await found.look(bench.note)
    assert bench.changes == [{"127.0.0.1", "127.0.0.2"}, {"127.0.0.2"}]
