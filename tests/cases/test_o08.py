"""O-08: TGI has no KV gauge. The arithmetic: usage from reserved tokens over the budget, and what follows from it."""

from kvguard.admission.blocks import PoolLayout
from kvguard.admission.capacity import CapacityPolicy
from kvguard.admission.decision import AdmissionPolicy, Admit, Decision, Reject, decide
from kvguard.admission.footprint import Demand
from kvguard.admission.lengths import LengthPolicy, OutputLengths
from kvguard.admission.occupancy import Occupancy, OccupancyPolicy
from kvguard.admission.policy import DegradePolicy
from kvguard.admission.reasons import RejectReason
from kvguard.admission.tiers import Tier, TierPolicy
from kvguard.admission.usage import EngineUsage, UsageSample
from kvguard.engines.tgi_blocks import TgiSettings, reserved_tokens, usage_ratio

BATCH_TOKENS = 1200
BUDGET_TOKENS = 1600


def decision_on(budget_tokens: int | None, asked: Demand) -> Decision:
    """What becomes of a request while a TGI server reports 1200 tokens in its batch; its blocks are single tokens."""
    known = CapacityPolicy(blocks=budget_tokens, block_size=1, layout_of=PoolLayout.plain)
    occupancy = Occupancy(OccupancyPolicy(capacity=known), OutputLengths(LengthPolicy()))
    usage = EngineUsage(engine="0", used_ratio=usage_ratio(BATCH_TOKENS, budget_tokens))
    occupancy.observe(UsageSample(engines=(usage,)), asked_at=0.0)
    return decide(asked, Tier.NORMAL, occupancy, AdmissionPolicy(tiers=TierPolicy(), degrade=DegradePolicy()), 0.0)


def test_a_known_budget_gives_a_usage_and_a_trimmed_answer() -> None:
    """1200 of 1600 tokens are 0.75; a request for 120 new tokens gets 64, and reserves its prompt and 64 - 1 more."""
    assert usage_ratio(BATCH_TOKENS, BUDGET_TOKENS) == 0.75
    asked = Demand(prompts=(50,), output_cap=120, asked_cap=120, expected_output=120)
    decision = decision_on(BUDGET_TOKENS, asked)
    assert isinstance(decision, Admit)
    assert decision.ratios is not None
    assert (decision.ratios.observed, decision.tier) == (0.75, Tier.TRIM)
    assert decision.demand.output_cap == 64
    assert reserved_tokens(50, 64, TgiSettings()) == 113


def test_an_unknown_budget_is_not_an_empty_cache() -> None:
    """Without budget and override there is no usage at all, and nothing is admitted as if there were none."""
    assert usage_ratio(BATCH_TOKENS, None) is None
    asked = Demand(prompts=(50,), output_cap=120, asked_cap=120, expected_output=120)
    decision = decision_on(None, asked)
    assert isinstance(decision, Reject)
    assert decision.reason is RejectReason.NO_METRICS
