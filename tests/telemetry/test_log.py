"""The log: one JSON object a line, no content, no nagging."""

import io
import json
import logging

import pytest

from kvguard.admission.condition import EngineState
from kvguard.admission.occupancy import Ratios
from kvguard.admission.reachability import Basis, RuleFit, ThresholdState, ThresholdVerdict
from kvguard.admission.reasons import RejectReason
from kvguard.admission.tiers import Tier
from kvguard.pool.backend import ConditionChange, TierChange
from kvguard.telemetry.events import DecisionEvent, End, EndEvent, Mode, Outcome
from kvguard.telemetry.log import DecisionLog, configure_logging, rounded


def logged(level: str = "info", form: str = "json", **how: float) -> tuple[DecisionLog, io.StringIO]:
    stream = io.StringIO()
    return DecisionLog(configure_logging(level, stream, form), **how), stream


def lines(stream: io.StringIO) -> list[dict]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def decision(outcome: Outcome, tier: Tier, **fields: object) -> DecisionEvent:
    return DecisionEvent(request_id="r", route="/v1/completions", outcome=outcome, tier=tier, **fields)


def test_decisions_above_tier_0_are_one_warning_each() -> None:
    """A routine admission is silent at info, a refusal is a line with everything an operator asks about."""
    log, stream = logged()
    log.decision(decision(Outcome.ADMITTED, Tier.NORMAL))
    ratios = Ratios(observed=None, projected=0.95123, reserved=1.5, peak=1.2)
    log.decision(
        decision(
            Outcome.REJECTED,
            Tier.REJECT,
            reason=RejectReason.SATURATED,
            backend="b",
            ratios=ratios,
            prompt_tokens=7,
            blocks=3,
            retry_after_seconds=2.5,
        )
    )
    (line,) = lines(stream)
    assert line.pop("ts")
    assert line == {
        "level": "warning",
        "event": "decision",
        "request_id": "r",
        "route": "/v1/completions",
        "outcome": "rejected",
        "tier": 3,
        "reason": "saturated",
        "backend": "b",
        "usage": {"projected": 0.951, "reserved": 1.5, "peak": 1.2},
        "prompt_tokens": 7,
        "predicted_blocks": 3,
        "retry_after_seconds": 2.5,
    }


def test_debug_shows_routine_decisions_and_ends_too() -> None:
    """At debug every request leaves two lines."""
    log, stream = logged("debug")
    log.decision(decision(Outcome.ADMITTED, Tier.NORMAL))
    log.end(EndEvent(request_id="r", route="x", backend="b", end=End.COMPLETE, seconds=1.23456, status=200))
    assert [(line["event"], line["level"]) for line in lines(stream)] == [("decision", "debug"), ("end", "debug")]
    assert lines(stream)[1]["seconds"] == 1.235


def test_a_backend_that_fails_in_the_middle_is_a_warning() -> None:
    """It names the request and what broke."""
    log, stream = logged()
    end = EndEvent(
        request_id="r", route="x", backend="b", end=End.UPSTREAM_ERROR, seconds=1, detail="ClientPayloadError"
    )
    log.end(end)
    (line,) = lines(stream)
    assert (line["level"], line["request_id"], line["detail"]) == ("warning", "r", "ClientPayloadError")


@pytest.mark.parametrize(
    ("before", "after", "level"), [(Tier.NORMAL, Tier.TRIM, "warning"), (Tier.REJECT, Tier.TRIM, "info")]
)
def test_a_tier_change_warns_on_the_way_up(before: Tier, after: Tier, level: str) -> None:
    """Going down is information."""
    log, stream = logged()
    log.tier_change(TierChange(backend="b", before=before, after=after))
    (line,) = lines(stream)
    assert (line["level"], line["before"], line["after"]) == (level, before.name.lower(), after.name.lower())


