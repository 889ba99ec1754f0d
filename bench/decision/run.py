"""What one decision costs while many sequences are live: `make bench-decision`.

One backend, chat-like prompts and answers, as many live requests as the row says. Between two decisions streams move on
by a token each, one answer ends, and the candidate that is admitted takes its place. The baseline is the same question
answered from scratch, in the same run and on the same reservations: collect every live sequence, sort by what remains,
and walk through them once for the peak.
"""

import argparse
import random
import time
from dataclasses import dataclass

from bench.page import quantile, write_section
from kvguard.admission.decision import AdmissionPolicy
from kvguard.admission.footprint import Demand
from kvguard.admission.ledger import Reservation, ReservationState
from kvguard.admission.lengths import LengthPolicy
from kvguard.admission.occupancy import OccupancyPolicy
from kvguard.admission.policy import DegradePolicy
from kvguard.admission.retry import RetryPolicy
from kvguard.admission.tiers import TierPolicy
from kvguard.admission.usage import EngineUsage, UsageSample
from kvguard.pool.backend import new_backend
from kvguard.proxy.controller import Admission, Controller

LIVE = (100, 1_000, 10_000)
BLOCK_SIZE = 16
STREAMS_BETWEEN = 32
# Peak of the live requests over capacity: nothing to do, degrading, and a cap lowered until the request fits or not.
LOADS = {"below TRIM": 0.5, "from TRIM to REJECT": 0.85, "about REJECT": 0.949}


def candidate(rng: random.Random) -> Demand:
    cap = rng.choice((256, 512, 1024, 2048))
    prompt = round(min(max(rng.lognormvariate(6.5, 1.0), 16), 16_000))
    return Demand(prompts=(prompt,), output_cap=cap, asked_cap=cap, expected_output=cap)


@dataclass(slots=True)
class Load:
    """A backend with requests in flight, and what happens there between two decisions."""

    rng: random.Random
    controller: Controller
    live: list[Reservation]
    now: float = 1000.0

    def between(self) -> None:
        """Some streams go on by a token."""
        self.now += 0.001
        for reservation in self.rng.choices(self.live, k=STREAMS_BETWEEN):
            self.controller.backends[0].ledger.progress(reservation, reservation.produced + 1)

    def decide(self) -> float:
        """Seconds of one decision; an admitted request takes the place of one that ends."""
        asked, backend = candidate(self.rng), self.controller.backends[0]
        began = time.perf_counter()
        answer = self.controller.admit(self.controller.call(lambda _: asked), self.now)
        seconds = time.perf_counter() - began
        if isinstance(answer, Admission):
            index = self.rng.randrange(len(self.live))
            backend.learn(self.live[index].demand, self.rng.randint(1, 400))
            backend.end(self.live[index], ReservationState.SETTLED, self.now)
            self.live[index] = answer.reservation
        return seconds

    def from_scratch(self) -> float:
        """Seconds the same peak takes when every live sequence is sorted and walked through."""
        asked = candidate(self.rng)
        began = time.perf_counter()
        futures = [(r.course.remaining, r.demand.prompts[0] + r.produced) for r in self.live]
        futures.append((asked.expected_output, asked.prompts[0]))
        futures.sort(reverse=True)
        peak = alive = tokens = 0
        for remaining, held in futures:
            alive, tokens = alive + 1, tokens + held
            peak = max(peak, tokens + alive * remaining)
        return time.perf_counter() - began


def loaded(live: int, ratio: float, seed: int) -> Load:
    """So many live requests in different stages, on an engine that their peak fills to `ratio`."""
    rng = random.Random(seed)
    backend = new_backend("bench", "http://bench", OccupancyPolicy(stale_after_seconds=1e9), LengthPolicy())
    policy = AdmissionPolicy(tiers=TierPolicy(), degrade=DegradePolicy())
    controller = Controller([backend], policy, RetryPolicy(), rng=rng, on_tier_change=lambda _: None)
    backend.ledger.recount(backend.occupancy.policy.capacity.layout(BLOCK_SIZE).rule)
    reservations = [backend.reserve(candidate(rng), rng.uniform(0.0, 900.0)) for _ in range(live)]
    for reservation in reservations:
        backend.ledger.progress(reservation, rng.randint(0, reservation.demand.expected_output))
    blocks = round(max(backend.ledger.profile.peak, backend.ledger.held_blocks) / ratio)
    engine = EngineUsage(engine="0", capacity_blocks=blocks, block_size=BLOCK_SIZE, used_ratio=0.0)
    backend.occupancy.observe(UsageSample(engines=(engine,)), asked_at=0.0)
    return Load(rng, controller, reservations)


def measure(decisions: int, seed: int) -> str:
    lines = [
        "| live sequences | load | decision p50, ms | p99, ms | from scratch p50, ms | ratio of the p50s |",
        "|---|---|---|---|---|---|",
    ]
    for live in LIVE:
        loads = {name: loaded(live, ratio, seed) for name, ratio in LOADS.items()}
        taken: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in loads}
        for _ in range(decisions):
            for name, load in loads.items():  # in turn, because the machine's speed varies
                load.between()
                taken[name][0].append(load.decide() * 1e3)
                taken[name][1].append(load.from_scratch() * 1e3)
        for name, (ours, scratch) in taken.items():
            p50, p99, plain = quantile(ours, 0.5), quantile(ours, 0.99), quantile(scratch, 0.5)
            lines.append(f"| {live:,} | {name} | {p50:.2f} | {p99:.2f} | {plain:.2f} | {plain / p50:.1f} |")
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
        write_section("decision", report)


if __name__ == "__main__":
    main()
