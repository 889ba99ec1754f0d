"""O-28: counters that leak or go negative."""

import asyncio
import random
from dataclasses import dataclass

import pytest

from tests.kit.guard import COMPLETIONS, Guard, guarding
from tests.kit.raw import raw_client
from tests.kit.stub import (
    Call,
    Driven,
    Stub,
    answer_at_once,
    exposition,
    hold,
    hold_stream,
    refusing_stub,
    running_stub,
)

pytestmark = pytest.mark.anyio

REQUESTS = 200
AT_ONCE = 16
KINDS = ("success", "stream", "abort before headers", "abort mid-stream", "upstream 400", "upstream 500", "no connect")


@dataclass
class Mix:
    """The backend's side of the mix: each request says how it wants to end. `least` is the emptiest ledger seen."""

    guard: Guard | None = None
    least: float = float("inf")

    def look(self) -> None:
        ledger = self.guard.backend.ledger
        self.least = min(self.least, ledger.held_blocks, ledger.sequences, ledger.live)

    async def __call__(self, call: Call) -> None:
        self.look()
        kind = call.hit.headers["x-kind"]
        if kind.startswith("upstream"):
            await call.reply(int(kind.split(" ")[1]), {"error": {"message": "no"}})
        elif kind == "abort before headers":
            await hold(call)
        elif kind == "abort mid-stream":
            await hold_stream(call)
        else:
            await answer_at_once(call)


@dataclass(frozen=True)
class Plan:
    """One request of the mix."""

    number: int
    kind: str
    prompts: list[list[int]]
    copies: int
    cap: int

    @property
    def body(self) -> dict:
        stream = self.kind in ("stream", "abort mid-stream")
        model = "elsewhere" if self.kind == "no connect" else "tiny"
        return {
            "model": model,
            "prompt": self.prompts,
            "n": self.copies,
            "temperature": 0.7,
            "max_tokens": self.cap,
            "stream": stream,
        }

    @property
    def expected_status(self) -> int:
        return {"upstream 400": 400, "upstream 500": 500, "no connect": 502}.get(self.kind, 200)


def planned(rng: random.Random) -> list[Plan]:
    kinds = [*KINDS, *rng.choices(KINDS, k=REQUESTS - len(KINDS))]
    rng.shuffle(kinds)
    return [
        Plan(
            number=number,
            kind=kind,
            prompts=[[1] * rng.randint(1, 100) for _ in range(rng.randint(1, 3))],
            copies=rng.randint(1, 3),
            cap=rng.randint(1, 200),
        )
        for number, kind in enumerate(kinds)
    ]


async def carry_out(plan: Plan, guard: Guard, stub: Stub) -> None:
    """Send one request and see it to the end its kind says."""
    async with raw_client(guard.service.port) as client:
        identity = f"r-{plan.number}"
        await client.request(COMPLETIONS, plan.body, x_kind=plan.kind, x_request_id=identity)
        if plan.kind == "abort before headers":
            await stub.until(lambda: any(hit.headers["x-request-id"] == identity for hit in stub.hits))
            client.leave()
        elif plan.kind == "abort mid-stream":
            assert (await client.head()).status == 200
            assert await client.chunk()
            client.leave()
        else:
            assert (await client.answer()).status == plan.expected_status, plan.kind


@pytest.mark.parametrize("seed", [28, 2828])
async def test_the_ledger_is_empty_after_any_mix_of_endings(seed: int) -> None:
    """After 200 requests in a random mix of endings nothing is held anywhere; while they ran something always was."""
    plans = planned(random.Random(seed))
    mix = Mix()
    free = asyncio.Semaphore(AT_ONCE)

    with refusing_stub() as dead:
        async with (
            running_stub(Stub(answer=mix, page=exposition(0.1, blocks=100_000))) as stub,
            guarding(stub, dead, telemetry={"when_blind": "open"}) as guard,
        ):
            mix.guard = guard
            guard.service.controller.backends[1].models = frozenset({"elsewhere"})

            async def carry_out_in_turn(plan: Plan) -> None:
                async with free:
                    await carry_out(plan, guard, stub)

            async with asyncio.TaskGroup() as tasks:
                for plan in plans:
                    tasks.create_task(carry_out_in_turn(plan))
            aborted = sum(plan.kind.startswith("abort") for plan in plans)
            await stub.until(lambda: stub.left == aborted)
            forwarded = sum(plan.kind != "no connect" for plan in plans)
            assert len(stub.hits) == forwarded, f"seed {seed}"
            assert mix.least > 0, f"seed {seed}"
            for backend in guard.service.controller.backends:
                ledger = backend.ledger
                left_over = (ledger.live, ledger.sequences, ledger.held_blocks, ledger.reserved_blocks)
                assert left_over == (0, 0, 0, 0), f"seed {seed}: {backend.name}"
                assert ledger.violations == 0, f"seed {seed}: {backend.name}"
            failed = {"route": COMPLETIONS, "outcome": "failed", "tier": "0", "mode": "enforce"}
            refused = guard.metric("kvguard_requests_total", reason="backend_unreachable", **failed)
            assert refused == REQUESTS - forwarded, f"seed {seed}"
            page = (await guard.admin.get("/metrics")).text
    for name in ("kvguard_ledger_blocks", "kvguard_inflight_sequences", "kvguard_inflight_requests"):
        assert f'{name}{{backend="b0"}} 0.0' in page, f"seed {seed}"
        assert f'{name}{{backend="b1"}} 0.0' in page, f"seed {seed}"


async def test_a_stream_is_held_to_its_very_end() -> None:
    """The ledger keeps a stream's blocks and sequences from admission past the headers to its last byte, then none."""
    driven = Driven()
    async with (
        running_stub(Stub(answer=driven)) as stub,
        guarding(stub) as guard,
        raw_client(guard.service.port) as client,
    ):
        ledger = guard.backend.ledger
        await client.request(COMPLETIONS, {"prompt": [[1] * 16, [1] * 17], "n": 2, "max_tokens": 4, "stream": True})
        call = await driven.call()
        assert (ledger.live, ledger.sequences, ledger.held_blocks) == (1, 4, 6)
        await call.start_stream()
        assert (await client.head()).status == 200
        assert (ledger.live, ledger.sequences, ledger.held_blocks) == (1, 4, 6)
        for index in (0, 1, 2, 3):
            await call.token(index)
            assert await client.chunk()
        await guard.until(lambda: ledger.held_blocks == 8)
        assert (ledger.live, ledger.sequences) == (1, 4)
        await call.end_stream()
        driven.done(call)
        while await client.chunk():
            pass
        assert (ledger.live, ledger.sequences, ledger.held_blocks) == (0, 0, 0)
        assert ledger.violations == 0
