"""Goodput under overload: kvguard, bare vLLM, vLLM's own limit, rival gates and a clairvoyant one, in one run.

For each shape of traffic, and in each round anew: kvguard is started and warmed, then loads are visited in random
order. At each load the engine's capacity is measured, the offered load scaled to it, and every arm gets the same
arrivals, in random order. Rounds go on until the time is up. Results go to bench/results/overload.jsonl, the report to
docs/benchmarks.md. Run it with `make bench-overload`, for a first look with `ARGS=--quick`.
"""

import asyncio
import os
import random
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer

from bench.overload.arms import Arm, Lineup, limited_arm
from bench.overload.client import closed_loop, open_loop
from bench.overload.options import Options, Timetable, parse_options
from bench.overload.report import write_report
from bench.overload.servers import RESULTS, LimitedEngine, engine, rest
from bench.overload.slices import LIMITED, Slice, Visit, append, read
from bench.overload.workload import Count, Shape, arrivals
from tests.vllm.server import ROOT, VllmServer, last_cpu, vllm_python

FILE = RESULTS / "overload.jsonl"
TRIAL_LOAD = 4.0
WARM_LOAD = 1.5


@dataclass(slots=True)
class Bench:
    """One run: its options, its engines, and vLLM's best limit for each shape."""

    options: Options
    bare: VllmServer
    limited: LimitedEngine
    count: Count
    limits: dict[str, int] = field(default_factory=dict)

    async def run(self, timetable: Timetable, *, first: int) -> None:
        """Rounds from this number on until the time is up; the first is always whole."""
        options, order = self.options, random.Random(self.options.seed)
        if LIMITED in options.arms:
            await self.find_limits()
        for number in range(first, first + options.rounds):
            if not any(timetable.fits(shape.name, time.monotonic()) for shape in options.shapes):
                break
            for shape in order.sample(options.shapes, len(options.shapes)):
                began = time.monotonic()
                if timetable.fits(shape.name, began):
                    await self.visit_shape(shape, number, order)
                    timetable.note(shape.name, time.monotonic() - began)

    async def find_limits(self) -> None:
        """Try vLLM's limit at a few values, each shape with the same arrivals, and keep what served most."""
        options = self.options
        self.limits = {shape.name: shape.native_limits[len(shape.native_limits) // 2] for shape in options.shapes}
        if not options.search:
            return
        capacities = {shape.name: await self.capacity(shape) for shape in options.shapes}
        found: dict[str, dict[int, int]] = {shape.name: {} for shape in options.shapes}
        for limit in sorted({limit for shape in options.shapes for limit in shape.native_limits}):
            arm = limited_arm(self.limited.limited_to(limit), limit)
            for shape in options.shapes:
                if limit in shape.native_limits:
                    result = await self.visit(arm, shape, TRIAL_LOAD, capacities[shape.name], round_number=-1)
                    found[shape.name][limit] = result.good
        for name, served in found.items():
            self.limits[name] = max(served, key=lambda limit: served[limit])
            tried = ", ".join(f"{limit}: {good} good" for limit, good in served.items())
            print(f"{name}: --max-num-queued-reqs {tried}; {self.limits[name]} it is", flush=True)

    async def visit_shape(self, shape: Shape, number: int, order: random.Random) -> None:
        """Every load and every arm once; results are written down as they come."""
        limit = self.limits.get(shape.name)
        limited = None if limit is None else limited_arm(self.limited.limited_to(limit), limit)
        lineup = Lineup(names=self.options.arms, configs=self.options.configs)
        async with lineup.standing(self.bare, limited) as arms:
            await self.warm([arm for arm in arms if arm.name in lineup.configs], shape, number)
            for load in order.sample(self.options.loads, len(self.options.loads)):
                capacity = await self.capacity(shape)
                print(f"round {number + 1}, {shape.name}: the engine finishes {capacity:.2f} requests/s", flush=True)
                for arm in order.sample(arms, len(arms)):
                    result = await self.visit(arm, shape, load, capacity, round_number=number)
                    print(f"  {result.line()}", flush=True)
                    append(FILE, result)

    async def warm(self, arms: list[Arm], shape: Shape, number: int) -> None:
        """Let every kvguard see answers of this shape, none of those it will be measured with."""
        if arms and self.options.warm_requests:
            rate = WARM_LOAD * await self.capacity(shape)
            seconds, seed = self.options.warm_requests / rate, f"warm:{shape.name}:{number}"
            schedule = arrivals(shape, rate=rate, seconds=seconds, seed=seed, count=self.count)
            for arm in arms:
                async with arm.reached() as (url, gate):
                    await open_loop(url, schedule, gate, patience_seconds=shape.patience_seconds)
                await rest(arm.engine.url)

    async def capacity(self, shape: Shape) -> float:
        """What the engine finishes a second, now; measured for longer where that is too slow to be seen."""
        seconds, rate = self.options.capacity_seconds, 0.0
        while not rate:
            await rest(self.bare.url)
            seed = f"capacity:{shape.name}"
            rate = await closed_loop(self.bare.url, shape, seconds=seconds, seed=seed, count=self.count)
            seconds *= 2
        await rest(self.bare.url)
        return rate

    async def visit(self, arm: Arm, shape: Shape, load: float, capacity: float, *, round_number: int) -> Slice:
        """Offer `load` times the capacity for a while and see what comes of it, once the engine has filled."""
        lead, seconds = self.options.lead_seconds, self.options.slice_seconds
        seed = f"{shape.name}:{round_number}:{load}"
        schedule = arrivals(shape, rate=load * capacity, seconds=lead + seconds, seed=seed, count=self.count)
        before = arm.engine.metrics()["vllm:num_preemptions_total"]
        async with arm.reached() as (url, gate):
            outcomes = await open_loop(url, schedule, gate, patience_seconds=shape.patience_seconds)
        await rest(arm.engine.url)
        preemptions = arm.engine.metrics()["vllm:num_preemptions_total"] - before
        visit = Visit(
            round=round_number,
            shape=shape.name,
            arm=arm.name,
            load=load,
            capacity=capacity,
            seconds=seconds,
            native_limit=arm.native_limit,
        )
        return visit.came_to(schedule, outcomes, lead_seconds=lead, preemptions=preemptions)


async def main(options: Options) -> None:
    timetable = Timetable(until=time.monotonic() + 60 * options.minutes)
    RESULTS.mkdir(parents=True, exist_ok=True)
    model = ROOT / ".models" / "tiny"
    subprocess.run([vllm_python(), ROOT / "tests" / "vllm" / "make_model.py", model], check=True)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    # The engines share one core and everything else the other: left alone, vLLM starves whoever measures it.
    engine_cpus = last_cpu()
    os.sched_setaffinity(0, os.sched_getaffinity(0) - set(engine_cpus))
    began = time.monotonic()
    with engine(model, "vllm", engine_cpus) as bare, LimitedEngine(model, engine_cpus) as limited:
        bench = Bench(options, bare, limited, lambda text: len(tokenizer.encode(text).ids))
        if not options.append:
            FILE.unlink(missing_ok=True)
        await bench.run(timetable, first=max((s.round + 1 for s in read(FILE)), default=0))
    print(f"took {time.monotonic() - began:.0f} s")
    write_report(FILE, None if options.print else ROOT / "docs")


if __name__ == "__main__":
    asyncio.run(main(parse_options()))
