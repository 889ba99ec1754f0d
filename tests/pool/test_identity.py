"""One address, one server or several."""

import pytest

from kvguard.pool.identity import Identities


@pytest.mark.parametrize(
    ("seen", "found_at"),
    [
        ((1.0, 1.0, 1.0), None),
        ((1.0, 2.0, 3.0), None),  # restarts
        ((1.0, 2.0, 1.0), 2),
        ((1.0, None, 2.0, None, 1.0, 2.0, 1.0), 4),  # told once
        ((None, None), None),
    ],
)
def test_a_server_that_comes_back_is_one_of_several(seen: tuple[float | None, ...], found_at: int | None) -> None:
    """A restart is another server for good; one that was there before shows that both are."""
    identities = Identities()
    told = [identities.observe(started_at) for started_at in seen]
    assert told == [number == found_at for number in range(len(seen))]
    assert identities.several is (found_at is not None)
