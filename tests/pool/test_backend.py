"""A backend: tiers, endings, and what it learns of lengths."""

import functools
from dataclasses import replace

import pytest

from kvguard.admission.calibration import LengthForecast
from kvguard.admission.condition import Condition, EngineState, Passage, SignalPolicy
from kvguard.admission.footprint import Demand
from kvguard.admission.ledger import ReservationState
from kvguard.admission.lengths import LengthPolicy, LengthSource
from kvguard.admission.occupancy import OccupancyPolicy, Signal
from kvguard.admission.population import Population
from kvguard.admission.reachability import ENOUGH
from kvguard.admission.tiers import Tier, TierPolicy, TierRule
from kvguard.admission.usage import EngineUsage, UsageSample
from kvguard.pool.backend import Backend, ConditionChange, SizingReview, new_backend

ASKED = Demand(prompts=(16,), output_cap=1024, asked_cap=1024, expected_output=1024)


def backend(lengths: list[int] = (), *, demand: Demand = ASKED) -> Backend:
    made = new_backend("b", "http://b", OccupancyPolicy(), LengthPolicy(quantile=0.5, min_answers=3))
    for length in lengths:
        made.learn(demand, length)
    return made


def forecast(made: Backend, produced: int = 0) -> int | None:
    return made.occupancy.lengths.expected(cap=1024, produced=produced)


def test_an_answer_that_ends_by_itself_counts_as_it_was() -> None:
    """Under the full cap and under a lowered one it did not reach."""
    assert forecast(backend([10, 10, 10])) == 10
    trimmed = ASKED.with_cap(64)
    assert forecast(backend([10, 10, 10], demand=trimmed)) == 10


def test_an_answer_cut_by_a_lowered_cap_counts_with_those_that_got_that_far() -> None:
    """Trimming does not teach that answers are short: what is known of longer ones, else the asked cap, stands in."""
    trimmed = ASKED.with_cap(64)
    made = backend([10] * 4 + [300] * 4)
    for _ in range(20):
        made.learn(trimmed, 64)
    assert forecast(made) == pytest.approx(300, rel=0.13)
    assert forecast(backend([64, 64, 64], demand=trimmed)) == pytest.approx(1024, rel=0.13)


def test_an_answer_cut_by_its_own_cap_counts_as_it_was() -> None:
    """The client asked for no more."""
    own = replace(ASKED, output_cap=64, asked_cap=64, expected_output=64)
    made = backend([64, 64, 64], demand=own)
    assert made.occupancy.lengths.expected(cap=64, produced=0) == 64


def test_an_answer_counts_with_its_population() -> None:
    """Another route is known by the model's answers, those with stop sequences by their own."""
    chat = replace(ASKED, population=Population(model="m", route="chat"))
    made = backend([10, 10, 10], demand=chat)
    for _ in range(3):
        made.learn(replace(ASKED, population=Population(model="m", route="chat", stops=True)), 5)
    expected = functools.partial(made.occupancy.lengths.expected, cap=1024, produced=0)
    assert expected(Population(model="m", route="new")) == 10
    assert expected(Population(model="m", route="chat", stops=True)) == 5


def test_an_answer_of_fixed_length_teaches_nothing() -> None:
    """It says how long it was told to be."""
    assert forecast(backend([10, 10, 10], demand=replace(ASKED, fixed_length=True))) is None


def test_what_a_cut_answer_would_have_been_is_not_taken_from_the_engine() -> None:
    """The engine's histogram counts the cut ones too, so only what was seen here may stand in."""
    made = backend()
    page = EngineUsage(engine="0", generation_lengths=((64.0, 0.0), (80.0, 100.0)))
    made.observe(UsageSample(engines=(page,)), asked_at=0.0)
    assert forecast(made) == 76
    for _ in range(3):
        made.learn(ASKED.with_cap(64), 64)
    assert forecast(made) == 1024


def test_a_forecast_is_held_against_the_answer() -> None:
    """Also where the answer teaches nothing; without one nothing is counted."""
    made = backend([10])
    assert not made.calibration.answers
    forecasted = LengthForecast(tokens=8, source=LengthSource.LEARNED)
    for length in (8, 9):
        made.learn(replace(ASKED, fixed_length=True), length, forecasted)
    assert made.calibration.answers == {LengthSource.LEARNED: 2}
    assert made.calibration.exceeded == {LengthSource.LEARNED: 1}


