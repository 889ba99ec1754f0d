"""The worked example of docs/tuning.md: an evening in shadow mode, decision logs replayed, and then the same for real.

Engine, clients and time are simulated, so that the same numbers come out everywhere. `make bench-tuning` writes them.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec

from bench.overload.client import REFUSED, Outcome
from bench.overload.slices import FIRST_TOKEN_SECONDS, PER_TOKEN_SECONDS
from bench.overload.workload import SHAPES, Arrival, Shape, arrivals, requests
from bench.page import DOCS, write_section
from bench.simulated.gates import Kvguard, Verdict
from bench.simulated.run import engine, scaled, words
from bench.simulated.world import World, capacity
from kvguard.admission.footprint import Demand
from kvguard.admission.lengths import LengthSource
from kvguard.protocols.routes import VLLM
from kvguard.proxy.controller import Admission
from kvguard.replay import Replay, Replayer
from kvguard.settings import Settings
from kvguard.simulator.config import SimConfig
from kvguard.telemetry.decision_log import DecisionLine

PAGE = DOCS.with_name("tuning.md")
SHAPE, SCALE = "chat-bursts", 4
LOAD, SECONDS, WARM_SECONDS = 1.0, 120.0, 30.0
ROUTE = next(iter(VLLM.generating))

Choice = dict[str, Any]
THRESHOLDS: dict[str, Choice] = {
    "0.60 / 0.75 / 0.90": {"tiers": {"trim_at": 0.60, "restrict_at": 0.75, "reject_at": 0.90}},
    "0.70 / 0.85 / 0.95 (default)": {},
    "0.80 / 0.90 / 0.97": {"tiers": {"trim_at": 0.80, "restrict_at": 0.90, "reject_at": 0.97}},
}
TRIMS: dict[str, Choice] = {
    "0.25, at most 256": {"degrade": {"trim_factor": 0.25, "max_output_tokens": 256}},
    "0.5, at most 512 (default)": {},
    "0.75, at most 768": {"degrade": {"trim_factor": 0.75, "max_output_tokens": 768}},
    "1, nothing": {"degrade": {"trim_factor": 1.0, "max_output_tokens": 2048}},
}
QUANTILES: dict[str, Choice] = {
    f"{share}{' (default)' if share == 0.5 else ''}": {"forecast": {"quantile": share}}
    for share in (0.1, 0.25, 0.5, 0.75, 0.9)
}


class Recorded(Kvguard):
    """kvguard that keeps the lines its decision log would have."""

    def __init__(self, settings: Settings, config: SimConfig) -> None:
        super().__init__(settings, config, seed=0)
        self._controller.recording = True
        self.lines: list[bytes] = []

    def ask(self, arrival: Arrival, now: float) -> Verdict:
        asked = Demand(
            prompts=(arrival.prompt_tokens,),
            output_cap=arrival.cap,
            asked_cap=arrival.cap,
            expected_output=arrival.cap,
        )
        call = self._controller.call(lambda _: asked, terms=self._terms)
        outcome = self._controller.refuse_early(now, (self._terms,)) or self._controller.admit(call, now)
        if outcome.record is not None:
            line = DecisionLine(time=now, request_id=str(arrival.number), route=ROUTE, decision=outcome.record)
            self.lines.append(msgspec.json.encode(line))
        if not isinstance(outcome, Admission):
            return Verdict.REFUSE
        self._admitted[arrival.number] = outcome
        return Verdict.SEND

    @property
    def outgrown(self) -> float:
        """Share of answers that got longer than was forecast from what had been learned."""
        calibration = self._backend.calibration
        return calibration.exceeded[LengthSource.LEARNED] / max(calibration.answers[LengthSource.LEARNED], 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evening:
    """A kind of traffic before an engine: what comes before the evening to learn from, and what comes then."""

    shape: Shape
    config: SimConfig
    warm: list[Arrival]
    busy: list[Arrival]

    @classmethod
    def planned(cls, seconds: float = SECONDS) -> "Evening":
        config, shape = engine(SCALE), scaled(SHAPES[SHAPE], SCALE)
        supply = requests(shape, Random("capacity"), words)
        able = capacity(config, supply, clients=shape.clients, mean_tokens=shape.output.mean())
        warm = arrivals(shape, rate=able / 2, seconds=WARM_SECONDS, seed="warm", count=words)
        busy = arrivals(shape, rate=LOAD * able, seconds=seconds, seed="evening", count=words)
        return cls(shape=shape, config=config, warm=warm, busy=busy)

    def under(self, choice: Choice) -> "Came":
        """What comes of it under these settings."""
        door = Recorded(Settings(**choice), self.config)
        world = World(self.config, door, patience_seconds=self.shape.patience_seconds)
        world.offer(self.warm)
        door.lines.clear()
        before = world.engine.stats().preemptions
        outcomes = world.offer(self.busy)
        return Came(door=door, outcomes=outcomes, preemptions=world.engine.stats().preemptions - before)


@dataclass(frozen=True, slots=True, kw_only=True)
class Came:
    """What came of an evening."""

    door: Recorded
    outcomes: list[Outcome]
    preemptions: int

    @property
    def cells(self) -> tuple[str, ...]:
        """Answers in time, of those the ones that were cut short, refusals, clients that gave up, preemptions."""
        good = [o for o in self.outcomes if o.good(first_token=FIRST_TOKEN_SECONDS, per_token=PER_TOKEN_SECONDS)]
        counts = (
            len(good),
            sum(o.cut for o in good),
            sum(o.status == REFUSED for o in self.outcomes),
            sum(o.timed_out for o in self.outcomes),
            self.preemptions,
        )
        return tuple(f"{count:,}" for count in counts)


CAME = ("in time", "of those cut short", "refused", "gave up", "preemptions")


def replayed(lines: list[bytes], choice: Choice) -> Replay:
    """The log decided again under these settings."""
    replay = Replay(most_differences=0)
    replay.run(lines, Replayer(Settings(**choice)))
    return replay


def refused(replay: Replay) -> int:
    return sum(count for (_, outcome), count in replay.after.outcomes.items() if outcome not in _SERVED)


_SERVED = ("admitted", "degraded", "read")
SAID = ("shadow log: refused", "log: refused", "log: shortened", "log: tokens trimmed")


def table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def report(evening: Evening) -> str:
    """Everything the page says in numbers."""
    shadow, usual = evening.under({"mode": "shadow"}), evening.under({})
    bare = ("shadow: nothing is done", *("",) * len(SAID), *shadow.cells)
    parts = [f"{len(evening.busy):,} requests in two minutes."]
    for name, choices in (("`tiers`", THRESHOLDS), ("`degrade.trim_factor`, `max_output_tokens`", TRIMS)):
        rows = (
            (label, *_said(shadow, usual, choice), *evening.under(choice).cells) for label, choice in choices.items()
        )
        parts.append(table((name, *SAID, *CAME), iter([bare, *rows])))
    parts.append(table(("`forecast.quantile`", "outgrown", *CAME), _quantiles(evening)))
    return "\n\n".join(parts)


def _said(shadow: Came, usual: Came, choice: Choice) -> tuple[str, ...]:
    """What `kvguard replay` says of the log of shadow mode, and of that of the default settings in force."""
    log = replayed(usual.door.lines, choice)
    counts = (refused(replayed(shadow.door.lines, choice)), refused(log), log.after.of("degraded"))
    return tuple(f"{count:,}" for count in (*counts, log.after.trimmed_tokens))


def _quantiles(evening: Evening) -> Iterator[tuple[str, ...]]:
    for label, choice in QUANTILES.items():
        came = evening.under(choice)
        yield label, f"{came.door.outgrown:.0%}", *came.cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--print", action="store_true", help="leave docs/tuning.md alone")
    chosen = parser.parse_args()
    text = report(Evening.planned())
    if chosen.print:
        print(text)
    else:
        write_section("tuning", text, PAGE)


if __name__ == "__main__":
    main()
