"""Goodput under overload in simulation: the shapes, loads, arms and targets of `bench.overload`, over many seeds.

The engine is the simulator's, with as many blocks as the real one of that bench; kvguard is its controller under
default settings, without a proxy around it. Time is simulated: no machine is measured, and nothing varies but the seed.
`make bench-simulated` writes what came of it to docs/benchmarks.md.
"""

import argparse
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random

from bench.overload.gates import BudgetGate, ClairvoyantGate, Gate, SaturationGate
from bench.overload.options import LOADS, USUAL_SHAPES, named_config
from bench.overload.plot import plot
from bench.overload.report import judged, table
from bench.overload.run import TRIAL_LOAD, WARM_LOAD
from bench.overload.slices import (
    BARE,
    BUDGET,
    CEILING,
    COLD,
    KVGUARD,
    LIMITED,
    SATURATION,
    UNLEARNED,
    Slice,
    Visit,
)
from bench.overload.targets import summary, verdicts
from bench.overload.workload import SHAPES, Shape, arrivals, requests
from bench.page import DOCS, write_section
from bench.simulated.gates import Door, Kvguard
from bench.simulated.world import World, capacity
from kvguard.settings import Settings
from kvguard.simulator.config import SimConfig
from kvguard.sources import load_settings

BLOCKS, SEQUENCES = 128, 64
LEAD_SECONDS = 4.0
SLICE_SECONDS = 12.0
WARM_REQUESTS = 120
VARIANTS = {"kvguard-waiting": Path(__file__).parents[1] / "overload" / "waiting.yaml"}
BELIEVES_NOTHING = {"forecast": {"min_answers": 10**9}}

NewDoor = Callable[[int], Door]


