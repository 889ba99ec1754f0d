"""The poller: what each kind of scrape does to the backend, and that nothing stops it."""

import ssl
from dataclasses import replace

import httpx
import pytest

from kvguard.admission.condition import EngineState
from kvguard.admission.lengths import LengthPolicy
from kvguard.admission.occupancy import OccupancyPolicy, TelemetryState
from kvguard.admission.usage import UsageSample
from kvguard.clock import ManualClock
from kvguard.engines.reading import Reading, ServerFacts
from kvguard.engines.tgi import TgiServer, tgi_reading
from kvguard.engines.vllm_models import EVERY_SECONDS, vllm_reading
from kvguard.poller import FACTS_RETRY_SECONDS, MAX_PAGE_BYTES, Poller, PollPolicy
from kvguard.pool.backend import ConditionChange, new_backend
from tests.kit.guard import guarding
from tests.kit.stub import Stub, exposition, running_stub, working_page

pytestmark = pytest.mark.anyio


def page(text: str | bytes, status: int = 200) -> httpx.Response:
    """An answer whose body is still to be read."""
    return httpx.Response(status, stream=httpx.ByteStream(text.encode() if isinstance(text, str) else text))


class Reports:
    """Remembers what the poller reports."""

    def __init__(self) -> None:
        self.failures: list[tuple[str, str]] = []
        self.conditions: list[tuple[EngineState, float]] = []
        self.bounds: list[int | None] = []
        self.good = 0

    def scrape_failed(self, backend: str, *, state: str, detail: str, now: float) -> None:
        self.failures.append((state, detail))

    def capacity_bound(self, backend: str, tokens: int | None) -> None:
        self.bounds.append(tokens)

    def scraped(self, backend: str) -> None:
        self.good += 1

    def condition_change(self, change: ConditionChange, *, now: float) -> None:
        self.conditions.append((change.after, now))


class Bench:
    """One poller on a mocked transport."""

    def __init__(self, answer: object, reading: Reading | None = None, **policy: object) -> None:
        self.clock = ManualClock(100.0)
        self.backend = new_backend("b", "http://b", OccupancyPolicy(), LengthPolicy())
        self.reports = Reports()
        self.poller = Poller(
            self.backend,
            reading or vllm_reading(),
            self.reports,
            self.clock,
            PollPolicy(**policy),
            ssl.create_default_context(),
        )
        self.paths: list[str] = []
        self.answer = answer
        self.info = '{"version": "2.4.1", "max_total_tokens": 101, "max_concurrent_requests": 8, "model_id": "m"}'

    def _serve(self, request: httpx.Request) -> httpx.Response:
        self.paths.append(request.url.path)
        if isinstance(self.answer, Exception):
            raise self.answer
        if request.url.path == "/v1/models":
            return page('{"data": [{"id": "m", "max_model_len": 512}, {"id": "lora", "parent": "m"}]}')
        if request.url.path == "/info":
            return page(self.info)
        return self.answer() if callable(self.answer) else self.answer

    async def poll(self) -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(self._serve)) as client:
            await self.poller.poll(client)


async def test_what_the_operator_knows_stands_for_info_that_cannot_be_read() -> None:
    """The gauge is fresh, by the operator's capacity, though the server does not tell what it is."""
    bench = Bench(page("tgi_batch_current_max_tokens 500\n"), tgi_reading(TgiServer(capacity_tokens=1001)))
    bench.info = "<html>"
    await bench.poll()
    assert bench.backend.occupancy.telemetry(bench.clock.now()) is TelemetryState.FRESH
    assert bench.backend.occupancy.observed_ratio() == 0.5


async def test_a_good_page_makes_the_gauge_fresh_and_teaches_the_models() -> None:
    """Capacity, gauge, model names and context length are known after the first scrape."""
    bench = Bench(page(exposition(0.5)))
    await bench.poll()
    assert bench.backend.occupancy.telemetry(100.0) is TelemetryState.FRESH
    assert bench.backend.occupancy.observed_ratio() == 0.5
    assert (bench.backend.models, bench.backend.context_tokens) == ({"m", "lora"}, 512)
    assert bench.backend.parents == {"lora": "m"}
    assert bench.backend.listing.keys() == {"m", "lora"}
    assert (bench.reports.good, bench.reports.failures) == (1, [])


async def test_the_model_list_is_read_once_a_minute_and_a_set_context_stays() -> None:
    """Between two scrapes a second apart the list is not asked for again; the operator's context wins."""
    bench = Bench(lambda: page(exposition(0.5)), learn_context=False)
    bench.backend.context_tokens = 99
    await bench.poll()
    await bench.poll()
    assert bench.paths == ["/metrics", "/v1/models", "/metrics"]
    await bench.clock.advance(EVERY_SECONDS)
    await bench.poll()
    assert bench.paths.count("/v1/models") == 2
    assert bench.backend.context_tokens == 99