def test_a_lasting_condition_is_said_once_a_minute_and_its_end_once() -> None:
    """Each state of each backend has a rate limit of its own; recovery is said only after a warning."""
    log, stream = logged()
    log.telemetry_recovered("b")
    for now in (0.0, 1.0, 59.9):
        log.telemetry("b", "stale", detail="ReadTimeout", now=now)
    log.telemetry("b", "unreachable", detail="ConnectError", now=2.0)
    log.telemetry("c", "stale", detail="ReadTimeout", now=3.0)
    log.telemetry("b", "stale", detail="ReadTimeout", now=60.0)
    log.telemetry_recovered("b")
    log.telemetry_recovered("b")
    log.telemetry("b", "stale", detail="ReadTimeout", now=61.0)
    said = [(line["backend"], line["state"]) for line in lines(stream)]
    assert said == [
        ("b", "stale"),
        ("b", "unreachable"),
        ("c", "stale"),
        ("b", "stale"),
        ("b", "fresh"),
        ("b", "stale"),
    ]


def test_a_name_that_cannot_be_looked_up_is_said_once_a_minute_with_what_stays_in_use() -> None:
    """Each reason has a rate limit of its own; the next look-up that works is said, and so is every change."""
    log, stream = logged()
    log.discovered("pool", added=["a"], removed=[], known=1)
    log.discovered("pool", added=[], removed=[], known=1)
    for now in (0.0, 59.9, 60.0):
        log.discovery_failed("pool", why="no answer", known=1, now=now)
    log.discovery_failed("other", why="no answer", known=0, now=61.0)
    log.discovery_failed("pool", why="gone", known=1, now=61.0)
    log.discovered("pool", added=[], removed=[], known=1)
    log.discovered("pool", added=[], removed=["a"], known=0)
    said = [{name: value for name, value in line.items() if name not in ("ts", "event")} for line in lines(stream)]
    kept = {"level": "warning", "backend": "pool", "addresses": 1, "why": "no answer; the 1 known so far stay"}
    assert {line["event"] for line in lines(stream)} == {"discovery"}
    assert said == [
        {"level": "info", "backend": "pool", "addresses": 1, "added": ["a"]},
        kept,
        kept,
        {"level": "warning", "backend": "other", "addresses": 0, "why": "no answer; none is known yet"},
        {**kept, "why": "gone; the 1 known so far stay"},
        {"level": "info", "backend": "pool", "addresses": 1},
        {"level": "info", "backend": "pool", "addresses": 0, "removed": ["a"]},
    ]


def test_a_condition_is_said_when_it_comes_and_goes_but_not_again_and_again() -> None:
    """A warning and its end, each once a minute and backend; from idle to working and back there is nothing to say."""
    log, stream = logged()
    idle, working, false_gauge = EngineState.IDLE, EngineState.WORKING, EngineState.CONTRADICTION
    for now, backend, before, after in [
        (0.0, "b", EngineState.UNKNOWN, idle),
        (1.0, "b", idle, working),
        (2.0, "b", working, false_gauge),
        (3.0, "b", false_gauge, working),
        (4.0, "b", working, false_gauge),
        (5.0, "b", false_gauge, working),
        (6.0, "c", working, false_gauge),
        (61.9, "b", working, false_gauge),
        (62.0, "b", working, false_gauge),
    ]:
        log.condition_change(ConditionChange(backend=backend, before=before, after=after), now=now)
    said = [(line["level"], line["backend"], line["before"], line["after"]) for line in lines(stream)]
    assert said == [
        ("warning", "b", "working", "contradiction"),
        ("info", "b", "contradiction", "working"),
        ("warning", "c", "working", "contradiction"),
        ("warning", "b", "working", "contradiction"),
    ]


def test_a_fault_of_kvguards_own_says_where_but_not_what() -> None:
    """Type and place are there; the message, which may quote a request, is not."""
    log, stream = logged()
    try:
        raise KeyError("secret prompt")
    except KeyError as error:
        log.fault("r", error)
    (line,) = lines(stream)
    assert (line["error"], line["request_id"]) == ("KeyError", "r")
    assert line["at"][-1].startswith("test_log.py:")
    assert "secret" not in stream.getvalue()


