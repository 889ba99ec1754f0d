"""Which moment of a recording the first picture shows."""

import pytest

from grafana.picture import Period
from grafana.pictures import worst_moment
from tests.monitoring.prometheus import Prometheus, Sample


class Recorded(Prometheus):
    """One that answers with these tiers, a second apart."""

    def __init__(self, *tiers: float) -> None:
        super().__init__("http://nowhere.invalid")
        object.__setattr__(self, "tiers", tiers)

    def query_range(self, expression: str, **_: float | None) -> list[Sample]:
        assert expression == "max(kvguard_tier)"
        return [Sample({}, tuple((float(at), tier) for at, tier in enumerate(self.tiers)))]


@pytest.mark.parametrize(
    ("tiers", "moment"),
    [((0, 3, 1, 3, 2, 0), 3), ((0, 1, 2, 0), 2), ((0, 0), 1)],
)
def test_the_last_moment_of_the_highest_tier_is_the_worst(tiers: tuple[float, ...], moment: float) -> None:
    """Whatever was the highest; a recording in which nothing happened is shown to its end."""
    assert worst_moment(Recorded(*tiers), Period(start=0, end=len(tiers))) == moment
