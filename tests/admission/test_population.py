"""Whose answers count for whom, and in which order they are asked."""

import pytest

from kvguard.admission.population import ANYBODY, Key, Population

FULL = Population(model="m", route="r", caller="c")


@pytest.mark.parametrize(
    ("population", "asked"),
    [
        (FULL, [("m", "r", "c", False), ("m", "r", "", False), ("m", "", "", False), ("", "", "", False)]),
        (
            Population(model="m", route="r", caller="c", stops=True),
            [
                ("m", "r", "c", True),
                ("m", "r", "", True),
                ("m", "", "", True),
                ("m", "r", "c", False),
                ("m", "r", "", False),
                ("m", "", "", False),
                ("", "", "", True),
                ("", "", "", False),
            ],
        ),
        (ANYBODY, [("", "", "", False)]),
    ],
)
def test_the_order_from_the_most_specific_to_everybody(population: Population, asked: list[Key]) -> None:
    """The caller is dropped first, then the route, the stop sequences and at last the model."""
    assert list(dict.fromkeys(population.asked())) == asked


@pytest.mark.parametrize(
    ("population", "taught"),
    [
        (FULL, [("m", "r", "c", False), ("m", "r", "", False), ("m", "", "", False), ("", "", "", False)]),
        (Population(model="m", stops=True), [("m", "", "", True), ("", "", "", True)]),
        (ANYBODY, [("", "", "", False)]),
        (Population(stops=True), [("", "", "", True)]),
    ],
)
def test_an_answer_teaches_everybody_it_belongs_to_once(population: Population, taught: list[Key]) -> None:
    """What stop sequences cut short counts only with others of that kind."""
    assert list(population.taught()) == taught
