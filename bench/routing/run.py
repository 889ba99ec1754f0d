"""Many engines behind one router, in simulated time: `make bench-routing` writes what came of it to docs/benchmarks.md.

Three kinds of traffic on 4 and 16 engines; every router gets the same requests. Nothing varies but the seed.
"""

import argparse
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice, product
from random import Random

from bench.overload.slices import Visit
from bench.page import DOCS, write_section
from bench.routing.plot import plot
from bench.routing.report import report
from bench.routing.results import ARMS, ROUTERS, Routed
from bench.routing.traffic import ENGINE, TRAFFIC, Traffic, Turn, calmed, schedule, turns
from bench.routing.world import World
from bench.simulated.world import capacity
from kvguard.simulator.config import SimConfig

ENGINES = (4, 16)
LOADS = (0.8, 1.5, 4.0)
SLICE_SECONDS = {4: 6.0, 16: 2.5}  # the more engines, the more requests a second
KNOWN_ANSWERS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """A kind of traffic on so many engines, what they are able to finish a second, and for how long they are seen."""

    traffic: Traffic
    engines: int
    able: float
    seconds: float

    def run(self, load: float, seed: int, arms: tuple[str, ...]) -> list[Routed]:
        """Every router on the same arrivals."""
        name, engines = self.traffic.name, self.engines
        seconds, rate = self.traffic.lead_seconds + self.seconds, load * self.able
        every = schedule(self.traffic, engines=engines, rate=rate, seconds=seconds, seed=f"{name}:{seed}:{load}")
        offered = calmed(every, self.traffic.calm_seconds, load, Random(f"calm:{seed}"))
        known = list(islice(turns(self.traffic, engines=engines, rate=rate, seed=f"known:{name}"), KNOWN_ANSWERS))
        return [self._visit(arm, load, seed, offered, known) for arm in arms]

    def _visit(self, arm: str, load: float, seed: int, offered: list[Turn], known: list[Turn]) -> Routed:
        lead_seconds, router = self.traffic.lead_seconds, ROUTERS[arm](self.engines, known, seed)
        span, patience_seconds = (lead_seconds, lead_seconds + self.seconds), self.traffic.patience_seconds
        world = World(ENGINE, self.engines, router, patience_seconds=patience_seconds, span=span)
        outcomes = world.offer(offered)
        visit = Visit(round=seed, shape=self.traffic.name, arm=arm, load=load, capacity=self.able, seconds=self.seconds)
        seen = visit.came_to(offered, outcomes, lead_seconds=lead_seconds, preemptions=world.preemptions)
        return Routed(engines=self.engines, seen=seen, watched=world.watched())


def able(traffic: Traffic, engines: int) -> float:
    """Answers a second that so many engines finish in a closed loop when requests go to each in turn.

    One of them is measured, on every so manieth request. How near the turns of a conversation are to each other depends
    on the rate, so that is measured first, with nothing cached, where it does not matter.
    """
    uncached = replace(ENGINE, enable_prefix_caching=False)
    rate = engines * _able(traffic, uncached, engines, rate=1.0)
    return engines * _able(traffic, ENGINE, engines, rate=rate)


def _able(traffic: Traffic, config: SimConfig, engines: int, *, rate: float) -> float:
    supply = islice(turns(traffic, engines=engines, rate=rate, seed=f"capacity:{traffic.name}"), 0, None, engines)
    return capacity(config, supply, clients=traffic.clients, mean_tokens=traffic.output.mean())


def course(traffic: Traffic, engines: int) -> Course:
    """Measure the engines first."""
    seconds = SLICE_SECONDS.get(engines, min(SLICE_SECONDS.values()))
    return Course(traffic=traffic, engines=engines, able=able(traffic, engines), seconds=seconds)


def measure(chosen: argparse.Namespace) -> Iterator[Routed]:
    """All visits; what takes longest is begun first."""
    pairs = list(product((TRAFFIC[name] for name in chosen.shapes), sorted(chosen.engines, reverse=True)))
    with ProcessPoolExecutor(chosen.processes) as pool:
        courses = list(pool.map(course, *zip(*pairs, strict=True)))
        for each in courses:
            print(f"{each.traffic.name}, {each.engines} engines: {each.able:.1f} answers/s", flush=True)
        runs = product(sorted(chosen.loads, reverse=True), courses, range(chosen.seeds))
        tasks = [pool.submit(each.run, load, seed, tuple(chosen.arms)) for load, each, seed in runs]
        for task in tasks:
            yield from task.result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--shapes", nargs="+", choices=TRAFFIC, default=list(TRAFFIC), metavar="SHAPE")
    parser.add_argument("--engines", type=int, nargs="+", default=ENGINES)
    parser.add_argument("--loads", type=float, nargs="+", default=LOADS, help="offered load over capacity")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS, metavar="ARM", help="only these")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--print", action="store_true", help="leave docs/ alone")
    chosen = parser.parse_args()
    results = sorted(measure(chosen), key=lambda r: (list(TRAFFIC).index(r.seen.shape), r.engines))
    text = report(results)
    if chosen.print:
        print(text)
        return
    write_section("routing", text)
    plot(results, DOCS.with_name("routing.svg"))


if __name__ == "__main__":
    main()
