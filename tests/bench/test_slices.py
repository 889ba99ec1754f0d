"""What a visit comes to: good, full-length, refused and lost answers told apart."""

from pathlib import Path

import pytest

from bench.overload.client import Outcome
from bench.overload.slices import Visit, append, in_order, read, spread
from bench.overload.workload import Arrival
from tests.bench.build import visited


def answered(first_token: float = 0.1, *, tokens: int = 100, cut: bool = False) -> Outcome:
    return Outcome(status=200, first_token=first_token, ended=first_token + 1.0, tokens=tokens, complete=True, cut=cut)


def arrival_at(at: float) -> Arrival:
    return Arrival(number=0, at=at, prompt="", prompt_tokens=1, cap=512, length=100)


def test_outcomes_are_counted_apart() -> None:
    """Shortened answers are good ones; refusals of a gate, of kvguard and of vLLM are alike; a failure is neither."""
    outcomes = [
        answered(),
        answered(1.0),
        answered(tokens=40, cut=True),
        answered(2.5),
        Outcome(status=429),
        Outcome(status=503),
        Outcome(status=200, timed_out=True),
        Outcome(status=500),
    ]
    visit = Visit(round=0, shape="chat", arm="kvguard", load=4.0, capacity=1.0, seconds=2.0)
    schedule = [arrival_at(1.0) for _ in outcomes]
    seen = visit.came_to(schedule, outcomes, lead_seconds=1.0, preemptions=3.0)
    assert (seen.offered, seen.good, seen.whole_good, seen.shortened, seen.prompt_good) == (8, 3, 2, 1, 2)
    assert (seen.good_tokens, seen.whole_good_tokens) == (240, 200)
    assert (seen.refused, seen.sent, seen.timed_out, seen.failed) == (2, 6, 1, 1)
    assert seen.first_tokens == [0.1, 0.1, 1.0, 2.5]
    assert seen.goodput == pytest.approx(1.5)
    assert seen.token_goodput == pytest.approx(1.2)


def test_what_fills_the_engine_before_the_slice_is_not_counted() -> None:
    """It was easily served, by an engine that was empty; only preemptions cannot be told apart."""
    visit = Visit(round=0, shape="chat", arm="kvguard", load=4.0, capacity=1.0, seconds=2.0)
    schedule = [arrival_at(0.0), arrival_at(0.99), arrival_at(1.0), arrival_at(2.9)]
    outcomes = [answered(), Outcome(status=429), answered(), Outcome(status=429)]
    seen = visit.came_to(schedule, outcomes, lead_seconds=1.0, preemptions=1.0)
    assert (seen.offered, seen.wanted_tokens, seen.good, seen.refused, seen.sent) == (2, 200, 1, 1, 1)
    assert (seen.preemptions, seen.sent_in_all) == (1.0, 2)


def test_a_slice_in_which_nothing_came_has_no_goodput() -> None:
    """A short slice of a slow engine may see nobody."""
    empty = visited("vllm", good=0, offered=0, wanted_tokens=0)
    assert (empty.goodput, empty.token_goodput, empty.sent, empty.shortened) == (0.0, 0.0, 0, 0)


def test_slices_are_read_as_they_were_written(tmp_path: Path) -> None:
    """One line each; where nothing was written there are none."""
    file = tmp_path / "overload.jsonl"
    assert read(file) == []
    slices = [visited("vllm", native_limit=12), visited("kvguard", number=1)]
    for one in slices:
        append(file, one)
    assert read(file) == slices


@pytest.mark.parametrize(
    ("values", "text"),
    [([], "-"), ([1.0], "1.00"), ([3.0, 1.0, 2.0], "2.00 (1.00 to 3.00)"), ([1.0, 2.0], "1.50 (1.00 to 2.00)")],
)
def test_a_spread_shows_the_median_and_both_ends(values: list[float], text: str) -> None:
    """One value has no spread."""
    assert spread(values) == text


def test_arms_come_in_the_order_of_the_bench_and_variants_last() -> None:
    """Whatever order they were visited in."""
    assert in_order([visited("wait"), visited("kvguard"), visited("vllm")]) == ["vllm", "kvguard", "wait"]


def test_the_time_to_the_first_token_is_unknown_where_nobody_got_one() -> None:
    """Not 0."""
    assert visited("vllm", first_tokens=[]).first_token(0.5) is None
    assert visited("vllm").first_token(0.99) == 0.3
    assert "goodput" in visited("vllm").line()
