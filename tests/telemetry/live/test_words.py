"""The first lines that somebody reads at three in the morning."""

from typing import Any

import msgspec
import pytest

from kvguard.admission.reasons import RejectReason
from kvguard.admission.tiers import Tier
from kvguard.telemetry.events import DecisionEvent, Mode, Outcome
from kvguard.telemetry.live.view import Headline, Server, Traffic, Usage
from kvguard.telemetry.live.words import decision_words, headline

THRESHOLDS = (0.7, 0.85, 0.95)
QUIET = Traffic(
    seconds=60,
    outcomes={"admitted": 0, "degraded": 0, "rejected": 0, "failed": 0},
    reasons={},
    tenants={},
    classes={},
)


def server(name: str = "b0", **fields: Any) -> Server:
    usual = {"tier": 0, "shadow": False, "standing": "in", "telemetry": "fresh", "condition": "working"}
    usage = Usage(observed=0.5, projected=0.5, reserved=0.9, peak=0.8)
    return Server(**{"name": name, "requests": 3, "sequences": 3, "usage": usage, **usual, **fields})


def said(*servers: Server, traffic: Traffic = QUIET, waiting: int = 0, phase: str = "serving") -> Headline:
    return headline(servers, traffic, THRESHOLDS, waiting=waiting, phase=phase)


@pytest.mark.parametrize(
    ("servers", "level", "title"),
    [
        ([server()], "calm", "Calm: requests pass unchanged"),
        ([server(tier=1)], "busy", "Busy: the server is at TRIM"),
        ([server(tier=2), server("b1")], "busy", "Nearly full: 1 of 2 servers is at RESTRICT"),
        ([server(tier=3)], "overload", "Overload: the server is full, new requests are refused"),
        (
            [server(tier=3), server("b1", tier=3)],
            "overload",
            "Overload: all servers are full, new requests are refused",
        ),
        ([server(tier=3, telemetry="unreachable")], "fault", "Fault: b0 cannot be reached"),
        ([server(telemetry="stale"), server("b1")], "fault", "Fault: b0 has a stale gauge"),
        (
            [server(condition="stalled", standing="ejected"), server("b1", telemetry="missing"), server("b2")],
            "fault",
            "Fault: b0 makes no progress and failed request after request, and 1 more of 3",
        ),
        ([server(standing="drained")], "calm", "Calm: requests pass unchanged"),
        ([], "fault", "Fault: no server has been found"),
    ],
)
def test_overload_or_fault(servers: list[Server], level: str, title: str) -> None:
    """A fault comes before fullness, whichever tier it led to."""
    head = said(*servers)
    assert (head.level, head.title) == (level, title)


def test_an_end_is_neither() -> None:
    """Whoever shuts kvguard down knows."""
    assert said(server(tier=3), phase="draining").title == "kvguard is shutting down"


@pytest.mark.parametrize(
    ("changes", "waiting", "who"),
    [
        ({}, 0, "No requests in the last 60 s."),
        (
            {"outcomes": {"admitted": 4, "degraded": 0, "rejected": 0, "failed": 0}},
            0,
            "Of 4 requests in the last 60 s all passed unchanged.",
        ),
        (
            {
                "outcomes": {"admitted": 4, "degraded": 2, "rejected": 6, "failed": 1},
                "tenants": {"crawler": 7, "other": 1},
                "classes": {"batch": 8},
            },
            2,
            "Of 12 requests in the last 60 s 6 refused, 2 degraded, 1 failed; most of them of tenant crawler; 2 wait.",
        ),
    ],
)
def test_who_is_affected(changes: dict[str, Any], waiting: int, who: str) -> None:
    """Numbers of the last minute, and who they were where there is more than one to tell apart."""
    assert said(server(), traffic=msgspec.structs.replace(QUIET, **changes), waiting=waiting).who == who


def test_what_comes_next() -> None:
    """The fullest peak, and how soon there would be room."""
    full = Usage(observed=0.9, projected=0.9, reserved=1.2, peak=0.97)
    assert said(server(), server("b1", usage=full, tier=3, half_free_seconds=12.4)).next == (
        "What is admitted reaches 97% at its peak on b1; refusals begin at 95%. If nothing more came, half of it would "
        "be free in 12 s."
    )
    assert said(server()).next == "What is admitted reaches 80% at its peak; refusals begin at 95%."
    assert said(server(usage=None)).next == "Nothing is known of how full it gets."


def test_what_to_turn() -> None:
    """Servers and lengths when it is full, the fault when there is one, and nothing when all is well."""
    assert said(server(tier=3, demand_ratio=2.34)).turn == (
        "Admitted and refused together would fill 2.3 servers of this size (who tries again counts again), there is 1. "
        "Add servers, lower degrade.max_output_tokens, or refuse those first who can wait (classes)."
    )
    assert said(server(tier=3)).turn.startswith("Add servers")
    assert "there are 2" in said(server(tier=3, demand_ratio=2.0), server("b1")).turn
    assert said(server(tier=1)).turn.startswith("Nothing yet")
    assert said(server()).turn == "Nothing."
    assert said(server(telemetry="missing")).turn.startswith("Look at the server first")


def test_what_is_only_reported_is_said_to_be() -> None:
    """Shadow mode changes nothing, and the page says so."""
    assert said(server(tier=3, shadow=True)).doing == (
        "REJECT: new requests are refused. Shadow mode: this is only reported."
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"outcome": Outcome.DEGRADED, "changes": ("max_tokens=9->3", "n=2->1"), "prompt_tokens": 5},
            "5 prompt tokens: degraded: max_tokens=9->3; n=2->1",
        ),
        ({"outcome": Outcome.DEGRADED}, "degraded: nothing left to cut"),
        (
            {"outcome": Outcome.REJECTED, "reason": RejectReason.TOO_LARGE, "mode": Mode.SHADOW},
            "would be refused, because the prompt is larger than the whole cache",
        ),
        (
            {"outcome": Outcome.FAILED, "reason": RejectReason.BACKEND_UNREACHABLE},
            "failed, because the server cannot be reached",
        ),
        ({"outcome": Outcome.REJECTED}, "refused, because of an unknown reason"),
    ],
)
def test_decisions_in_words(fields: dict[str, Any], words: str) -> None:
    """What was done and why."""
    assert decision_words(DecisionEvent(**{"request_id": "r", "route": "/", "tier": Tier.TRIM, **fields})) == words
