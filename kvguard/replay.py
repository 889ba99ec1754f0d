"""`kvguard replay`: every decision of a decision log made again under other settings, and what that comes to.

Each is made again on what was there when it was made: what the other settings would have left in the cache is not
played on. Thresholds a decision was made under keep the tier that was recorded; any others follow the recorded ratios
from line to line, with their own hysteresis.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from kvguard.admission.decision import Admit, Reject, blocks_until_open, decide, refuse_any
from kvguard.admission.policy import SequenceCut
from kvguard.admission.recorded import DecisionRecord, RecordedOccupancy, Verdict, verdict_of
from kvguard.admission.shares import within_share
from kvguard.admission.tiers import Tier, TierPolicy, TierState, next_tier
from kvguard.errors import SettingsError
from kvguard.policies import governance_of
from kvguard.proxy.placement import hope
from kvguard.proxy.returning import DRAINING_AWAY
from kvguard.settings import Settings
from kvguard.sources import load_settings
from kvguard.telemetry.decision_log import VERSION, DecisionLine

UNREAD: Final = "read"
SHOWN: Final = 10


class Replayer:
    """Decides again on lines in the order they were written."""

    def __init__(self, settings: Settings) -> None:
        governance = governance_of(settings)
        self._table, self._tenants = governance.table, governance.tenants
        self._queue_floor_ratio = settings.telemetry.queue_floor_ratio
        self._tiers: dict[tuple[str, TierPolicy], TierState] = {}

    def again(self, line: DecisionLine) -> Verdict | None:
        """The verdict; None when the body, which nobody read, would have to tell. Raises ValueError or ArithmeticError
        for what cannot have been.
        """
        record, now = line.decision, line.time
        occupancy = RecordedOccupancy(record.standing, queue_floor_ratio=self._queue_floor_ratio)
        self._retier(occupancy, now)
        if record.demand is None:
            return self._early(line, occupancy)
        policy = self._table.of(record.model or None, line.route, record.priority)
        base = self._tier(record, policy.tiers)
        decision = decide(record.demand, base, occupancy, policy, now, record.standing.passage)
        if isinstance(decision, Admit):
            due = self._tenants.unlisted if line.tenant is None else self._tenants.of(line.tenant)
            tenant, share = line.tenant or "", due.max_share
            decision = within_share(decision, occupancy, policy, tenant=tenant, max_share=share, now=now)
        return verdict_of(decision)

    def _early(self, line: DecisionLine, occupancy: RecordedOccupancy) -> Verdict | None:
        record, now, rejects = line.decision, line.time, []
        for policy in self._table.possible(line.route, record.priority):
            tier = self._tier(record, policy.tiers)
            reason = refuse_any(occupancy, tier, policy, now, record.standing.passage)
            if reason is None:
                return None
            needed = blocks_until_open(occupancy, policy, now)
            rejects.append(Reject(tier=tier, reason=reason, ratios=None, needed_blocks=needed))
        return verdict_of(min(rejects, key=hope))

    def _tier(self, record: DecisionRecord, policy: TierPolicy) -> Tier:
        for each in record.in_force:
            if each.tiers == policy:
                return each.tier
        state = self._tiers.get((record.standing.backend, policy))
        return state.tier if state else Tier.NORMAL

    def _retier(self, occupancy: RecordedOccupancy, now: float) -> None:
        """Let every tier of this backend follow."""
        ratios, backend = occupancy.ratios(now), occupancy.standing.backend
        if ratios is None:
            return
        for policy in (self._table.default.tiers, *self._table.other_tiers):
            before = self._tiers.get((backend, policy), TierState(Tier.NORMAL, now))
            self._tiers[backend, policy] = next_tier(before, ratios, policy, now)


def outcome_of(verdict: Verdict | None, record: DecisionRecord) -> str:
    """What becomes of a recorded request by this verdict: `admitted`, `degraded`, the reason it is refused for, or
    `read`. The line it waited in is not played again: it stays turned away unless room is the other settings' doing.
    """
    if verdict is None:
        return UNREAD
    away, recorded = record.turned_away, record.verdict.reason
    if away is not None and away is not recorded and (recorded is None or verdict.reason in DRAINING_AWAY):
        return away.value
    if verdict.reason is not None:
        return verdict.reason.value
    demand = record.demand
    narrowed = False
    if demand is not None and verdict.cut is not SequenceCut.NONE:
        narrowed = demand.beams or (verdict.cut is SequenceCut.ALL and demand.copies > 1)
    return "degraded" if narrowed or verdict.output_cap is not None else "admitted"


@dataclass(slots=True)
class Tally:
    """Decisions by class and outcome, and tokens: of output that was trimmed, and of all that was refused."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    trimmed_tokens: int = 0
    refused_tokens: int = 0

    def add(self, record: DecisionRecord, verdict: Verdict | None) -> None:
        """Count one decision."""
        demand, outcome = record.demand, outcome_of(verdict, record)
        self.outcomes[record.priority, outcome] += 1
        if demand is None or verdict is None:
            return
        asked = demand.sequences * demand.expected_output
        if outcome in ("admitted", "degraded"):
            self.trimmed_tokens += asked - verdict.given_tokens
        else:
            self.refused_tokens += demand.prompt_tokens + asked

    def of(self, outcome: str) -> int:
        """Decisions of any class."""
        return sum(count for (_, each), count in self.outcomes.items() if each == outcome)


