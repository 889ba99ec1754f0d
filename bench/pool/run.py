"""What one decision costs in front of many backends: `make bench-pool`.

So many backends with 10,000 live requests over all of them, chat-like. Between two decisions streams move on by a token
each, one answer ends, and the candidate that is admitted takes its place. The baseline, in the same run and on the same
backends, is the choice that most balancers make: the backend with the fewest requests, found by asking each.
"""

import argparse
import random
import time
from dataclasses import dataclass

from bench.decision.run import BLOCK_SIZE, candidate
from bench.page import quantile, write_section
from kvguard.admission.decision import AdmissionPolicy
from kvguard.admission.ledger import Reservation, ReservationState
from kvguard.admission.lengths import LengthPolicy
from kvguard.admission.occupancy import OccupancyPolicy
from kvguard.admission.policy import DegradePolicy
from kvguard.admission.retry import RetryPolicy
from kvguard.admission.tiers import TierPolicy
from kvguard.admission.usage import EngineUsage, UsageSample
from kvguard.pool.affinity import Trail
from kvguard.pool.backend import Backend, new_backend
from kvguard.pool.pool import RoutingHints
from kvguard.proxy.controller import Admission, Controller

BACKENDS = (1, 16, 256)
LIVE = 10_000
STREAMS_BETWEEN = 32
PROMPTS = 2_000  # beginnings of prompts that come again and again
PARTS = 8  # marks of each
WARM = 300  # decisions before the first that counts
LOADS = {"below TRIM": 0.5, "about REJECT": 0.949, "all refuse": 1.0}


@dataclass(slots=True)
class Load:
    """Backends with requests in flight, and what happens there between two decisions."""

    rng: random.Random
    controller: Controller
    live: list[tuple[Backend, Reservation]]
    now: float = 1000.0

    def between(self) -> None:
        """Some streams go on by a token."""
        self.now += 0.001
        for backend, reservation in self.rng.choices(self.live, k=STREAMS_BETWEEN):
            backend.ledger.progress(reservation, reservation.produced + 1)

    def decide(self) -> float:
        """Seconds of one decision, refusal of the unread body included; what is admitted takes the place of another."""
        asked, controller = candidate(self.rng), self.controller
        beginning = self.rng.randrange(PROMPTS)
        trail = Trail(parts=tuple(beginning * PARTS + part for part in range(PARTS)))
        hints = RoutingHints(trail=trail, prompt_tokens=asked.prompt_tokens)
        began = time.thread_time()
        answer = controller.refuse_early(self.now) or controller.admit(
            controller.call(lambda _: asked, hints=hints), self.now
        )
        seconds = time.thread_time() - began
        if isinstance(answer, Admission):
            index = self.rng.randrange(len(self.live))
            backend, reservation = self.live[index]
            backend.learn(reservation.demand, self.rng.randint(1, 400))
            backend.end(reservation, ReservationState.SETTLED, self.now)
            self.live[index] = answer.backend, answer.reservation
        return seconds

    def least_requests(self) -> float:
        """Seconds it takes to find the backend with the fewest requests."""
        began = time.thread_time()
        min(self.controller.backends, key=lambda backend: backend.ledger.live)
        return time.thread_time() - began


def loaded(backends: int, ratio: float, seed: int) -> Load:
    """So many backends, each filled to `ratio` by the peak of its live requests."""
    rng = random.Random(seed)
    made = [
        new_backend(f"b{number}", f"http://b{number}", OccupancyPolicy(stale_after_seconds=1e9), LengthPolicy())
        for number in range(backends)
    ]
    policy = AdmissionPolicy(tiers=TierPolicy(), degrade=DegradePolicy())
    controller = Controller(made, policy, RetryPolicy(), rng=rng, on_tier_change=lambda _: None)
    live = []
    for backend in made:
        backend.ledger.recount(backend.occupancy.policy.capacity.layout(BLOCK_SIZE).rule)
        for _ in range(LIVE // backends):
            reservation = backend.reserve(candidate(rng), rng.uniform(0.0, 900.0))
            backend.ledger.progress(reservation, rng.randint(0, reservation.demand.expected_output))
            live.append((backend, reservation))
        blocks = round(max(backend.ledger.profile.peak, backend.ledger.held_blocks) / ratio)
        engine = EngineUsage(engine="0", capacity_blocks=blocks, block_size=BLOCK_SIZE, used_ratio=0.0)
        backend.occupancy.observe(UsageSample(engines=(engine,)), asked_at=0.0)
    return Load(rng, controller, live)


def taken(load: Load, decisions: int) -> tuple[list[float], list[float]]:
    """Milliseconds of each decision and of each search for the fewest requests, in turn."""
    ours, least = [], []
    for _ in range(WARM):
        load.between()
        load.decide()
    for _ in range(decisions):
        load.between()
        ours.append(load.decide() * 1e3)
        least.append(load.least_requests() * 1e3)
    return ours, least


def measure(decisions: int, seed: int) -> str:
    lines = [
        "| backends | load | decision p50, ms | p99, ms | fewest requests p50, ms | ratio of the p50s |",
        "|---|---|---|---|---|---|",
    ]
    for backends in BACKENDS:
        for name, ratio in LOADS.items():
            ours, least = taken(loaded(backends, ratio, seed), decisions)
            p50, p99, plain = quantile(ours, 0.5), quantile(ours, 0.99), quantile(least, 0.5)
            lines.append(f"| {backends} | {name} | {p50:.2f} | {p99:.2f} | {plain:.4f} | {p50 / plain:.0f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--decisions", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--print", action="store_true", help="leave docs/benchmarks.md alone")
    chosen = parser.parse_args()
    report = measure(chosen.decisions, chosen.seed)
    print(report)
    if not chosen.print:
        write_section("pool", report)


if __name__ == "__main__":
    main()
