"""What a run is asked to do, and how long it may take."""

import argparse
from dataclasses import dataclass, field
from pathlib import Path

from bench.overload.slices import ARMS, KVGUARD
from bench.overload.workload import SHAPES, Shape

LOADS = (0.5, 1.0, 2.0, 4.0, 8.0)
USUAL_SHAPES = ("chat", "rag", "reasoning", "chat-bursts")
QUICK = {
    "shapes": ("chat", "rag", "reasoning"),
    "loads": (4.0,),
    "rounds": 1,
    "lead_seconds": 2.0,
    "slice_seconds": 4.0,
    "warm_requests": 60,
    "search": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One run. `configs` are the kvguards by name, None the default settings; `search` tries vLLM's limit at values."""

    arms: tuple[str, ...]
    shapes: tuple[Shape, ...]
    loads: tuple[float, ...]
    configs: dict[str, Path | None]
    minutes: float
    rounds: int
    lead_seconds: float
    slice_seconds: float
    capacity_seconds: float
    warm_requests: int
    search: bool
    seed: int
    append: bool
    print: bool


@dataclass(slots=True, kw_only=True)
class Timetable:
    """When a run must end, and how long its parts took: one that was never done always fits."""

    until: float
    taken: dict[str, float] = field(default_factory=dict)

    def fits(self, part: str, now: float) -> bool:
        """Whether it would end in time if it took as long as the last time."""
        return part not in self.taken or now + self.taken[part] <= self.until

    def note(self, part: str, seconds: float) -> None:
        self.taken[part] = seconds


def named_config(text: str) -> tuple[str, Path]:
    """Another kvguard to measure beside the default one."""
    name, _, file = text.partition("=")
    if not name or not file:
        raise argparse.ArgumentTypeError("write NAME=FILE")
    return name, Path(file)


def parse_options(arguments: list[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS, metavar="ARM", help=", ".join(ARMS))
    parser.add_argument(
        "--shapes", nargs="+", choices=SHAPES, default=USUAL_SHAPES, metavar="SHAPE", help=", ".join(SHAPES)
    )
    parser.add_argument("--loads", type=float, nargs="+", default=LOADS, help="offered load over capacity")
    parser.add_argument("--minutes", type=float, default=45.0, help="no shape is begun anew that would end later")
    parser.add_argument("--rounds", type=int, default=1000, help="at most so many")
    parser.add_argument("--lead-seconds", type=float, default=3.0, help="arrivals before a slice that fill the engine")
    parser.add_argument("--slice-seconds", type=float, default=5.0)
    parser.add_argument("--capacity-seconds", type=float, default=7.0)
    parser.add_argument("--warm-requests", type=int, default=120, help="offered to each kvguard before a shape")
    parser.add_argument("--no-search", dest="search", action="store_false", help="vLLM's limit at its first guess")
    parser.add_argument("--quick", action="store_true", help="a first look in about eight minutes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--config", type=Path, help="kvguard.yaml to measure instead of the defaults")
    parser.add_argument("--variant", type=named_config, action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--append", action="store_true", help="keep the results that are there")
    parser.add_argument("--print", action="store_true", help="leave docs/benchmarks.md alone")
    quick, _ = parser.parse_known_args(arguments)
    if quick.quick:
        parser.set_defaults(**QUICK)
    chosen = vars(parser.parse_args(arguments))
    del chosen["quick"]
    variants, config = chosen.pop("variant"), chosen.pop("config")
    configs = {KVGUARD: config, **dict(variants)}
    chosen["arms"] = (*dict.fromkeys((*chosen["arms"], *dict(variants))),)
    chosen["shapes"] = tuple(SHAPES[name] for name in chosen["shapes"])
    chosen["loads"] = tuple(chosen["loads"])
    return Options(**chosen, configs=configs)