def test_a_traceback_of_a_library_is_reduced_to_its_type() -> None:
    """What uvicorn or asyncio log with a traceback keeps neither message nor frames."""
    _, stream = logged()
    try:
        raise ValueError("secret prompt")
    except ValueError:
        logging.getLogger("uvicorn.error").exception("Exception in ASGI application")
    (line,) = lines(stream)
    assert line["error"] == "ValueError"
    assert "secret" not in stream.getvalue()


def test_unknown_ratios_are_left_out() -> None:
    """Unknown is not 0."""
    assert rounded(None) is None
    assert rounded(Ratios(observed=None, projected=0.5, reserved=0.5, peak=0.5)) == {
        "projected": 0.5,
        "reserved": 0.5,
        "peak": 0.5,
    }


def verdict(tier: Tier, state: ThresholdState, basis: Basis | None) -> ThresholdVerdict:
    return ThresholdVerdict(tier=tier, state=state, basis=basis, why="because")


@pytest.mark.parametrize(
    ("state", "basis", "level"),
    [
        (ThresholdState.UNREACHABLE, Basis.CONTEXT, "warning"),
        (ThresholdState.UNREACHABLE, Basis.SEEN, "warning"),
        (ThresholdState.SINGLE_REQUEST, Basis.SEEN, "warning"),
        (ThresholdState.SINGLE_REQUEST, Basis.CONTEXT, "info"),
        (ThresholdState.REACHABLE, Basis.SEEN, "info"),
        (ThresholdState.UNKNOWN, None, "info"),
    ],
)
def test_thresholds_out_of_reach_are_a_warning(state: ThresholdState, basis: Basis | None, level: str) -> None:
    """One line for all that are news, with the state and why."""
    log, stream = logged()
    log.thresholds("b", [verdict(Tier.TRIM, ThresholdState.REACHABLE, Basis.SEEN), verdict(Tier.REJECT, state, basis)])
    (line,) = lines(stream)
    assert (line["event"], line["level"], line["backend"]) == ("thresholds", level, "b")
    assert (line["trim"], line["reject"]) == ("reachable: because", f"{state.value}: because")


@pytest.mark.parametrize(
    ("geometry", "remedy"), [(False, "set backends[].geometry"), (True, "the geometry does not match the engine")]
)
def test_a_block_rule_that_is_off_says_what_to_do(geometry: bool, remedy: str) -> None:
    """Both numbers and the remedy."""
    log, stream = logged()
    log.misfit("b", RuleFit(context_tokens=160, engine_blocks=5.0, predicted_blocks=10), geometry=geometry)
    (line,) = lines(stream)
    assert (line["event"], line["level"], line["ratio"]) == ("block_rule", "warning", 2.0)
    assert line["why"] == (
        "the engine holds 5.0 blocks for a request of its full context of 160 tokens, the block rule says 10: " + remedy
    )


def test_a_decision_says_who_asked_and_whether_it_was_carried_out() -> None:
    """Tenant and class where they are known; the mode only in shadow."""
    log, stream = logged()
    who = {"tenant": "lab", "priority": "low"}
    log.decision(decision(Outcome.DEGRADED, Tier.TRIM, **who))
    log.decision(decision(Outcome.DEGRADED, Tier.TRIM, **who, mode=Mode.SHADOW))
    assert [(line["tenant"], line["priority"], line.get("mode")) for line in lines(stream)] == [
        ("lab", "low", None),
        ("lab", "low", "shadow"),
    ]


def test_reloads_are_information_unless_something_takes_a_restart() -> None:
    """A warning names it, an error every fault."""
    log, stream = logged()
    log.reloaded("abc", changed=True, kept=())
    log.reloaded("abc", changed=False, kept=("listen.port",))
    log.reload_failed(("tiers.trim_at: too high", "nope: no such setting"))
    said = [{name: value for name, value in line.items() if name != "ts"} for line in lines(stream)]
    why = "these keep their value until a restart"
    assert said == [
        {"level": "info", "event": "reload", "hash": "abc", "changed": True},
        {"level": "warning", "event": "reload", "hash": "abc", "changed": False, "kept": ["listen.port"], "why": why},
        {"level": "error", "event": "reload_failed", "faults": ["tiers.trim_at: too high", "nope: no such setting"]},
    ]


