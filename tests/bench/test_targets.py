"""Verdicts are computed: met exactly at the bound, missed one step below, and by how much."""

import pytest

from bench.overload.pairs import ANSWERS, TOKENS, WHOLE
from bench.overload.slices import Slice
from bench.overload.targets import (
    COLD_START,
    KEPT,
    OVER_CEILING,
    OVER_RIVAL,
    PREEMPTIONS,
    TIME_OUTS,
    Target,
    Verdict,
    summary,
    verdicts,
)
from tests.bench.build import visited


def a_run(load: float = 4.0) -> list[Slice]:
    """kvguard as good as the ceiling, half its answers cut short, twice the best rival."""
    return [
        visited("vllm", load=load, good=1),
        visited("budget-gate", load=load, good=10),
        visited("clairvoyant", load=load, good=20),
        visited("kvguard", load=1.0, good=20),
        visited("kvguard", load=load, good=20, whole_good=10, good_tokens=1500, offered=140, refused=40),
        visited("kvguard-cold", load=load, good=9),
    ]


def by_target(slices: list[Slice], load: float = 4.0) -> dict[Target, Verdict]:
    return {v.target: v for v in verdicts(slices) if v.load == load}


def test_every_target_is_judged() -> None:
    """Against the best rival by the same measure, and with shortened answers apart."""
    found = by_target(a_run())
    assert {target: v.values for target, v in found.items()} == {
        KEPT: [1.0],
        OVER_RIVAL[ANSWERS]: [2.0],
        OVER_RIVAL[WHOLE]: [1.0],
        OVER_RIVAL[TOKENS]: [1.5],
        OVER_CEILING[ANSWERS]: [1.0],
        OVER_CEILING[TOKENS]: [0.75],
        PREEMPTIONS: [0.0],
        TIME_OUTS: [0.0],
        COLD_START: [0.9],
    }
    assert {v.against for v in found.values()} == {None, "budget-gate"}
    assert [target for target, v in found.items() if not v.met] == [
        OVER_RIVAL[WHOLE],
        OVER_CEILING[TOKENS],
        COLD_START,
    ]


def test_targets_are_for_overload_and_for_the_highest_load_where_there_is_none() -> None:
    """From four times the capacity on; a quick run still gets its verdicts."""
    slices = [visited("kvguard", load=load) for load in (0.5, 1.0, 4.0, 8.0)]
    assert {v.load for v in verdicts(slices)} == {4.0, 8.0}
    assert {v.load for v in verdicts(slices[:2])} == {1.0}


def test_one_load_alone_says_nothing_of_what_is_kept() -> None:
    """It would be its own best."""
    assert KEPT not in by_target([visited("kvguard")])


def test_a_cold_start_is_judged_under_every_load() -> None:
    """Never below the budget gate."""
    arms = ("budget-gate", "kvguard-cold", "kvguard-unlearned")
    found = verdicts([visited(arm, load=load) for arm in arms for load in (0.5, 4.0)])
    assert {v.target for v in found} == {COLD_START}
    assert [(v.load, v.arm, v.met) for v in found] == [(load, arm, True) for load in (0.5, 4.0) for arm in arms[1:]]


def test_variants_are_held_to_the_same() -> None:
    """Another kvguard is no rival of kvguard."""
    slices = [*a_run(), visited("wait", load=4.0, good=30)]
    found = [v for v in verdicts(slices) if v.target == OVER_RIVAL[ANSWERS]]
    assert [(v.arm, v.values, v.against) for v in found] == [
        ("kvguard", [2.0], "budget-gate"),
        ("wait", [3.0], "budget-gate"),
    ]


def test_rare_events_are_shares_of_all_that_was_sent_in_all_rounds() -> None:
    """Refused requests do not make preemptions look rare."""
    slices = [
        visited("kvguard", number=0, offered=300, refused=200, preemptions=2.0),
        visited("kvguard", number=1, offered=300, refused=200, timed_out=1),
    ]
    found = by_target(slices)
    assert (found[PREEMPTIONS].values, found[PREEMPTIONS].met) == ([0.01], False)
    assert (found[TIME_OUTS].values, found[TIME_OUTS].met) == ([0.005], True)


@pytest.mark.parametrize(
    ("target", "values", "met", "text"),
    [
        (KEPT, [0.95], True, "0.95: met by 0.00"),
        (KEPT, [0.94], False, "0.94: missed by 0.01"),
        (KEPT, [0.5, 1.0, 1.2], True, "1.00 (0.50 to 1.20): met by 0.05"),
        (OVER_RIVAL[ANSWERS], [1.0], False, "1.00 `vllm`: missed by 0.20"),
        (PREEMPTIONS, [0.01], False, "1.0%: missed by 0.0%"),
        (PREEMPTIONS, [0.004], True, "0.4%: met by 0.6%"),
    ],
)
def test_a_verdict_says_by_how_much(target: Target, values: list[float], met: bool, text: str) -> None:
    """The median over rounds decides."""
    against = "vllm" if target in OVER_RIVAL.values() else None
    verdict = Verdict(target=target, arm="kvguard", shape="chat", load=4.0, values=values, against=against)
    assert (verdict.met, verdict.text) == (met, text)


def test_the_summary_names_the_worst_of_each_target() -> None:
    """How often it is met, and where it is furthest from its bound."""
    lines = summary(verdicts([*a_run(), *a_run(8.0)[:-1], visited("kvguard-cold", load=8.0, good=5)])).splitlines()
    assert lines[-1] == (
        "- `kvguard-cold`, answers over the budget gate's: at least 1: met in 0 of 2; "
        "worst in chat at 8x, 0.50: missed by 0.50."
    )
