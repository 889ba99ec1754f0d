"""Several servers behind one kvguard, over HTTP: what clients see when one fails, is drained, or comes and goes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from tests.kit.dns_server import DnsServer, running_dns_server
from tests.kit.guard import Guard, guarding
from tests.kit.stub import Stub, broken, exposition, hold_stream, running_stub

pytestmark = pytest.mark.anyio


@contextlib.asynccontextmanager
async def two(first: Stub, second: Stub, **sections: object) -> AsyncIterator[Guard]:
    """kvguard in front of both, of which the first is the emptier one."""
    first.page, second.page = first.page or exposition(0.1), exposition(0.5)
    async with running_stub(first), running_stub(second), guarding(first, second, **sections) as guard:
        yield guard


def standing(guard: Guard, backend: str) -> str:
    """The one standing that is 1, as exported."""
    states = ("in", "ejected", "probed", "drained", "leaving")
    (current,) = [s for s in states if guard.metric("kvguard_backend_standing", backend=backend, standing=s) == 1]
    return current


@contextlib.asynccontextmanager
async def after_some_died(*ratios: float, dead: int) -> AsyncIterator[tuple[Guard, list[Stub]]]:
    """Backends so full, of which the first few have stopped listening since their gauges were read."""
    stubs = [Stub(page=exposition(ratio)) for ratio in ratios]
    async with contextlib.AsyncExitStack() as stack, contextlib.AsyncExitStack() as listening:
        for number, stub in enumerate(stubs):
            await (listening if number < dead else stack).enter_async_context(running_stub(stub))
        guard = await stack.enter_async_context(guarding(*stubs))
        await guard.scraper.aclose()
        await listening.aclose()
        yield guard, stubs


async def test_a_connection_that_was_never_made_is_tried_once_on_another_backend() -> None:
    """The client sees nothing of it; the request counts once, and nothing is left in a ledger."""
    async with after_some_died(0.1, 0.5, dead=1) as (guard, (_, other)):
        answer = await guard.complete([1], max_tokens=1)
        assert (answer.status_code, len(other.hits)) == (200, 1)
        assert guard.metric("kvguard_reroutes_total", backend="b0") == 1
        labels = {"route": "/v1/completions", "tier": "0", "reason": "", "mode": "enforce"}
        assert guard.metric("kvguard_requests_total", outcome="admitted", **labels) == 1
        assert guard.metric("kvguard_requests_total", outcome="failed", **labels) is None
        assert guard.metric("kvguard_exchanges_total", route="/v1/completions", end="complete") == 1
        assert guard.metric("kvguard_exchanges_total", route="/v1/completions", end="upstream_error") == 0
        assert [each.ledger.live for each in guard.service.controller.backends] == [0, 0]


async def test_it_is_tried_no_more_than_once() -> None:
    """Two that refuse connections: the third, which would take it, is not asked any more, and the client gets 502."""
    async with after_some_died(0.1, 0.2, 0.5, dead=2) as (guard, stubs):
        answer = await guard.complete([1], max_tokens=1)
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "backend_unreachable")
        assert (guard.metric("kvguard_reroutes_total", backend="b0"), stubs[2].hits) == (1, [])
        assert guard.metric("kvguard_exchanges_total", route="/v1/completions", end="upstream_error") == 1


async def test_with_nobody_else_to_ask_the_failure_is_told() -> None:
    """One that refuses connections beside one that is full: 502, because a refusal would be beside the point."""
    async with after_some_died(0.1, 0.97, dead=1) as (guard, stubs):
        answer = await guard.complete([1], max_tokens=1)
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "backend_unreachable")
        assert (guard.metric("kvguard_reroutes_total", backend="b0"), stubs[1].hits) == (0, [])
        assert guard.metric("kvguard_exchanges_total", route="/v1/completions", end="upstream_error") == 1


async def test_a_request_that_may_have_begun_is_not_tried_elsewhere() -> None:
    """A server that takes the request and hangs up: 502, and the other one never hears of it."""

    async def hang_up(call: object) -> None:
        call.reset()

    first, second = Stub(answer=hang_up), Stub()
    async with two(first, second) as guard:
        answer = await guard.complete([1], max_tokens=1)
        assert (answer.status_code, len(first.hits), len(second.hits)) == (502, 1, 0)


async def test_a_backend_that_fails_request_after_request_is_left_alone_and_tried_again() -> None:
    """Its `/metrics` is fine all the while. After the ejection one request finds out, and success brings it back."""
    first, second = Stub(answer=broken), Stub()
    async with two(first, second, health={"failures": 2, "eject_seconds": 5}) as guard:
        statuses = [(await guard.complete([1], max_tokens=1)).status_code for _ in range(4)]
        assert statuses == [500, 500, 200, 200]
        assert (standing(guard, "b0"), guard.metric("kvguard_backend_ejections_total", backend="b0")) == ("ejected", 1)
        (line,) = [line for line in guard.logs if line["event"] == "standing"]
        assert (line["level"], line["after"], line["seconds"]) == ("warning", "ejected", 5.0)
        await guard.advance(5.0)
        await guard.scrape()
        assert standing(guard, "b0") == "probed"
        assert [(await guard.complete([1], max_tokens=1)).status_code for _ in range(2)] == [500, 200]
        await guard.advance(10.0)
        await guard.scrape()
        first.answer = Stub().answer
        assert (await guard.complete([1], max_tokens=1)).status_code == 200
        assert (standing(guard, "b0"), len(first.hits)) == ("in", 4)


@pytest.mark.parametrize("status", [429, 503, 400, 404])
async def test_refusals_and_faults_of_clients_never_eject(status: int) -> None:
    """An engine that is full says so, and one that is asked for nonsense too: both work."""

    async def refuse(call: object) -> None:
        await call.reply(status, {"error": {"message": "no"}})

    async with two(Stub(answer=refuse), Stub(), health={"failures": 1}) as guard:
        for _ in range(4):
            assert (await guard.complete([1], max_tokens=1)).status_code == status
        assert standing(guard, "b0") == "in"


async def test_a_drained_backend_gets_nothing_new_and_finishes_what_it_has() -> None:
    """By the admin API, and back; a name there is not is a 404. A model nobody else serves is refused as draining."""
    first, second = Stub(answer=hold_stream), Stub()
    async with two(first, second) as guard:
        running = asyncio.ensure_future(guard.complete([1], stream=True))
        await first.until(lambda: len(first.hits) == 1)
        drained = await guard.admin.post("/backends/b0/drain")
        assert (drained.status_code, drained.json()["standing"], drained.json()["inflight_requests"]) == (
            200,
            "drained",
            1,
        )
        assert (await guard.complete([1], max_tokens=1)).status_code == 200
        assert (len(first.hits), len(second.hits), guard.backend.ledger.live) == (1, 1, 1)
        listed = (await guard.admin.get("/backends")).json()
        assert [(each["name"], each["standing"]) for each in listed] == [("b0", "drained"), ("b1", "in")]
        await guard.admin.post("/backends/b1/drain")
        refused = await guard.complete([1])
        assert (refused.status_code, refused.headers["x-kvguard-reason"]) == (503, "draining")
        assert "no new requests" in refused.json()["error"]["message"]
        assert (await guard.admin.get("/readyz")).status_code == 503
        assert (await guard.admin.post("/backends/b1/resume")).json()["standing"] == "in"
        assert (await guard.complete([1], max_tokens=1)).status_code == 200
        assert (await guard.admin.post("/backends/nobody/drain")).status_code == 404
        running.cancel()


async def test_long_prompts_go_to_their_own_backends() -> None:
    """A prompt of 100 tokens to one and of 10 to the other, however full each is."""
    short, long = Stub(page=exposition(0.5)), Stub(page=exposition(0.1))
    backends = [{"max_prompt_tokens": 50}, {"min_prompt_tokens": 51}]
    async with running_stub(short), running_stub(long):
        listed = [{"url": each.url, "name": f"b{n}", **backends[n]} for n, each in enumerate((short, long))]
        async with guarding(backends=listed) as guard:
            for tokens in (10, 50, 51, 100):
                assert (await guard.complete([1] * tokens, max_tokens=1)).status_code == 200
    lengths = [[len(hit.json["prompt"]) for hit in stub.hits] for stub in (short, long)]
    assert lengths == [[10, 50], [51, 100]]


async def test_one_beginning_goes_to_one_backend() -> None:
    """Conversations that go on stay where they are as long as that is a near tie; others are spread."""
    stubs = [Stub(page=exposition(0.3)) for _ in range(3)]
    async with contextlib.AsyncExitStack() as stack:
        for stub in stubs:
            await stack.enter_async_context(running_stub(stub))
        guard = await stack.enter_async_context(guarding(*stubs, routing={"session_header": "x-session"}))
        text = "All happy families are alike; every unhappy family is unhappy in its own way. " * 40
        for turn in range(4):
            assert (await guard.chat(text + "and so on " * turn, max_tokens=1)).status_code == 200
        assert sorted(len(stub.hits) for stub in stubs) == [0, 0, 4]
        chat = {"messages": [{"role": "user", "content": text + "and so on"}], "max_tokens": 1}
        explained = (await guard.admin.post("/debug/explain?route=/v1/chat/completions", json=chat)).json()
        assert "it goes where prompts go that begin alike" in explained["why"][-1]
        for stub in stubs:
            stub.hits.clear()
        for turn in range(4):
            await guard.chat(f"{turn}" * 2000, max_tokens=1, headers={"x-session": "one"})
        assert sorted(len(stub.hits) for stub in stubs) == [0, 0, 4]


async def test_several_servers_behind_one_address_are_told() -> None:
    """A page of another process and then of the first again: a load balancer, and a warning once."""
    stub = Stub()
    async with running_stub(stub), guarding(stub) as guard:
        page = stub.page
        for started in (1.0, 2.0, 1.0, 2.0, 1.0):
            stub.page = f"{page}process_start_time_seconds {started}\n"
            await guard.scrape()
        assert guard.metric("kvguard_backend_shared_address", backend="b0") == 1
        assert len([line for line in guard.logs if line["event"] == "shared_address"]) == 1


async def test_servers_join_and_leave_as_their_name_says() -> None:
    """One more takes requests once its gauge was read; one that is gone gets none, its stream runs on, and it is
    forgotten when that has ended.
    """
    first = Stub(page=exposition(0.5), host="127.0.0.2", answer=hold_stream)
    names = DnsServer({"vllm.test": ["127.0.0.2"]})
    async with running_dns_server(names), running_stub(first):
        second = Stub(page=exposition(0.1), host="127.0.0.3", port=first.port)
        entry = {"url": f"dns+http://vllm.test:{first.port}", "name": "pods"}
        discovery = {"nameservers": [names.address], "timeout_seconds": 20}
        async with running_stub(second), guarding(backends=[entry], discovery=discovery) as guard:
            running = asyncio.ensure_future(guard.complete([1], stream=True))
            await first.until(lambda: len(first.hits) == 1)
            names.table["vllm.test"] = ["127.0.0.3"]
            for _ in range(2):  # an address is gone once two answers are without it
                asked = len(names.queries)
                await guard.advance(5.0)
                await guard.until(lambda asked=asked: len(names.queries) > asked)
                await guard.until(lambda: guard.metric("kvguard_discovered_backends", backend="pods") is not None)
            await guard.until(lambda: {each.name for each in guard.service.controller.backends} > {"pods/127.0.0.3"})
            await guard.until(lambda: standing(guard, "pods/127.0.0.2") == "leaving")
            await guard.scrape()
            assert (await guard.complete([1], max_tokens=1)).status_code == 200
            assert (len(first.hits), len(second.hits)) == (1, 1)
            running.cancel()
            await guard.until(lambda: guard.service.controller.backends[0].ledger.live == 0)
            await guard.advance(0.5)
            await guard.until(lambda: [b.name for b in guard.service.controller.backends] == ["pods/127.0.0.3"])
            assert guard.metric("kvguard_scrape_failures_total", backend="pods/127.0.0.2") is None
            assert [line["backend"] for line in guard.logs if line["event"] == "left"] == ["pods/127.0.0.2"]


async def test_before_any_server_was_found_nobody_can_be_asked() -> None:
    """A request, a read and an explanation all say so, and kvguard is not ready."""
    async with running_dns_server() as names:
        entry = {"url": "dns+http://vllm.test:8000", "name": "pods"}
        async with guarding(backends=[entry], discovery={"nameservers": [names.address]}) as guard:
            answer = await guard.complete("hi")
            assert (answer.status_code, answer.headers["x-kvguard-reason"]) == (502, "backend_unreachable")
            assert (await guard.client.get("/v1/models")).status_code == 502
            assert (await guard.admin.get("/readyz")).status_code == 503
            explained = (await guard.admin.post("/debug/explain", json={"prompt": "hi"})).json()
            assert (explained["decision"], explained["reason"], explained["backends"]) == (
                "refuse",
                "backend_unreachable",
                [],
            )
            assert guard.metric("kvguard_discovery_failures_total", backend="pods") == 1


async def test_under_load_nothing_is_lost_while_servers_come_and_go() -> None:
    """A server more, one less by its name, and one that stops listening before its name says so: every request that was
    not under way to the one that stopped is answered, and so are those.
    """
    names, served = DnsServer({"vllm.test": ["127.0.0.2"]}), set[str]()
    async with contextlib.AsyncExitStack() as stack, contextlib.AsyncExitStack() as listening:
        await stack.enter_async_context(running_dns_server(names))
        first = await listening.enter_async_context(running_stub(Stub(host="127.0.0.2")))
        others = [Stub(host=f"127.0.0.{number}", port=first.port) for number in (3, 4)]
        stubs = [first, *[await stack.enter_async_context(running_stub(each)) for each in others]]
        entry = {"url": f"dns+http://vllm.test:{first.port}", "name": "pods"}
        discovery = {"nameservers": [names.address], "timeout_seconds": 20}
        guard = await stack.enter_async_context(guarding(backends=[entry], discovery=discovery))
        answers: list[int] = []

        async def client() -> None:
            while True:
                answers.append((await guard.complete([1], max_tokens=1)).status_code)

        async def become(*wanted: str) -> None:
            """Let the name be these, and go on until their requests are served and nobody else's."""
            names.table["vllm.test"] = list(wanted)
            while {backend.name for backend in guard.service.controller.backends} != {
                f"pods/{each}" for each in wanted
            }:
                await guard.advance(0.5)
            for stub in stubs:
                stub.hits.clear()
            await guard.until(lambda: {stub.host for stub in stubs if stub.hits} == set(wanted))
            served.update(stub.host for stub in stubs if stub.hits)

        clients = [asyncio.ensure_future(client()) for _ in range(6)]
        await become("127.0.0.2", "127.0.0.3", "127.0.0.4")
        await become("127.0.0.2", "127.0.0.3")
        await listening.aclose()
        enough = len(answers) + 20
        await guard.until(lambda: len(answers) > enough)
        await become("127.0.0.3", "127.0.0.4")
        for task in clients:
            task.cancel()
        await asyncio.wait(clients)
        assert set(answers) == {200}
        assert served == {"127.0.0.2", "127.0.0.3", "127.0.0.4"}
        await guard.until(lambda: all(each.ledger.live == 0 for each in guard.service.controller.backends))