def test_a_state_file_that_is_ignored_is_a_warning() -> None:
    """With its path and why."""
    log, stream = logged()
    log.state("ignored", "/var/lengths.json", "No such file or directory")
    (line,) = lines(stream)
    assert (line["event"], line["level"], line["state"]) == ("state_file", "warning", "ignored")
    assert (line["path"], line["why"]) == ("/var/lengths.json", "No such file or directory")


class Terminal(io.StringIO):
    """A stream that a person looks at."""

    def isatty(self) -> bool:
        return True


REFUSAL = {"reason": RejectReason.SATURATED, "backend": "b", "trace_id": "0af7651916cd43dd8448eb211c80319c"}


def test_the_console_is_for_people() -> None:
    """Time, level, event, and only what is known; colours on a terminal alone."""
    log, stream = logged(form="console")
    log.decision(decision(Outcome.REJECTED, Tier.REJECT, **REFUSAL))
    at, rest = stream.getvalue().rstrip("\n").split(" ", 1)
    assert len(at) == len("12:34:56.789")
    assert rest == (
        "WARNING decision request_id=r trace_id=0af7651916cd43dd8448eb211c80319c route=/v1/completions outcome="
        "rejected tier=3 reason=saturated backend=b prompt_tokens=0 predicted_blocks=0"
    )
    terminal = Terminal()
    log = DecisionLog(configure_logging("info", terminal, "console"))
    log.decision(decision(Outcome.REJECTED, Tier.REJECT, **REFUSAL))
    assert terminal.getvalue().startswith("\x1b[33m")
    assert "WARNING decision\x1b[0m request_id=r" in terminal.getvalue()


@pytest.mark.parametrize("form", ["json", "console"])
@pytest.mark.parametrize(
    "nasty",
    [
        "a\nlevel=error event=fake",
        "a\r\n{}",
        "\x1b[31mred\x1b[0m",
        "\x9b31m",
        "\x7f\x08\x00",
        "\u202egnp.exe",
        "\u2028next",
        'quote" back\\slash',
        "\ud800",
        "a=b c=d",
    ],
)
def test_nothing_that_comes_from_outside_breaks_a_line_or_reaches_a_terminal(form: str, nasty: str) -> None:
    """One line of printable ASCII each, whatever names, reasons and faults are made of; JSON gives back what it was."""
    log, stream = logged(form=form)
    log.decision(decision(Outcome.REJECTED, Tier.REJECT, backend=nasty, tenant=nasty, changes=(nasty,)))
    log.end(EndEvent(request_id="r", route="/", backend=nasty, end=End.UPSTREAM_ERROR, seconds=1.0, detail=nasty))
    log.reload_failed([nasty])
    logging.getLogger("uvicorn.error").error(nasty)
    written = stream.getvalue()
    assert written.count("\n") == len(written.splitlines()) == 4
    assert all(" " <= character <= "~" for character in written.replace("\n", ""))
    if form == "json":
        assert lines(stream)[0]["backend"] == nasty


def test_a_sample_of_what_changed_nothing() -> None:
    """By the request id: about the share that was asked for, the same ones each time, and no more than that."""
    told = []
    for _ in range(2):
        log, stream = logged(sample=0.25)
        for number in range(1000):
            log.decision(
                DecisionEvent(request_id=f"id-{number}", route="/", outcome=Outcome.ADMITTED, tier=Tier.NORMAL)
            )
        told.append([line["request_id"] for line in lines(stream)])
    assert told[0] == told[1]
    assert 200 < len(told[0]) < 300
    assert {line["level"] for line in lines(stream)} == {"info"}