@pytest.mark.parametrize(
    ("models", "name", "base"),
    [
        ({"m", "n", "lora"}, "m", "m"),
        ({"m", "n", "lora"}, "lora", "m"),
        ({"m", "n", "lora"}, "made up", ""),
        ({"m", "n", "lora"}, None, ""),
        # Who names none gets the only one there is.
        ({"m", "lora"}, None, "m"),
        ({"m", "lora"}, "", "m"),
        ({"m", "lora"}, "made up", ""),
        (set(), "m", ""),
        (set(), None, ""),
    ],
)
def test_only_models_the_server_lists_are_known_by_name(models: set[str], name: str | None, base: str) -> None:
    """An adapter is known by its parent; a name of the client's own is nobody's."""
    made = backend()
    made.models, made.parents = frozenset(models), {"lora": "m"} if models else {}
    assert made.base_model(name) == base


def test_the_tier_stays_while_nothing_is_known() -> None:
    """Without a capacity there is no ratio and no change."""
    assert backend().retier(TierPolicy(), 1.0) is None


@pytest.mark.parametrize(
    ("needed", "seconds"),
    [(0.0, 0.0), (8.0, pytest.approx(7.2, abs=0.1)), (32.0, pytest.approx(28.9, abs=0.1)), (33.0, None)],
)
def test_what_was_freed_lately_tells_of_a_little_more(needed: float, seconds: float | None) -> None:
    """Sixteen blocks freed just now say when up to twice as many will be; a minute later they say nothing."""
    made = backend()
    made.end(made.reserve(ASKED, 0.0), ReservationState.SETTLED, 1.0)
    assert made.drain_seconds(needed, 1.0) == seconds
    assert made.drain_seconds(8.0, 61.0) is None


def test_freed_blocks_count_once() -> None:
    """Ending a reservation again frees nothing more."""
    made = backend()
    reservation = made.reserve(ASKED, 0.0)
    made.end(reservation, ReservationState.SETTLED, 1.0)
    made.end(reservation, ReservationState.RELEASED, 1.0)
    assert made.freed_blocks.value(1.0) == 16


def sized(*, tokens: int | None = None) -> Backend:
    """A hundred blocks, eight sequences of at most ten; the engine may say how many tokens the blocks hold."""
    made = backend()
    engine = EngineUsage(engine="0", capacity_blocks=100, capacity_tokens=tokens, block_size=16, used_ratio=0.0)
    made.occupancy.observe(UsageSample(engines=(engine,)), asked_at=0.0)
    made.max_num_seqs, made.context_tokens = 8, 160
    return made


def test_a_review_says_only_what_is_new() -> None:
    """All verdicts first, none while nothing changes, then those that rest on something else."""
    made = sized()
    assert [verdict.state.value for verdict in made.review(TierPolicy()).verdicts] == [
        "reachable",
        "unreachable",
        "unreachable",
    ]
    assert made.review(TierPolicy()) == SizingReview()
    for _ in range(ENOUGH):
        made.note(ASKED)
    changed = made.review(TierPolicy()).verdicts
    assert [(verdict.tier, verdict.state.value) for verdict in changed] == [(Tier.TRIM, "reachable")]
    assert len(made.verdicts) == 3


def test_a_review_waits_for_a_capacity() -> None:
    """Without one there is no threshold to judge, and no size to remember."""
    made = backend()
    made.note(ASKED)
    assert (made.review(TierPolicy()), made.verdicts, len(made.seen)) == (SizingReview(), (), 0)


def test_a_block_rule_that_is_off_is_news_once() -> None:
    """Said once, and again only when the numbers are others; a rule that fits is no news."""
    assert sized(tokens=1600).review(TierPolicy()).misfit is None
    made = sized(tokens=3200)
    fit = made.review(TierPolicy()).misfit
    assert fit is not None
    assert (fit.engine_blocks, fit.predicted_blocks) == (5.0, 10)
    assert made.review(TierPolicy()).misfit is None
    made.context_tokens = 320
    assert made.review(TierPolicy()).misfit is not None