@dataclass(slots=True)
class Replay:
    """What a whole log comes to; `differences` has the first few decisions that differ."""

    most_differences: int = SHOWN
    decisions: int = 0
    unreadable: int = 0
    differing: int = 0
    began: float | None = None
    ended: float | None = None
    before: Tally = field(default_factory=Tally)
    after: Tally = field(default_factory=Tally)
    differences: list[dict[str, Any]] = field(default_factory=list)

    def run(self, lines: Iterable[bytes], replayer: Replayer) -> None:
        """Take in all lines; what is no whole line of this version is counted and passed over."""
        for text in lines:
            try:
                line = msgspec.json.decode(text, type=DecisionLine)
                if line.version != VERSION:
                    raise ValueError("another version")
                self._note(line, replayer.again(line))
            except (ValueError, ArithmeticError, RecursionError):
                self.unreadable += 1

    def _note(self, line: DecisionLine, after: Verdict | None) -> None:
        record = line.decision
        self.decisions += 1
        self.began, self.ended = self.began or line.time, line.time
        self.before.add(record, record.verdict)
        self.after.add(record, after)
        if after != record.verdict:
            self.differing += 1
            if len(self.differences) < self.most_differences:
                self.differences.append(_difference(line, after))

    def document(self) -> dict[str, Any]:
        """Everything as JSON."""
        both = {"before": self.before, "after": self.after}
        return {
            "decisions": self.decisions,
            "unreadable_lines": self.unreadable,
            "differing": self.differing,
            "began": self.began,
            "ended": self.ended,
            **{name: _tally_document(tally) for name, tally in both.items()},
            "differences": self.differences,
        }


def _tally_document(tally: Tally) -> dict[str, Any]:
    by_class: dict[str, dict[str, int]] = {}
    for (priority, outcome), count in sorted(tally.outcomes.items()):
        by_class.setdefault(priority, {})[outcome] = count
    return {
        "classes": by_class,
        "trimmed_tokens": tally.trimmed_tokens,
        "refused_tokens": tally.refused_tokens,
    }


def _difference(line: DecisionLine, after: Verdict | None) -> dict[str, Any]:
    record = line.decision
    sides = {"before": record.verdict, "after": after}
    return {
        "time": line.time,
        "request_id": line.request_id,
        "route": line.route,
        "class": record.priority,
        "backend": record.standing.backend,
        **{
            name: {"outcome": outcome_of(verdict, record), **(msgspec.to_builtins(verdict) if verdict else {})}
            for name, verdict in sides.items()
        },
    }


def report(replay: Replay) -> str:
    """The replay for people."""
    began, ended = _time(replay.began or 0.0), _time(replay.ended or 0.0)
    lines = [f"{replay.decisions:,} decisions from {began} to {ended} UTC, {replay.differing:,} of them differ"]
    if replay.unreadable:
        lines.append(f"{replay.unreadable:,} lines could not be read")
    lines += ["", *_table(replay)]
    if replay.differences:
        lines += ["", f"The first {len(replay.differences)} that differ:"]
        lines += map(_difference_line, replay.differences)
    return "\n".join(lines)


def _table(replay: Replay) -> Iterator[str]:
    before, after = replay.before, replay.after
    rows = [("", "before", "after")]
    outcomes = dict.fromkeys(("admitted", "degraded", *sorted({o for _, o in before.outcomes | after.outcomes})))
    rows += [(outcome, f"{before.of(outcome):,}", f"{after.of(outcome):,}") for outcome in outcomes]
    rows.append(("tokens trimmed", f"{before.trimmed_tokens:,}", f"{after.trimmed_tokens:,}"))
    rows.append(("tokens refused", f"{before.refused_tokens:,}", f"{after.refused_tokens:,}"))
    keys = sorted(before.outcomes | after.outcomes)
    if len({priority for priority, _ in keys}) > 1:
        rows += [
            (
                f"{priority}: {outcome}",
                f"{before.outcomes[priority, outcome]:,}",
                f"{after.outcomes[priority, outcome]:,}",
            )
            for priority, outcome in keys
        ]
    width = max(len(name) for name, *_ in rows)
    yield from (f"  {name:<{width}}  {old:>12}  {new:>12}" for name, old, new in rows)


def _difference_line(each: dict[str, Any]) -> str:
    before, after = (_words(each[side]) for side in ("before", "after"))
    where = f"{each['route']} {each['class']} on {each['backend']}"
    return f"  {_time(each['time'])}  {each['request_id']}  {where}: {before} -> {after}"


def _words(side: dict[str, Any]) -> str:
    if side["outcome"] == UNREAD:
        return "its body would be read"
    cap = "" if side["output_cap"] is None else f", cap {side['output_cap']}"
    short = f", {side['needed_blocks']:.1f} blocks short" if side["needed_blocks"] else ""
    return f"{side['outcome']} at tier {side['tier']}{cap}{short}"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def add_parser(commands: Any) -> None:
    """Register the subcommand."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "replay",
        help="decide again on a decision log under other settings",
        description="Decide again on everything in a decision log (decision_log.path) under other settings.",
    )
    parser.add_argument("logs", nargs="+", type=Path, metavar="LOG", help="decision logs, the older first")
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings file (kvguard.yaml if there is one)")
    parser.add_argument("--show", type=int, default=SHOWN, metavar="N", help=f"differing decisions to print ({SHOWN})")
    parser.add_argument("--json", action="store_true", help="everything as JSON")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> None:
    """Print what the log comes to. Raises SettingsError."""
    replay = Replay(most_differences=chosen.show)
    replay.run(_lines(chosen.logs), Replayer(load_settings(config=chosen.config)))
    if not replay.decisions:
        raise SettingsError([f"{', '.join(map(str, chosen.logs))}: no decision of this version of the log"])
    print(json.dumps(replay.document(), indent=2) if chosen.json else report(replay))


def _lines(logs: Sequence[Path]) -> Iterator[bytes]:
    for log in logs:
        try:
            with log.open("rb") as file:
                yield from file
        except OSError as error:
            raise SettingsError([f"{log}: cannot be read: {error.strerror or error}"]) from error
