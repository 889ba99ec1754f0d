"""Replay: the same settings decide as they did, others follow what was recorded, and the report adds up."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvguard.admission.condition import Passage
from kvguard.admission.footprint import Demand
from kvguard.admission.occupancy import Beside, TelemetryState
from kvguard.admission.policy import SequenceCut
from kvguard.admission.reasons import RejectReason
from kvguard.admission.recorded import DecisionRecord, InForce, Standing, Verdict, standing_of
from kvguard.admission.tiers import Tier, TierPolicy
from kvguard.cli import main
from kvguard.policies import governance_of
from kvguard.proxy.controller import Admission, Refusal
from kvguard.proxy.identity import Caller
from kvguard.replay import UNREAD, Replay, Replayer, outcome_of
from kvguard.settings import Settings
from kvguard.telemetry.decision_log import DecisionLine
from tests.admission.build import demand, occupancy
from tests.kit.closed_loop import TICK, World

ROUTE = "/v1/completions"
CALLERS = [
    Caller(tenant=tenant, priority=priority)
    for tenant in ("known", "nobody")
    for priority in ("sheddable", "normal", "critical", "exempt")
]
SHARES = [{"name": "known", "max_share": 0.3}, {"name": "*", "max_share": 0.7}]
POLICIES: tuple[dict[str, Any], ...] = (
    {},
    {"tenants": SHARES, "degrade": {"mode": "proportional", "collapse_n": True}},
    {"telemetry": {"when_blind": "closed"}, "signals": {"max_prefill_backlog_tokens": 900}},
    {"telemetry": {"when_blind": "open", "queue_floor_ratio": 0.97}, "tiers": {"min_dwell_seconds": 1.0}},
    {"overrides": [{"routes": [ROUTE], "tiers": {"reject_signals": ["reserved"]}}], "mode": "shadow"},
)


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def outcome_for(world: World, asked: Demand, caller: Caller) -> Admission | Refusal:
    """What the controller says to a caller, early or not, some of it after a turn in line that never came."""
    governance = world.controller.governance
    early = world.controller.refuse_early(world.now, governance.possible(ROUTE, caller))
    if early is not None:
        return early
    terms = governance.terms(ROUTE, None, caller)
    outcome = world.controller.admit(world.controller.call(lambda _: asked, terms=terms), world.now)
    if isinstance(outcome, Admission) or world.rng.random() < 0.5:
        return outcome
    return world.controller.turn_away(
        world.controller.call(lambda _: asked, terms=terms), world.now, RejectReason.QUEUE_TIMEOUT
    )


def played(seed: int, settings: Settings) -> list[bytes]:
    """The log of a closed loop of many callers, with a freeze and a restart in it."""
    lines: list[DecisionLine] = []

    def admit(world: World, asked: Demand) -> Admission | Refusal:
        caller = world.rng.choice(CALLERS)
        outcome = outcome_for(world, asked, caller)
        tenant = caller.tenant if caller.tenant == "known" else None
        lines.append(DecisionLine(time=world.now, request_id="r", route=ROUTE, tenant=tenant, decision=outcome.record))
        return outcome

    world = World(seed, admit=admit)
    world.controller.governance, world.controller.recording = governance_of(settings), True
    world.backend.occupancy.policy = settings.occupancy_policy(world.backend.occupancy.policy.capacity)
    for number in range(300):
        if number == 100:
            world.restart()
        if number == 150:
            world.freeze(130 * TICK)
        for _ in range(world.rng.choice((0,) * 30 + (1, 1, 1, 2, 20))):
            world.arrive()
        world.tick()
    return [msgspec.json.encode(line) + b"\n" for line in lines]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_the_same_settings_make_every_decision_again(seed: int, policy: dict[str, Any]) -> None:
    """Admissions, degradations, early and other refusals of every class, tenant and state: each exactly as it was."""
    print(f"seed {seed}")
    backends = [{"url": "http://b", "name": "b"}]
    settings = Settings(backends=backends, **policy)
    lines = played(seed, settings)
    replay = Replay()
    replay.run(lines, Replayer(settings))
    assert (replay.decisions, replay.unreadable, replay.differing) == (len(lines), 0, 0), replay.differences[:3]
    assert replay.before == replay.after
    assert len(lines) > 50


def test_the_worlds_replayed_see_every_kind_of_decision() -> None:
    """The property above would prove little if nothing was refused, or all of it for one reason."""
    seen: set[str] = set()
    early = 0
    for number, policy in enumerate(POLICIES):
        lines = played(number % 4, Settings(backends=[{"url": "http://b", "name": "b"}], **policy))
        for line in (msgspec.json.decode(each, type=DecisionLine) for each in lines):
            seen.add(outcome_of(line.decision.verdict, line.decision))
            early += line.decision.demand is None
    assert seen >= {"admitted", "degraded", "saturated", "backend_stalled", "tenant_share"}
    assert early


def line(
    ratio: float,
    verdict: Verdict,
    *,
    time: float = 0.0,
    asked: Demand | None = None,
    in_force: tuple[InForce, ...] = (InForce(tiers=TierPolicy(), tier=Tier.NORMAL),),
    **fields: Any,
) -> DecisionLine:
    """A decision on a backend of 100 blocks, so much of them foreign."""
    live = occupancy(ratio)
    standing = standing_of("b", live, 0.0, Passage.OPEN, demand=asked)
    record = DecisionRecord(standing=standing, verdict=verdict, in_force=in_force, demand=asked, **fields)
    return DecisionLine(time=time, request_id="r", route=ROUTE, decision=record)


ADMITTED = Verdict(tier=Tier.NORMAL, given_tokens=16)
FULL = Verdict(tier=Tier.REJECT, reason=RejectReason.SATURATED)
UNKNOWN = Verdict(tier=Tier.NORMAL, reason=RejectReason.NO_METRICS)


def test_the_recorded_tier_is_believed_under_the_recorded_thresholds() -> None:
    """What the log does not show, as a fuller moment between two lines, is in the tier it kept."""
    replayer = Replayer(Settings())
    held = (InForce(tiers=TierPolicy(), tier=Tier.REJECT),)
    again = replayer.again(line(0.94, FULL, asked=demand(), in_force=held, priority="normal"))
    assert (again.tier, again.reason) == (Tier.REJECT, RejectReason.SATURATED)


def test_other_thresholds_follow_the_recorded_ratios_with_their_own_hysteresis() -> None:
    """REJECT is entered at its threshold and kept down to its margin, on lines of any class."""
    replayer = Replayer(Settings(tiers={"trim_at": 0.3, "restrict_at": 0.4, "reject_at": 0.5}))
    outcomes = []
    for number, (ratio, priority) in enumerate(
        [(0.45, "normal"), (0.50, "exempt"), (0.48, "normal"), (0.47, "normal")]
    ):
        again = replayer.again(line(ratio, ADMITTED, time=float(number), asked=demand(), priority=priority))
        outcomes.append((again.tier, again.reason))
    full = (Tier.REJECT, RejectReason.SATURATED)
    assert outcomes == [(Tier.RESTRICT, None), (Tier.NORMAL, None), full, (Tier.RESTRICT, None)]


def test_the_class_and_the_listed_model_choose_the_settings() -> None:
    """An override for a model takes the requests of its name, a class those of its own."""
    replayer = Replayer(Settings(overrides=[{"models": "big-*", "degrade": {"max_output_tokens": 100}}]))
    caps = [
        replayer.again(line(0.75, ADMITTED, asked=demand(16, cap=1000, expected=16), model=model, priority=priority))
        for model, priority in (("big-1", "normal"), ("small", "normal"), ("", "normal"), ("big-1", "critical"))
    ]
    assert [verdict.output_cap for verdict in caps] == [100, 500, 500, None]


def test_what_was_refused_unread_may_have_to_be_read() -> None:
    """Without its body nobody knows what other settings would do to a request that they do not refuse at once."""
    early = line(0.94, FULL, in_force=(InForce(tiers=TierPolicy(), tier=Tier.REJECT),), priority="normal")
    assert Replayer(Settings()).again(early).reason is RejectReason.SATURATED
    assert Replayer(Settings(tiers={"reject_at": 0.99})).again(early) is None
    overridden = Settings(overrides=[{"models": "m", "tiers": {"reject_at": 0.99}}])
    assert Replayer(overridden).again(early) is None


def test_a_backend_of_unknown_capacity_has_no_tier() -> None:
    """It is decided on by what to do without knowledge."""
    standing = Standing(backend="b", telemetry=TelemetryState.MISSING, passage=Passage.OPEN, beside=Beside())
    verdict = Verdict(tier=Tier.NORMAL, reason=RejectReason.NO_METRICS)
    record = DecisionRecord(standing=standing, verdict=verdict, in_force=(), demand=demand(), priority="normal")
    blind = DecisionLine(time=0.0, request_id="r", route=ROUTE, decision=record)
    assert Replayer(Settings()).again(blind) == verdict
    assert Replayer(Settings(telemetry={"when_blind": "open"})).again(blind).reason is None


@pytest.mark.parametrize(
    ("verdict", "asked", "outcome"),
    [
        (None, None, UNREAD),
        (FULL, None, "saturated"),
        (ADMITTED, demand(), "admitted"),
        (Verdict(tier=Tier.TRIM, output_cap=8), demand(), "degraded"),
        (Verdict(tier=Tier.RESTRICT, cut=SequenceCut.BEAMS), demand(copies=2), "admitted"),
        (Verdict(tier=Tier.RESTRICT, cut=SequenceCut.BEAMS), demand(copies=2, beams=True), "degraded"),
        (Verdict(tier=Tier.RESTRICT, cut=SequenceCut.ALL), demand(copies=2), "degraded"),
        (Verdict(tier=Tier.RESTRICT, cut=SequenceCut.ALL), demand(), "admitted"),
    ],
)
def test_a_request_counts_as_degraded_only_if_something_was_taken(
    verdict: Verdict | None, asked: Demand | None, outcome: str
) -> None:
    """A tier that takes nothing from this request leaves it admitted."""
    record = line(0.1, verdict or FULL, asked=asked).decision
    assert outcome_of(verdict, record) == outcome


@pytest.mark.parametrize(
    ("recorded", "away", "after", "outcome"),
    [
        (ADMITTED, RejectReason.SATURATED, ADMITTED, "saturated"),
        (ADMITTED, RejectReason.QUEUE_TIMEOUT, FULL, "queue_timeout"),
        (FULL, RejectReason.QUEUE_TIMEOUT, FULL, "queue_timeout"),
        (FULL, RejectReason.QUEUE_TIMEOUT, ADMITTED, "admitted"),
        (FULL, RejectReason.QUEUE_TIMEOUT, UNKNOWN, "no_metrics"),
        (UNKNOWN, RejectReason.NO_METRICS, FULL, "saturated"),
        (FULL, RejectReason.SATURATED, ADMITTED, "admitted"),
    ],
)
def test_who_was_turned_away_stays_so_unless_there_is_room_now(
    recorded: Verdict, away: RejectReason, after: Verdict, outcome: str
) -> None:
    """Others still go first; only where the request itself had no room can other settings have some for it."""
    record = line(0.1, recorded, asked=demand(), turned_away=away).decision
    assert outcome_of(after, record) == outcome


def log_of(path: Path, *lines: DecisionLine) -> None:
    path.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in lines))


SMALL = demand(16, cap=100)
TRIMMED = Verdict(tier=Tier.TRIM, output_cap=64, given_tokens=64)


def test_the_report_sets_before_against_after(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Counts, tokens and the first decisions that differ, for people and as JSON; torn lines are counted."""
    log = tmp_path / "decisions.jsonl"
    log_of(
        log,
        line(0.1, Verdict(tier=Tier.NORMAL, given_tokens=100), asked=SMALL, priority="normal"),
        line(0.75, TRIMMED, asked=SMALL, priority="critical"),
        line(0.94, FULL, in_force=(InForce(tiers=TierPolicy(), tier=Tier.REJECT),), priority="normal"),
    )
    log.write_bytes(log.read_bytes() + b'{"version":1,"ti')
    settings = tmp_path / "other.yaml"
    settings.write_text("tiers: {trim_at: 0.05, restrict_at: 0.97, reject_at: 0.98}\nclasses: []\n")
    main(["replay", str(log), "--config", str(settings), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert (document["decisions"], document["unreadable_lines"], document["differing"]) == (3, 1, 2)
    assert document["before"]["classes"] == {"critical": {"degraded": 1}, "normal": {"admitted": 1, "saturated": 1}}
    assert document["after"]["classes"] == {"critical": {"degraded": 1}, "normal": {"degraded": 1, "read": 1}}
    assert [document[side]["trimmed_tokens"] for side in ("before", "after")] == [36, 72]
    assert [each["after"]["outcome"] for each in document["differences"]] == ["degraded", "read"]
    main(["replay", str(log), "--config", str(settings), "--show", "1"])
    shown = capsys.readouterr().out
    assert "3 decisions from 1970-01-01 00:00:00 to 1970-01-01 00:00:00 UTC, 2 of them differ" in shown
    assert "1 lines could not be read" in shown
    assert "on b: admitted at tier 0 -> degraded at tier 1, cap 64" in shown
    assert "its body would be read" not in shown


def test_refused_tokens_are_those_of_the_whole_request() -> None:
    """Prompt and output asked for, as `kvguard_tokens_total` counts them."""
    replay = Replay()
    replay.run([msgspec.json.encode(line(0.97, FULL, asked=SMALL, priority="normal"))], Replayer(Settings()))
    assert replay.before.refused_tokens == replay.after.refused_tokens == 116


@pytest.mark.parametrize(
    "text",
    [b"", b"{}", b"[]", b"\xff", b'{"version":1}'],
)
def test_a_line_that_is_none_is_passed_over(text: bytes) -> None:
    """It is counted, and the rest is replayed."""
    good = msgspec.json.encode(line(0.1, ADMITTED, asked=demand(), priority="normal"))
    replay = Replay()
    replay.run([text, good, good.replace(b'"version":1', b'"version":2')], Replayer(Settings()))
    assert (replay.decisions, replay.unreadable) == (1, 2)


@pytest.mark.parametrize(
    ("content", "fault"), [(None, "cannot be read"), (b"{}\n", "no decision of this version of the log")]
)
def test_a_log_without_decisions_is_a_fault(
    content: bytes | None, fault: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Nothing to say is not the same as nothing that differs."""
    log = tmp_path / "log"
    if content is not None:
        log.write_bytes(content)
    with pytest.raises(SystemExit) as ended:
        main(["replay", str(log)])
    assert ended.value.code == 2
    assert fault in capsys.readouterr().err
