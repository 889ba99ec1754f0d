"""Learned lengths as plain values: what they refuse, and how they fade."""

import pytest

from kvguard.admission.saved import VERSION, SavedHistogram, SavedLengths

GOOD = {
    "model": "m",
    "route": "r",
    "caller": "c",
    "stops": False,
    "cap_class": 10,
    "answers": 3,
    "weights": ((10, 2.0), (20, 6.0)),
}


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "m" * 513},
        {"route": "r" * 513},
        {"caller": "c" * 513},
        {"cap_class": -1},
        {"cap_class": 65},
        {"answers": -1},
        {"weights": ((10, -0.1),)},
        {"weights": ((10, 1.1e12),)},
        {"weights": ((10, float("nan")),)},
    ],
)
def test_what_no_histogram_can_have(fields: dict[str, object]) -> None:
    """Names and numbers out of range are refused, those at the edge are not."""
    with pytest.raises(ValueError, match=r"range|longer"):
        SavedHistogram(**{**GOOD, **fields})
    edge = {"model": "m" * 512, "cap_class": 64, "answers": 0, "weights": ((10, 0.0), (20, 1e12))}
    SavedHistogram(**{**GOOD, **edge})


@pytest.mark.parametrize(
    ("most", "weights"),
    [
        (8.0, [(10, 2.0), (20, 6.0)]),
        (9.0, [(10, 2.0), (20, 6.0)]),
        (4.0, [(10, 1.0), (20, 3.0)]),
        (0.0, [(10, 0.0), (20, 0.0)]),
    ],
)
def test_a_histogram_weighs_no_more_than_it_may(most: float, weights: list[tuple[int, float]]) -> None:
    """Above that all its weights shrink alike; below it they stay."""
    assert list(SavedHistogram(**GOOD).faded(most)) == weights


def test_one_without_weight_stays_so() -> None:
    """Nothing divided by nothing is nothing."""
    assert list(SavedHistogram(**{**GOOD, "weights": ((10, 0.0),)}).faded(4.0)) == [(10, 0.0)]


def test_another_version_is_refused() -> None:
    """Only this form is read; its number says which one was met."""
    assert SavedLengths(backends={}).version == VERSION
    with pytest.raises(ValueError, match="version 2"):
        SavedLengths(version=2, backends={})
