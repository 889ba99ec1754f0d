"""Ratios are taken within a round, and only where both were there."""

import math

import pytest

from bench.overload.pairs import ANSWERS, TOKENS, WHOLE, Pairs, ratio
from tests.bench.build import visited


def test_a_ratio_pairs_slices_of_one_round() -> None:
    """A round that lacks one of the two says nothing."""
    pairs = Pairs(
        [
            visited("kvguard", number=0, good=12),
            visited("vllm", number=0, good=6),
            visited("kvguard", number=1, good=10),
            visited("vllm", number=2, good=1),
            visited("kvguard", number=3, good=8),
            visited("vllm", number=3, good=8),
        ]
    )
    assert pairs.over(ANSWERS, "chat", 4.0, "kvguard", "vllm") == [2.0, 1.0]
    assert pairs.over(ANSWERS, "rag", 4.0, "kvguard", "vllm") == []


def test_measures_tell_short_answers_from_whole_ones() -> None:
    """Twice the answers is no win if they are half as long or were cut short."""
    pairs = Pairs([visited("kvguard", good=20, whole_good=5, good_tokens=1000), visited("vllm", good=10)])
    ratios = [pairs.over(m, "chat", 4.0, "kvguard", "vllm") for m in (ANSWERS, WHOLE, TOKENS)]
    assert ratios == [[2.0], [0.5], [1.0]]


def test_the_best_rival_is_the_best_in_the_median() -> None:
    """One lucky round does not make a rival, and capacity is taken into account."""
    slices = [visited("vllm", number=n, good=good) for n, good in enumerate((5, 6, 30))]
    slices += [visited("budget-gate", number=n, good=8) for n in range(3)]
    slices += [visited("saturation-gate", number=n, good=9, capacity=2.0) for n in range(3)]
    assert Pairs(slices).best(ANSWERS, "chat", 4.0, ("vllm", "budget-gate", "saturation-gate")) == "budget-gate"
    assert Pairs(slices).best(ANSWERS, "chat", 8.0, ("vllm", "budget-gate")) is None


def test_what_is_kept_is_measured_against_the_load_that_is_best_in_the_median() -> None:
    """Not against the best of each round, which chance makes too good."""
    slices = [visited("kvguard", load=1.0, number=n, good=good) for n, good in enumerate((8, 10, 20))]
    slices += [visited("kvguard", load=4.0, number=n, good=9) for n in range(3)]
    assert Pairs(slices).kept("chat", "kvguard", 4.0) == [9 / 8, 9 / 10, 9 / 20]
    assert Pairs(slices).kept("chat", "kvguard", 1.0) == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(("ours", "theirs", "said"), [(3, 2, 1.5), (0, 2, 0.0), (1, 0, math.inf), (0, 0, 1.0)])
def test_a_ratio_to_nothing_is_infinite(ours: float, theirs: float, said: float) -> None:
    """Unless there is nothing on either side."""
    assert ratio(ours, theirs) == said
