"""Goodput under overload: bare vLLM, vLLM with its own queue limit, and kvguard, on one machine in one run.

Each round measures what the engine can finish now, scales the offered load to it, and visits every load and arm in a
new random order; within a round every arm gets the same arrivals. Results go to bench/results/overload.jsonl, the
report to docs/benchmarks.md. Run it with `make bench-overload`.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from bench.overload.client import Outcome, closed_loop, open_loop
from bench.overload.report import (
    FIRST_TOKEN_SECONDS,
    PER_TOKEN_SECONDS,
    PROMPT_FIRST_TOKEN_SECONDS,
    Slice,
    write_report,
)
from bench.overload.workload import arrivals
from tests.vllm.server import ROOT, VllmServer, free_port, last_cpu, vllm_python

RESULTS = ROOT / "bench" / "results" / "overload.jsonl"
LOADS = (0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True, slots=True)
class Arm:
    """One way of serving: where clients send, and the engine behind it."""

    name: str
    url: str
    engine: VllmServer


async def idle(arm: Arm) -> None:
    """Wait until the engine has nothing left, and its gauges say so."""
    async with httpx.AsyncClient() as client:
        while True:
            text = (await client.get(f"{arm.engine.url}/metrics")).text
            busy = [
                line
                for line in text.splitlines()
                if line.startswith(("vllm:num_requests_running{", "vllm:num_requests_waiting{"))
                and not line.endswith(" 0.0")
            ]
            if not busy:
                return
            await asyncio.sleep(0.2)


async def visit(arm: Arm, *, load: float, capacity: float, seconds: float, round_number: int) -> Slice:
    """Offer `load` times the capacity for a while and see what comes of it."""
    schedule = arrivals(rate=load * capacity, seconds=seconds, seed=f"{round_number}:{load}")
    before = arm.engine.metrics()["vllm:num_preemptions_total"]
    outcomes = await open_loop(arm.url, schedule)
    await idle(arm)
    preemptions = arm.engine.metrics()["vllm:num_preemptions_total"] - before
    return summarise(arm.name, load, capacity, seconds, outcomes, preemptions, round_number)


def summarise(
    arm: str, load: float, capacity: float, seconds: float, outcomes: list[Outcome], preemptions: float, number: int
) -> Slice:
    good = [o for o in outcomes if o.good(first_token=FIRST_TOKEN_SECONDS, per_token=PER_TOKEN_SECONDS)]
    return Slice(
        round=number,
        arm=arm,
        load=load,
        capacity=capacity,
        seconds=seconds,
        offered=len(outcomes),
        good=len(good),
        prompt_good=sum(o.good(first_token=PROMPT_FIRST_TOKEN_SECONDS, per_token=PER_TOKEN_SECONDS) for o in outcomes),
        good_tokens=sum(o.tokens for o in good),
        refused=sum(400 <= o.status < 599 for o in outcomes),
        timed_out=sum(o.timed_out for o in outcomes),
        failed=sum(o.status == 599 for o in outcomes),
        degraded=sum(o.degraded for o in good),
        cut=sum(o.cut for o in good),
        first_tokens=sorted(round(o.first_token, 3) for o in outcomes if o.first_token is not None),
        preemptions=preemptions,
    )


@contextlib.asynccontextmanager
async def kvguard(name: str, backend: str, config: Path | None) -> AsyncIterator[str]:
    """kvguard as a user runs it, with its default settings unless a file is given."""
    port, admin = free_port(), free_port()
    command = [sys.executable, "-m", "kvguard", "serve", "--backend", backend, "--host", "127.0.0.1"]
    command += ["--port", str(port), "--admin-port", str(admin)]
    command += ["--config", str(config)] if config else []
    log = (RESULTS.parent / f"{name}.log").open("w")
    process = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT)
    try:
        async with httpx.AsyncClient() as client:
            while True:
                with contextlib.suppress(httpx.TransportError):
                    if (await client.get(f"http://127.0.0.1:{admin}/readyz")).status_code == 200:
                        break
                await asyncio.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()
        log.close()


async def measure(arguments: argparse.Namespace, arms: list[Arm]) -> None:
    order = random.Random(arguments.seed)
    for arm in arms:  # lengths are learned from traffic; every arm is warmed alike
        await visit(arm, load=1.0, capacity=arguments.warm_rate, seconds=arguments.warm_seconds, round_number=-1)
    with RESULTS.open("a" if arguments.append else "w") as results:
        for number in range(arguments.rounds):
            bare = arms[0]
            await idle(bare)
            capacity = await closed_loop(
                bare.url, clients=arguments.clients, seconds=arguments.capacity_seconds, seed=f"capacity:{number}"
            )
            await idle(bare)
            print(f"round {number + 1}: the engine finishes {capacity:.2f} requests/s", flush=True)
            visits = [(load, arm) for load in arguments.loads for arm in arms]
            order.shuffle(visits)
            for load, arm in visits:
                result = await visit(
                    arm, load=load, capacity=capacity, seconds=arguments.slice_seconds, round_number=number
                )
                results.write(json.dumps(result.as_dict()) + "\n")
                results.flush()
                print(f"  {result.line()}", flush=True)


async def main(arguments: argparse.Namespace) -> None:
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    model = ROOT / ".models" / "tiny"
    subprocess.run([vllm_python(), ROOT / "tests" / "vllm" / "make_model.py", model], check=True)
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    # The engines share one core and everything else the other: left alone, vLLM starves whoever measures it.
    engine_cpus = last_cpu()
    os.sched_setaffinity(0, os.sched_getaffinity(0) - set(engine_cpus))
    plugin = ("--logits-processors", "forced_length:ForcedLength")
    limit = ("--max-num-queued-reqs", str(arguments.native_limit))
    with (
        VllmServer(
            model, extra_args=plugin, engine_cpus=engine_cpus, log_path=RESULTS.parent / "vllm-bare.log"
        ) as bare,
        VllmServer(
            model, extra_args=(*plugin, *limit), engine_cpus=engine_cpus, log_path=RESULTS.parent / "vllm-limited.log"
        ) as limited,
    ):
        async with contextlib.AsyncExitStack() as stack:
            arms = [Arm("vllm", bare.url, bare), Arm("vllm-queue-limit", limited.url, limited)]
            for name, config in [("kvguard", arguments.config), *arguments.variant]:
                url = await stack.enter_async_context(kvguard(name, bare.url, config))
                arms.append(Arm(name, url, bare))
            began = time.monotonic()
            await measure(arguments, arms)
            print(f"took {time.monotonic() - began:.0f} s")
    write_report(RESULTS, ROOT / "docs", native_limit=arguments.native_limit)


def named_config(text: str) -> tuple[str, Path]:
    """Another kvguard to measure beside the default one."""
    name, _, file = text.partition("=")
    return name, Path(file)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--loads", type=float, nargs="+", default=LOADS, help="offered load over capacity")
    parser.add_argument("--slice-seconds", type=float, default=12.0)
    parser.add_argument("--capacity-seconds", type=float, default=10.0)
    parser.add_argument("--warm-seconds", type=float, default=15.0)
    parser.add_argument("--warm-rate", type=float, default=4.0)
    parser.add_argument("--clients", type=int, default=12, help="closed-loop clients that saturate the engine")
    parser.add_argument("--native-limit", type=int, default=16, help="vLLM's --max-num-queued-reqs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--config", type=Path, help="kvguard.yaml to measure instead of the defaults")
    parser.add_argument("--variant", type=named_config, action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--append", action="store_true", help="keep the results that are there")
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(main(parse_arguments()))
