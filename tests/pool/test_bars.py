"""What a backend has lately refused."""

from kvguard.admission.decision import AdmissionPolicy, Reject
from kvguard.admission.policy import DegradePolicy
from kvguard.admission.reasons import RejectReason
from kvguard.admission.tiers import Tier, TierPolicy
from kvguard.pool.bars import Bars, Least

POLICY = AdmissionPolicy(tiers=TierPolicy(), degrade=DegradePolicy())
FULL = Reject(tier=Tier.REJECT, reason=RejectReason.SATURATED, ratios=None, needed_blocks=7.0)


def test_whoever_asks_for_as_much_is_refused_as_well() -> None:
    """Not one that asks for less in any respect, nor one of another kind."""
    bars = Bars()
    bars.put("chat", POLICY, Least(100, 16), FULL, (1, 1))
    found = {least: bars.find("chat", least, (1, 1)) for least in (Least(100, 16), Least(500, 64))}
    assert set(found.values()) == {FULL}
    assert bars.find("chat", Least(99, 16), (1, 1)) is bars.find("chat", Least(100, 15), (1, 1)) is None
    assert bars.find("other", Least(100, 16), (1, 1)) is None


def test_nothing_holds_once_there_may_be_room() -> None:
    """An answer that ended or a new gauge; what is refused after that counts from then on."""
    bars = Bars()
    bars.put("chat", POLICY, Least(1, 1), FULL, (1, 1))
    bars.put("other", POLICY, Least(1, 1), FULL, (1, 1))
    assert bars.find("chat", Least(1, 1), (2, 1)) is bars.find("chat", Least(1, 1), (1, 2)) is None
    bars.put("chat", POLICY, Least(1, 1), FULL, (2, 1))
    assert bars.find("chat", Least(1, 1), (2, 1)) is FULL
    assert bars.find("other", Least(1, 1), (2, 1)) is None
    bars.clear()
    assert bars.find("chat", Least(1, 1), (2, 1)) is None


def test_what_is_remembered_is_bounded() -> None:
    """Of very many kinds none is kept for ever."""
    bars = Bars()
    for kind in range(1000):
        bars.put(str(kind), POLICY, Least(), FULL, (0, 0))
    kept = sum(bars.find(str(kind), Least(), (0, 0)) is not None for kind in range(1000))
    assert 0 < kept <= 256
