"""What the gauge shows of blocks that the ledger counts more than once."""

import pytest

from kvguard.admission.sharing import SharedBlocks


def seen(*scrapes: tuple[int, float], preempted: int | None = None) -> SharedBlocks:
    """After scrapes of so many blocks by the ledger and by the gauge; the engine preempted before one of them."""
    shared = SharedBlocks()
    for number, (generating, observed) in enumerate(scrapes):
        shared.observe(generating=generating, observed=observed, freed=0, preempted=number == preempted)
    return shared


@pytest.mark.parametrize(
    ("scrapes", "blocks"),
    [
        ([], 0.0),
        ([(50, 30.0)] * 2, 0.0),
        ([(50, 30.0)] * 3, 20.0),
        # The least of the last three counts.
        ([(50, 30.0), (50, 35.0), (50, 20.0)], 15.0),
        ([(50, 45.0), (50, 30.0), (50, 30.0), (50, 30.0)], 20.0),
        # A gauge that shows as much or more shares nothing.
        ([(50, 30.0), (50, 30.0), (50, 50.0)], 0.0),
        ([(50, 30.0), (50, 30.0), (50, 60.0)], 0.0),
        ([(50, 30.0), (50, 30.0), (0, 0.0)], 0.0),
    ],
)
def test_only_what_three_scrapes_show_is_shared(scrapes: list[tuple[int, float]], blocks: float) -> None:
    """One late gauge is no sharing."""
    assert seen(*scrapes).blocks(0) == blocks


@pytest.mark.parametrize(("preempted", "blocks"), [(0, 20.0), (1, 20.0), (2, 0.0), (3, 0.0), (4, 0.0), (5, 0.0)])
def test_a_preemption_makes_the_gauge_say_nothing(preempted: int, blocks: float) -> None:
    """What looks shared may have been taken away; three quiet scrapes later it is believed again."""
    assert seen(*[(50, 30.0)] * 5, preempted=preempted).blocks(0) == (20.0 if preempted == 5 else blocks)


@pytest.mark.parametrize(("freed", "blocks"), [(0, 20.0), (25, 10.0), (50, 0.0), (99, 0.0)])
def test_who_has_ended_shares_no_longer(freed: int, blocks: float) -> None:
    """Of fifty blocks that shared twenty, what is left shares its part."""
    assert seen(*[(50, 30.0)] * 3).blocks(freed) == blocks


@pytest.mark.parametrize(
    ("generating", "observed", "error"),
    [(50, 40.0, 0.25), (40, 40.0, 0.0), (30, 40.0, -0.25), (0, 40.0, None), (5, 0.0, None)],
)
def test_the_error_is_a_share_of_the_gauge(generating: int, observed: float, error: float | None) -> None:
    """Above 0 the ledger counts too much, below 0 something else is in the cache; unknown where nothing generates."""
    assert seen((generating, observed)).error_ratio == error
