"""What a client makes of an answer, and that refused requests stay at home."""

import pytest

from bench.overload.client import REFUSED, Clients, Meter, Outcome, new_session, open_loop
from bench.overload.gates import BudgetGate, Gate
from bench.overload.workload import Arrival
from tests.kit.stub import Behaviour, Call, Stub, broken, hold_stream, running_stub

pytestmark = pytest.mark.anyio

USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":5,"total_tokens":6}}\n\n'


def arrival(number: int = 0, *, length: int = 5) -> Arrival:
    return Arrival(number=number, at=0.0, prompt="a", prompt_tokens=1, cap=100, length=length)


def ending(reason: str) -> Behaviour:
    """Two tokens in events of their own, the last three in one, as a slow reader gets them, then usage."""

    async def answer(call: Call) -> None:
        await call.start_stream()
        for text in ("null", "null", f'"{reason}"'):
            await call.chunk(b'data: {"choices":[{"index":0,"text":" x","finish_reason":%s}]}\n\n' % text.encode())
        await call.chunk(USAGE)
        await call.end_stream()

    return answer


class Noting(Gate):
    """Lets everything pass and writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def progress(self, arrival: Arrival, produced: int) -> None:
        self.told.append(f"{arrival.number}: {produced}")

    def ended(self, arrival: Arrival, now: float) -> None:
        self.told.append(f"{arrival.number} ended")


async def asked(answer: Behaviour, gate: Gate, *, patience_seconds: float = 10.0) -> Outcome:
    async with running_stub(Stub(answer=answer)) as stub, new_session() as session:
        clients = Clients(session, f"http://127.0.0.1:{stub.port}", gate, patience_seconds)
        return await clients.ask(arrival())


async def test_a_whole_answer_counts_the_tokens_the_engine_says_it_has() -> None:
    """Events may hold several tokens; the gate hears of each event and of the count in the end."""
    gate = Noting()
    outcome = await asked(ending("stop"), gate)
    assert (outcome.status, outcome.complete, outcome.tokens, outcome.cut) == (200, True, 5, False)
    assert (outcome.failed, outcome.refused, outcome.timed_out) == (False, False, False)
    assert gate.told == ["0: 1", "0: 2", "0: 3", "0: 5", "0 ended"]


async def test_an_answer_that_ends_at_a_cap_was_cut() -> None:
    """No answer is as long as its client's own cap."""
    assert (await asked(ending("length"), Gate())).cut


async def test_a_client_gives_up_in_the_middle_of_an_answer() -> None:
    """Lost patience is neither failure nor refusal, and the gate hears of the end."""
    gate = Noting()
    outcome = await asked(hold_stream, gate, patience_seconds=0.05)
    assert (outcome.timed_out, outcome.complete, outcome.failed) == (True, False, False)
    assert gate.told[-1] == "0 ended"


async def test_an_error_is_a_failure() -> None:
    """A broken engine does not pass for one that refuses."""
    outcome = await asked(broken, Gate())
    assert (outcome.status, outcome.failed, outcome.refused) == (500, True, False)


async def test_a_stream_that_breaks_off_with_an_error_is_a_failure() -> None:
    """vLLM says so in the stream and ends it as usual."""

    async def answer(call: Call) -> None:
        await call.start_stream()
        await call.event({"error": {"message": "broken"}})
        await call.end_stream()

    outcome = await asked(answer, Gate())
    assert (outcome.status, outcome.complete, outcome.failed) == (200, False, True)


async def test_a_refused_arrival_never_reaches_the_engine() -> None:
    """The gate decides before anything is sent; the others of the schedule go on."""
    async with running_stub(Stub(answer=ending("stop"))) as stub:
        gate = BudgetGate(capacity_tokens=1)
        (outcome,) = await open_loop(f"http://127.0.0.1:{stub.port}", [arrival()], gate, patience_seconds=10.0)
        assert (outcome.status, outcome.refused, outcome.failed) == (REFUSED, True, False)
        assert not stub.hits


@pytest.mark.parametrize(
    ("first_token", "ended", "tokens", "good"),
    [
        (2.0, 3.0, 5, True),
        (2.01, 3.0, 5, False),
        (1.0, 2.0, 5, True),
        (1.0, 2.01, 5, False),
        (1.0, 1.25, 1, True),
        (None, 1.0, 5, False),
    ],
)
def test_a_good_answer_begins_in_time_and_keeps_its_pace(
    first_token: float | None, ended: float, tokens: int, good: bool
) -> None:
    """First token within 2 s, then 0.25 s a token at most."""
    outcome = Outcome(status=200, first_token=first_token, ended=ended, tokens=tokens, complete=True)
    assert outcome.good(first_token=2.0, per_token=0.25) is good
    outcome.complete = False
    assert not outcome.good(first_token=2.0, per_token=0.25)


def test_a_meter_counts_tokens_once() -> None:
    """However many events they come in, and whichever answer they are of."""
    meter = Meter()
    assert meter.admit(arrival(), 0.0)
    meter.progress(arrival(0), 2)
    meter.progress(arrival(0), 5)
    meter.progress(arrival(1), 4)
    assert meter.tokens == 9
    meter.ended(arrival(1), 1.0)
    assert meter.tokens == 9