def observed(made: Backend, ratio: float) -> None:
    engine = EngineUsage(engine="0", capacity_blocks=100, block_size=16, used_ratio=ratio)
    made.occupancy.observe(UsageSample(engines=(engine,)), asked_at=0.0)


def test_each_set_of_thresholds_has_a_tier_with_its_own_hysteresis() -> None:
    """Only the plain one makes news; thresholds nobody has any more are forgotten."""
    made, plain = sized(), TierPolicy()
    low = TierPolicy(reject=TierRule(enter=0.88, signals=(Signal.PROJECTED,)))
    observed(made, 0.89)
    change = made.retier(plain, 1.0, (low,))
    assert change is not None
    assert (change.after, made.tier_under(plain).tier, made.tier_under(low).tier) == (
        Tier.RESTRICT,
        Tier.RESTRICT,
        Tier.REJECT,
    )
    observed(made, 0.87)
    assert made.retier(plain, 2.0, (low,)) is None
    assert made.tier_under(low).tier is Tier.REJECT
    observed(made, 0.855)
    made.retier(plain, 3.0, (low,))
    assert (made.tier_at(low, 3.0).tier, made.tier_under(low).since) == (Tier.RESTRICT, 3.0)
    made.retier(plain, 4.0)
    assert made.other_tiers == {}


def seen(
    made: Backend, at: float, gauge: float = 0.5, *, running: int = 0, tokens: float = 0.0, preempted: float = 0.0
) -> ConditionChange | None:
    """One scrape of an engine of 100 blocks."""
    usage = EngineUsage(
        engine="0",
        capacity_blocks=100,
        block_size=16,
        used_ratio=gauge,
        running=running,
        prompt_tokens_total=0.0,
        generation_tokens_total=tokens,
        preemptions_total=preempted,
    )
    return made.observe(UsageSample(engines=(usage,)), asked_at=at)


def test_a_scrape_tells_of_a_change_of_condition() -> None:
    """Once, with both sides; and where the scrape is too old nothing is known and nothing is shut."""
    made = backend()
    assert seen(made, 0, running=1) == ConditionChange(
        backend="b", before=EngineState.UNKNOWN, after=EngineState.WORKING
    )
    assert seen(made, 15, running=1) is None
    assert seen(made, 30, running=1) == ConditionChange(
        backend="b", before=EngineState.WORKING, after=EngineState.STALLED
    )
    assert (made.condition(35.0).state, made.passage(35.0)) == (EngineState.STALLED, Passage.SHUT)
    assert (made.condition(35.1), made.passage(35.1)) == (Condition(), Passage.OPEN)


def test_streams_of_kvguards_own_that_wait_are_work() -> None:
    """Although the page shows none; one that has begun to answer, or cannot be watched, is not."""
    frozen, busy = backend(), backend()
    frozen.reserve(ASKED, 0.0)
    begun = busy.reserve(ASKED, 0.0)
    busy.ledger.progress(begun, 1)
    busy.reserve(replace(ASKED, streamed=False), 0.0)
    for at in (1, 31):
        seen(frozen, at)
        seen(busy, at)
    assert (frozen.condition(31.0).state, busy.condition(31.0).state) == (EngineState.STALLED, EngineState.WORKING)


def test_a_gauge_nobody_can_have_filled_is_doubted_until_a_request_of_ours_is_there() -> None:
    """Full on two scrapes with nothing running; what is live at the moment of the decision counts."""
    made = backend()
    for at in (0, 1):
        seen(made, at, 0.97)
    assert made.passage(1.0) is Passage.DOUBT
    made.reserve(ASKED, 1.0)
    assert made.passage(1.0) is Passage.OPEN


def test_preemptions_beyond_the_limit_fill_the_cache_up_to_the_floor() -> None:
    """As a queue does, and only as long as they go on."""
    signals = SignalPolicy(max_preemptions_per_second=0.1)
    made = new_backend("b", "http://b", OccupancyPolicy(), LengthPolicy(), signals)
    ratios = []
    for at, preempted in ((0, 0), (1, 1), (2, 2), (12, 2), (13, 2)):
        seen(made, at, running=1, tokens=at, preempted=preempted)
        ratios.append(made.occupancy.ratios(at).projected)
    assert ratios == [0.5, 0.5, 0.85, 0.5, 0.5]
