import asyncio
from contextlib import asynccontextmanager

import pytest

from kvguard.clock import ManualClock
from kvguard.simulator.config import SimConfig
from kvguard.simulator.driver import EngineBusyError, EngineDriver
from kvguard.simulator.engine import SequenceRequest, SimEngine

pytestmark = pytest.mark.anyio

SECOND_STEPS = {"step_base_seconds": 1.0, "step_seconds_per_sequence": 0.0, "prefill_seconds_per_token": 0.0}


@asynccontextmanager
async def driving(**settings):
    """A driver that runs on a clock the test moves; one step takes one second."""
    clock = ManualClock()
    config = SimConfig(**SECOND_STEPS | settings)
    driver = EngineDriver(SimEngine(config), clock, most_unfinished=config.max_num_queued_reqs)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(driver.run())
        await clock.settle()
        yield driver, clock
        running.cancel()


def forced(prompt_tokens, max_tokens):
    return SequenceRequest(prompt_tokens=prompt_tokens, max_tokens=max_tokens, ignore_eos=True)


def submit(driver, requests):
    return driver.submit(requests, most_tokens=sum(request.max_tokens for request in requests))


async def collect(stream, into):
    into.extend([(choice, token.position) async for choice, token in stream.tokens()])


async def test_a_step_shows_when_its_time_has_passed():
    """Tokens and gauges of a step appear at its end, not while it runs."""
    async with driving() as (driver, clock):
        stream = submit(driver, [forced(17, 3)])
        got = []
        reader = asyncio.create_task(collect(stream, got))
        await clock.advance(0.9)
        assert (driver.stats.running, driver.stats.used_blocks) == (0, 0)
        await clock.advance(0.1)
        assert (driver.stats.running, driver.stats.used_blocks) == (1, 2)
        await clock.advance(2.0)
        await reader
        assert got == [(0, 0), (0, 1), (0, 2)]
        assert driver.stats.used_blocks == 0


async def test_an_idle_engine_waits_without_time():
    """Between requests no step is taken, and the next request starts at once."""
    async with driving() as (driver, clock):
        await clock.advance(100)
        got = []
        await_stream = asyncio.create_task(collect(submit(driver, [forced(1, 1)]), got))
        await clock.advance(1)
        await await_stream
        assert got == [(0, 0)]
        assert driver.stats.generation_tokens == 1


async def test_choices_of_one_request_share_a_stream():
    """Tokens carry the place of their sequence in the request, whatever its engine id."""
    async with driving() as (driver, clock):
        submit(driver, [forced(1, 1)])
        got = []
        reader = asyncio.create_task(collect(submit(driver, [forced(1, 1), forced(1, 2)]), got))
        await clock.advance(3)
        await reader
        assert got == [(0, 0), (1, 0), (1, 1)]


async def test_close_frees_blocks_and_leaves_others_alone():
    """An abandoned stream's sequences are gone at once and another request gets all its tokens."""
    async with driving() as (driver, clock):
        abandoned, kept = submit(driver, [forced(40, 50), forced(40, 50)]), submit(driver, [forced(1, 3)])
        await clock.advance(1.5)
        abandoned.close()
        assert driver.engine.stats().used_blocks == 1
        got = []
        reader = asyncio.create_task(collect(kept, got))
        await clock.advance(5)
        await reader
        assert got == [(0, 0), (0, 1), (0, 2)]
        assert (driver.stats.running, driver.stats.finished_length) == (0, 1)


async def test_close_between_steps_shows_at_once():
    """A request that leaves before the engine takes it is neither run nor waiting."""
    async with driving() as (driver, clock):
        submit(driver, [forced(40, 50)]).close()
        assert not driver.engine.has_work
        await clock.advance(5)
        assert driver.stats.generation_tokens == 0


async def test_close_after_the_end_changes_nothing():
    """Closing a finished stream aborts nobody."""
    async with driving() as (driver, clock):
        stream = submit(driver, [forced(4, 1)])
        await clock.advance(1)
        stream.close()
        assert driver.stats.finished_length == 1


async def test_the_bound_refuses_all_or_nothing():
    """A request that would exceed the bound leaves no sequence behind; one that fits exactly is taken."""
    async with driving(max_num_queued_reqs=3) as (driver, _):
        submit(driver, [forced(1, 5)])
        with pytest.raises(EngineBusyError):
            submit(driver, [forced(1, 5)] * 3)
        assert (driver.engine.unfinished, driver.turned_away) == (1, 1)
        submit(driver, [forced(1, 5)] * 2)
        assert driver.engine.unfinished == 3


async def test_running_says_whether_the_engine_lives():
    """It is true within `run` only."""
    async with driving() as (driver, _):
        assert driver.running
    assert not driver.running