@pytest.mark.parametrize(
    ("answer", "state", "detail"),
    [
        (httpx.ConnectError("refused"), "unreachable", "ConnectError"),
        (httpx.ConnectTimeout("slow"), "unreachable", "ConnectTimeout"),
        (httpx.ReadTimeout("slow"), "missing", "ReadTimeout"),
        (page("", 500), "missing", "HTTPStatusError"),
        (page('vllm:kv_cache_usage_perc{engine="0 1\n'), "missing", "ExpositionError"),
        (page("x" * (MAX_PAGE_BYTES + 1)), "missing", "ValueError"),
        (page(b"\xff\xfe"), "missing", "UnicodeDecodeError"),
        (page("<html>"), "missing", "no gauge on the page"),
    ],
)
async def test_a_page_without_a_gauge_is_reported_for_what_it_is(answer: object, state: str, detail: str) -> None:
    """Unreachable and missing are told apart, and neither becomes a number."""
    bench = Bench(answer)
    await bench.poll()
    assert bench.reports.failures == [(state, detail)]
    assert bench.backend.occupancy.observed_ratio() is None


async def test_every_page_shows_the_engines_condition_and_a_change_is_reported_once() -> None:
    """Idle, then asleep, at the moment the page was read."""
    bench = Bench(lambda: page(working_page(awake=int(bench.clock.now() < 101))))
    for _ in range(4):
        await bench.poll()
        await bench.clock.advance(0.5)
    assert bench.reports.conditions == [(EngineState.IDLE, 100.0), (EngineState.SLEEPING, 101.0)]


async def test_a_server_that_hides_its_models_is_scraped_all_the_same() -> None:
    """A 401 on the model list leaves names and context unknown."""
    stub = Stub(key="k")
    async with running_stub(stub), guarding(stub) as guard:
        await guard.scrape()
        assert (guard.backend.models, guard.backend.listing, guard.backend.context_tokens) == (frozenset(), {}, None)
        assert guard.telemetry() == "fresh"


async def test_a_fault_nobody_foresaw_does_not_end_the_scraping() -> None:
    """After a parser that raises something strange the next scrape happens and counts."""
    calls = []

    reading = vllm_reading()

    def usage(text: str, facts: ServerFacts) -> UsageSample:
        calls.append(text)
        if len(calls) == 1:
            raise RuntimeError("strange")
        return reading.usage(text, facts)

    async with running_stub() as stub, guarding(stub) as guard:
        guard.service.members.pollers["b0"]._reading = replace(reading, usage=usage)
        await guard.advance(0.5)
        await guard.until(lambda: len(calls) == 1)
        await guard.advance(0.5)
        await guard.until(lambda: len(calls) == 2)
        assert guard.metric("kvguard_scrape_failures_total", backend="b0") == 1


async def test_what_a_server_is_comes_before_how_full_it_is() -> None:
    """TGI's first page already counts against the capacity of `/info`, whose lower bound is reported once."""
    bench = Bench(lambda: page("tgi_batch_current_max_tokens 50\n"), tgi_reading())
    await bench.poll()
    backend = bench.backend
    assert backend.occupancy.observed_ratio() == 0.5
    assert (backend.context_tokens, backend.models, backend.base_model("tgi")) == (101, {"m", "tgi"}, "m")
    assert (backend.occupancy.permits, backend.occupancy.sequences_left) == (8, 8)
    assert backend.release is not None
    assert backend.release.default_output_tokens == 100
    await bench.clock.advance(30)
    await bench.poll()
    assert bench.paths == ["/metrics", "/info", "/metrics", "/info"]
    assert bench.reports.bounds == [101]


async def test_facts_that_cannot_be_read_are_asked_for_again_soon() -> None:
    """Until then a TGI server shows no gauge; what was known stays when they fail later."""
    bench = Bench(lambda: page("tgi_batch_current_max_tokens 50\n"), tgi_reading())
    good, bench.info = bench.info, "<html>"
    await bench.poll()
    assert bench.reports.failures == [("missing", "no gauge on the page")]
    await bench.clock.advance(FACTS_RETRY_SECONDS)
    bench.info = good
    await bench.poll()
    assert bench.backend.occupancy.observed_ratio() == 0.5
    bench.info = "<html>"
    await bench.clock.advance(30)
    await bench.poll()
    assert (bench.reports.good, bench.backend.occupancy.permits) == (2, 8)


async def test_a_server_that_was_away_is_asked_anew_what_it_is() -> None:
    """It may have come back as another."""
    bench = Bench(lambda: page("tgi_batch_current_max_tokens 50\n"), tgi_reading())
    await bench.poll()
    answer, bench.answer = bench.answer, httpx.ConnectError("refused")
    await bench.poll()
    bench.answer = answer
    bench.info = '{"version": "2.4.1", "max_total_tokens": 201}'
    await bench.poll()
    assert bench.backend.occupancy.observed_ratio() == 0.25