def words(text: str) -> int:
    """Tokens of a prompt: the engine of this bench counts words."""
    return len(text.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """An engine and what stands before it. A warm one has seen answers of the shape before."""

    name: str
    new_door: NewDoor
    config: SimConfig
    warm: bool = False


def engine(scale: int) -> SimConfig:
    """As large as that of `bench.overload`, or so many times as large."""
    return SimConfig(
        num_gpu_blocks=BLOCKS * scale,
        block_size=32,
        max_model_len=2048,
        max_num_seqs=SEQUENCES * scale,
        max_num_batched_tokens=2048 * scale,
    )


def scaled(shape: Shape, scale: int) -> Shape:
    """As many more clients as the engine is larger."""
    limits = tuple(limit * scale for limit in shape.native_limits)
    return replace(shape, clients=shape.clients * scale, native_limits=limits)


def arms(config: SimConfig, limit: int, variants: dict[str, Path]) -> Iterator[Arm]:
    """Every arm; the engine's own limit is the one that was found to serve most, and variants are other settings."""
    blocks = config.num_gpu_blocks - 1
    rivals: dict[str, Callable[[], Gate]] = {
        BARE: Gate,
        SATURATION: SaturationGate,
        BUDGET: partial(BudgetGate, capacity_tokens=blocks * config.block_size),
        CEILING: partial(ClairvoyantGate, capacity_blocks=blocks, block_size=config.block_size),
    }
    for name, new_gate in rivals.items():
        yield Arm(name=name, new_door=partial(_behind, new_gate), config=config)
    yield limited(config, limit)
    usual = Settings()
    for name, settings in {
        KVGUARD: usual,
        **{name: load_settings(config=file) for name, file in variants.items()},
    }.items():
        yield Arm(name=name, new_door=partial(Kvguard, settings, config), config=config, warm=True)
    unlearned = Settings(**BELIEVES_NOTHING)
    for name, settings in ((COLD, usual), (UNLEARNED, unlearned)):
        yield Arm(name=name, new_door=partial(Kvguard, settings, config), config=config)


def limited(config: SimConfig, limit: int) -> Arm:
    """The engine behind its own admission control."""
    limited_config = replace(config, max_num_queued_reqs=limit)
    return Arm(name=LIMITED, new_door=partial(_behind, Gate), config=limited_config)


def _behind(new_gate: Callable[[], Gate], seed: int) -> Door:
    return Door(new_gate())


def visit(arm: Arm, shape: Shape, load: float, able: float, seed: int) -> Slice:
    """Offer `load` times what the engine is able to finish and see what comes of it, once the engine has filled."""
    world = World(arm.config, arm.new_door(seed), patience_seconds=shape.patience_seconds)
    if arm.warm:
        rate = WARM_LOAD * able
        seconds = WARM_REQUESTS / rate
        world.offer(arrivals(shape, rate=rate, seconds=seconds, seed=f"warm:{shape.name}:{seed}", count=words))
    before, seconds = world.engine.stats().preemptions, LEAD_SECONDS + SLICE_SECONDS
    schedule = arrivals(shape, rate=load * able, seconds=seconds, seed=f"{shape.name}:{seed}:{load}", count=words)
    outcomes = world.offer(schedule)
    came = Visit(round=seed, shape=shape.name, arm=arm.name, load=load, capacity=able, seconds=SLICE_SECONDS)
    preemptions = world.engine.stats().preemptions - before
    return came.came_to(schedule, outcomes, lead_seconds=LEAD_SECONDS, preemptions=preemptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What every seed goes through: a shape, an engine and what it can finish a second, its own best limit."""

    shape: Shape
    config: SimConfig
    loads: tuple[float, ...]
    variants: dict[str, Path]
    only: frozenset[str]
    able: float
    limit: int

    def run(self, seed: int) -> list[Slice]:
        """Every arm under every load, on the same arrivals."""
        every = [arm for arm in arms(self.config, self.limit, self.variants) if not self.only or arm.name in self.only]
        return [visit(arm, self.shape, load, self.able, seed) for load in self.loads for arm in every]


def course(shape: Shape, chosen: argparse.Namespace) -> Course:
    """Measure the engine, and try its own limits under overload, on arrivals of their own."""
    config, shape = engine(chosen.scale), scaled(shape, chosen.scale)
    supply = requests(shape, Random(f"capacity:{shape.name}"), words)
    able = capacity(config, supply, clients=shape.clients, mean_tokens=shape.output.mean())
    tried = {limit: visit(limited(config, limit), shape, TRIAL_LOAD, able, -1).good for limit in shape.native_limits}
    return Course(
        shape=shape,
        config=config,
        loads=tuple(chosen.loads),
        variants=VARIANTS | dict(chosen.variant),
        only=frozenset(chosen.arms),
        able=able,
        limit=max(tried, key=lambda limit: tried[limit]),
    )


def measure(chosen: argparse.Namespace) -> list[Slice]:
    """All slices, in order of shape and seed."""
    found = []
    with ProcessPoolExecutor(chosen.processes) as pool:
        for name in chosen.shapes:
            each = course(SHAPES[name], chosen)
            print(f"{name}: {each.able:.1f} answers/s, --max-num-queued-reqs {each.limit}", flush=True)
            for slices in pool.map(each.run, range(chosen.seeds)):
                found += slices
    return found


def report(slices: list[Slice], seeds: int) -> str:
    """What was met, and how the arms compare under overload."""
    found = verdicts(slices)
    parts = [f"{seeds} seeds, {SLICE_SECONDS:g} simulated seconds a slice.", summary(found)]
    for shape in dict.fromkeys(s.shape for s in slices):
        part = [s for s in slices if s.shape == shape]
        parts += [f"### {shape}, simulated", table(part), judged([v for v in found if v.shape == shape])]
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=USUAL_SHAPES, metavar="SHAPE")
    parser.add_argument("--loads", type=float, nargs="+", default=LOADS, help="offered load over capacity")
    parser.add_argument("--arms", nargs="+", default=(), metavar="ARM", help="only these")
    parser.add_argument("--scale", type=int, default=1, help="how many times as large the engine and the load are")
    parser.add_argument("--variant", type=named_config, action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--print", action="store_true", help="leave docs/benchmarks.md alone")
    chosen = parser.parse_args()
    slices = measure(chosen)
    if chosen.print:
        print(report(slices, chosen.seeds))
        return
    write_section("simulated", report(slices, chosen.seeds))
    plot(slices, DOCS.with_name("simulated.svg"))
    print(summary(verdicts(slices)))


if __name__ == "__main__":
    main()
