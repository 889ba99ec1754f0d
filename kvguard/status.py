"""`kvguard status`: what the live page shows, in a terminal."""

import argparse
import asyncio
import shutil
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Final, NoReturn

import httpx
import msgspec

from kvguard.admission.tiers import Tier
from kvguard.clock import SystemClock
from kvguard.telemetry.live.view import Happening, Server, Snapshot
from kvguard.telemetry.live.words import faults

EXIT_UNREACHABLE: Final = 1
DEFAULT_URL: Final = "http://127.0.0.1:9090"
_SECONDS: Final = 1.0
_COLOURS: Final = {0: "32", 1: "33", 2: "35", 3: "31"}
_LEVELS: Final = {"calm": 0, "busy": 1, "overload": 3, "fault": 3}
_AGAIN: Final = "\x1b[H\x1b[J"
_LATEST: Final = 8
_DECODER: Final = msgspec.json.Decoder(Snapshot)


Colour = Callable[[str, int], str]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The subcommand."""
    parser = commands.add_parser("status", help="show what a running kvguard is doing, refreshed every second")
    parser.add_argument("--url", default=DEFAULT_URL, help=f"address of its admin port ({DEFAULT_URL})")
    parser.add_argument("--once", action="store_true", help="show it once; the default where the output is no terminal")
    parser.add_argument("--json", action="store_true", help="as JSON, once")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> None:
    """Show the snapshot until interrupted. Exits with 1 when nobody answers."""
    terminal = sys.stdout.isatty()
    if chosen.json or chosen.once or not terminal:
        body = _fetched(chosen.url)
        print(
            body.decode() if chosen.json else "\n".join(lines(_decoded(body, chosen.url), _colour(terminal=terminal)))
        )
        return
    asyncio.run(_follow(chosen.url))


async def _follow(url: str) -> None:
    clock = SystemClock()
    while True:
        shown = lines(_decoded(_fetched(url), url), _colour(terminal=True))
        print(_AGAIN + "\n".join(shown), flush=True)
        await clock.sleep(_SECONDS)


def _fetched(url: str) -> bytes:
    address = f"{url.rstrip('/')}/live/snapshot"
    try:
        answer = httpx.get(address, timeout=5.0, trust_env=False)
        answer.raise_for_status()
    except httpx.HTTPStatusError as error:
        _give_up(f"{address} answered with {error.response.status_code}: is this the admin port of a kvguard?")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        _give_up(f"no kvguard answers at {address} ({type(error).__name__}); --url names its admin port")
    return answer.content


def _decoded(body: bytes, url: str) -> Snapshot:
    try:
        return _DECODER.decode(body)
    except msgspec.DecodeError:
        _give_up(f"{url} answers, but not as a kvguard of this version does")


def _give_up(why: str) -> NoReturn:
    print(f"kvguard: {why}", file=sys.stderr)
    sys.exit(EXIT_UNREACHABLE)


def _colour(*, terminal: bool) -> Colour:
    """Colours a text by a tier, on a terminal."""
    return lambda text, tier: f"\x1b[1;{_COLOURS[tier]}m{text}\x1b[0m" if terminal else text


def lines(snapshot: Snapshot, colour: Colour, width: int | None = None) -> Iterator[str]:
    """The snapshot as lines of text."""
    head = snapshot.headline
    width = width or shutil.get_terminal_size().columns
    yield colour(head.title, _LEVELS[head.level])
    for name, text in (("who", head.who), ("doing", head.doing), ("next", head.next), ("to turn", head.turn)):
        yield f"  {name:<8} {text}"
    yield ""
    for server in snapshot.servers:
        yield from _server(server, snapshot.thresholds, colour, max(20, min(60, width - 40)))
    yield ""
    for happening in snapshot.happenings[:_LATEST]:
        yield _happening(happening)
    ready = "ready" if snapshot.ready else "not ready"
    waiting = f", {snapshot.waiting} of at most {snapshot.waiting_most} wait" if snapshot.waiting_most else ""
    yield f"kvguard {snapshot.version}, {ready}, {snapshot.phase}, settings {snapshot.settings_hash}{waiting}"


def _server(server: Server, thresholds: tuple[float, float, float], colour: Colour, wide: int) -> Iterator[str]:
    """One backend in two lines."""
    notes = [server.condition, *faults(server), *(["shadow"] if server.shadow else [])]
    yield f"{server.name}  {colour(Tier(server.tier).name, server.tier)}  {', '.join(notes)}"
    usage = server.usage
    if usage is None:
        yield "  how full it is, is not known"
        return
    bar = _bar(usage.projected, usage.peak, thresholds, wide)
    demand = "" if server.demand_ratio is None else f", demand {server.demand_ratio:.0%}"
    queue = f", {server.engine_waiting} wait in the engine" if server.engine_waiting else ""
    yield (
        f"  [{colour(bar, server.tier)}] {usage.projected:.0%} now, {usage.peak:.0%} at the peak, "
        f"{server.requests} requests{queue}{demand}"
    )


def _bar(now: float, peak: float, thresholds: tuple[float, float, float], wide: int) -> str:
    """`#` is in use, `+` is still to come, and `t`, `r`, `R` stand where TRIM, RESTRICT and REJECT begin."""
    cells = ["#" if cell < now * wide else "+" if cell < peak * wide else "." for cell in range(wide)]
    for ratio, mark in zip(thresholds, "trR", strict=True):
        cells[min(wide - 1, int(ratio * wide))] = mark
    return "".join(cells)


def _happening(happening: Happening) -> str:
    when = datetime.fromtimestamp(happening.at).astimezone().strftime("%H:%M:%S")
    times = f" ({happening.count} times)" if happening.count > 1 else ""
    return f"{when}  {happening.backend}: {happening.words}{times}"
