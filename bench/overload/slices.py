"""What one visit of one arm under one load came to, and where results are kept."""

import dataclasses
import json
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from bench.overload.client import Outcome
from bench.overload.workload import Arrival

FIRST_TOKEN_SECONDS = 2.0
PROMPT_FIRST_TOKEN_SECONDS = 0.5
PER_TOKEN_SECONDS = 0.25

BARE, LIMITED, SATURATION, BUDGET = "vllm", "vllm-queue-limit", "saturation-gate", "budget-gate"
CEILING, KVGUARD, COLD, UNLEARNED = "clairvoyant", "kvguard", "kvguard-cold", "kvguard-unlearned"
RIVALS = (BARE, LIMITED, SATURATION, BUDGET)
COLD_ARMS = (COLD, UNLEARNED)
ARMS = (*RIVALS, CEILING, KVGUARD, *COLD_ARMS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One visit: one arm under one load of one shape for some seconds.

    `capacity` is what the engine finished a second just before. `whole_good` are the good answers that no lowered cap
    cut short. `wanted_tokens` is what all answers offered would have come to. What came before the slice to fill the
    engine counts only where preemptions are set against all that was sent.
    """

    round: int
    shape: str
    arm: str
    load: float
    capacity: float
    seconds: float
    offered: int
    wanted_tokens: int
    good: int
    prompt_good: int
    good_tokens: int
    whole_good: int
    whole_good_tokens: int
    refused: int
    timed_out: int
    failed: int
    first_tokens: list[float]
    preemptions: float
    sent_in_all: int
    native_limit: int | None = None

    @property
    def goodput(self) -> float:
        """Good answers a second, as a share of what the engine could finish."""
        return self.good / self.seconds / self.capacity

    @property
    def token_goodput(self) -> float:
        """The same in tokens."""
        if not self.offered:
            return 0.0
        return self.good_tokens / self.seconds / (self.capacity * self.wanted_tokens / self.offered)

    @property
    def sent(self) -> int:
        """Requests that were not refused."""
        return self.offered - self.refused

    @property
    def shortened(self) -> int:
        """Good answers that ended at a lowered cap."""
        return self.good - self.whole_good

    def first_token(self, quantile: float) -> float | None:
        """Seconds to the first token among those who got one."""
        seen = self.first_tokens
        return seen[min(int(quantile * len(seen)), len(seen) - 1)] if seen else None

    def line(self) -> str:
        """One line for who watches the run."""
        return (
            f"{self.load:>4}x {self.arm:<17} goodput {self.goodput:5.2f} tokens {self.token_goodput:5.2f}  good "
            f"{self.good:>3}/{self.offered:<3} shortened {self.shortened:>2} refused {self.refused:>3}  "
            f"time-outs {self.timed_out:>3}  failed {self.failed}  "
            f"p50/p99 first token {self.first_token(0.5)}/{self.first_token(0.99)}  preemptions {self.preemptions:.0f}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """What is about to be seen: the part of a slice that is known before."""

    round: int
    shape: str
    arm: str
    load: float
    capacity: float
    seconds: float
    native_limit: int | None = None

    def came_to(
        self, schedule: list[Arrival], everything: list[Outcome], *, lead_seconds: float, preemptions: float
    ) -> Slice:
        """The slice of what arrived after the lead."""
        outcomes = [o for arrival, o in zip(schedule, everything, strict=True) if arrival.at >= lead_seconds]
        good = [o for o in outcomes if o.good(first_token=FIRST_TOKEN_SECONDS, per_token=PER_TOKEN_SECONDS)]
        whole = [o for o in good if not o.cut]
        prompt = [o for o in good if o.good(first_token=PROMPT_FIRST_TOKEN_SECONDS, per_token=PER_TOKEN_SECONDS)]
        return Slice(
            **dataclasses.asdict(self),
            offered=len(outcomes),
            wanted_tokens=sum(arrival.length for arrival in schedule if arrival.at >= lead_seconds),
            good=len(good),
            prompt_good=len(prompt),
            good_tokens=sum(o.tokens for o in good),
            whole_good=len(whole),
            whole_good_tokens=sum(o.tokens for o in whole),
            refused=sum(o.refused for o in outcomes),
            timed_out=sum(o.timed_out for o in outcomes),
            failed=sum(o.failed for o in outcomes),
            first_tokens=sorted(round(o.first_token, 3) for o in outcomes if o.first_token is not None),
            preemptions=preemptions,
            sent_in_all=sum(not o.refused for o in everything),
        )


def append(file: Path, result: Slice) -> None:
    with file.open("a") as lines:
        lines.write(json.dumps(dataclasses.asdict(result)) + "\n")


def read(file: Path) -> list[Slice]:
    """What was appended, nothing where there is no file."""
    if not file.exists():
        return []
    return [Slice(**json.loads(line)) for line in file.read_text().splitlines()]


def median(slices: Iterable[Slice], value: Callable[[Slice], float | None]) -> float:
    """0 where nothing is known."""
    known = [v for v in map(value, slices) if v is not None]
    return statistics.median(known) if known else 0.0


def spread(values: list[float]) -> str:
    """Median, least and most."""
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})" if values else "-"


def in_order(slices: Iterable[Slice]) -> list[str]:
    """The arms there are: the known ones first, then other kvguards."""
    named = list(dict.fromkeys(s.arm for s in slices))
    return [arm for arm in ARMS if arm in named] + [arm for arm in named if arm not in ARMS]
