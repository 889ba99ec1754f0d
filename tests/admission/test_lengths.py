"""Learned lengths: who learns from whom, the engine's own histogram, forgetting, saving, and bounds."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvguard.admission.histogram import LONGEST
from kvguard.admission.lengths import MAX_HISTOGRAMS, LengthPolicy, LengthSource, OutputLengths
from kvguard.admission.population import Population
from kvguard.admission.saved import SavedHistogram
from kvguard.admission.usage import EngineUsage, LengthBuckets, UsageSample
from tests.kit.properties import deterministic

POLICY = LengthPolicy(quantile=0.8, min_answers=10, half_life_answers=1_000_000)


def learned(values: list[int], cap: int | None = 1024, policy: LengthPolicy = POLICY) -> OutputLengths:
    lengths = OutputLengths(policy)
    for value in values:
        lengths.observe(value, cap=cap)
    return lengths


def test_nothing_is_said_before_enough_is_known() -> None:
    """One answer short of the least number there is no forecast; with it there is."""
    assert learned([100] * 9).expected(cap=1024, produced=0) is None
    assert learned([100] * 10).expected(cap=1024, produced=0) is not None


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("produced", [0, 1, 50, 100, 200, 300])
def test_the_forecast_is_the_quantile_of_those_that_got_this_far(seed: int, produced: int) -> None:
    """At least the wanted share of the longer answers ends within it, and it overshoots by a bucket at most."""
    rng = random.Random(seed)
    values = [max(1, round(100 * rng.lognormvariate(0, 0.7))) for _ in range(3000)]
    longer = sorted(value for value in values if value > produced)
    forecast = learned(values).expected(cap=1024, produced=produced)
    assert forecast is not None
    exact = longer[int(0.8 * len(longer))]
    assert exact * 0.93 <= forecast <= exact * 1.13 + 1


def test_an_answer_longer_than_any_seen_has_no_forecast() -> None:
    """Beyond all experience nothing is said, and the caller falls back on the cap."""
    lengths = learned([10] * 100)
    assert lengths.expected(cap=1024, produced=9) == 10
    assert lengths.expected(cap=1024, produced=5000) is None
    assert lengths.expected(cap=1024, produced=1 << 30) is None


def test_a_forecast_is_always_beyond_what_has_been_produced() -> None:
    """Whatever has passed, more is to come."""
    lengths = learned(list(range(1, 400)))
    for produced in range(500):
        forecast = lengths.expected(cap=1024, produced=produced)
        assert forecast is None or forecast > produced


def test_classes_of_caps_are_apart_and_lower_ones_borrow_from_above() -> None:
    """A class that knows speaks for itself; one that does not takes what a higher class knows, never a lower one."""
    lengths = learned([20] * 50, cap=64)
    for value in [300] * 50:
        lengths.observe(value, cap=1024)
    assert lengths.expected(cap=100, produced=0) == 20
    assert lengths.expected(cap=512, produced=0) == lengths.expected(cap=1500, produced=0)
    assert lengths.expected(cap=4096, produced=0) is None
    assert lengths.expected(cap=None, produced=0) is None
    assert learned([7] * 50, cap=None).expected(cap=16, produced=0) == 7


def test_old_answers_are_forgotten() -> None:
    """After a change of traffic the forecast follows within a few half-lives."""
    policy = LengthPolicy(quantile=0.8, min_answers=10, half_life_answers=20)
    lengths = learned([500] * 200 + [20] * 100, policy=policy)
    assert lengths.expected(cap=1024, produced=0) == 20


def test_absurd_lengths_are_bounded() -> None:
    """Zero and astronomic lengths land in the first and last bucket."""
    lengths = learned([0] * 20 + [1 << 40], cap=None)
    assert lengths.expected(cap=None, produced=0) == 1
    assert lengths.expected(cap=None, produced=1000) == 1 << 20


CHAT = Population(model="m", route="chat", caller="gold")


def taught(
    lengths: OutputLengths, population: Population, length: int, *, cap: int | None = 1024, times: int = 10
) -> None:
    for _ in range(times):
        lengths.observe(length, population, cap=cap)


@pytest.mark.parametrize(
    ("population", "cap", "expected"),
    [
        # The very same, then without the caller, then the model alone, under any cap at least as high.
        (CHAT, 1024, 10),
        (Population(model="m", route="chat", caller="new"), 1024, 12),
        (Population(model="m", route="chat"), 1024, 12),
        (Population(model="m", route="new"), 1024, 13),
        (Population(model="m"), 1024, 13),
        (CHAT, 500, 13),
        (CHAT, 2047, 10),
        (CHAT, 2048, 16),
        (CHAT, None, 16),
        # Another model's as long as nothing is known of this one, but never of lower caps alone.
        (Population(model="new", route="chat"), 1024, 14),
        (Population(model="new", route="chat"), 500, 14),
        (Population(model="new", route="chat"), 5000, 17),
        (Population(), 1024, 14),
        # What ends at stop sequences is known by its kind, then by its model, then by its kind anywhere.
        (Population(model="m", route="chat", caller="gold", stops=True), 1024, 10),
        (Population(model="other", route="chat", stops=True), 1024, 5),
        (Population(model="other", route="new", stops=True), 1024, 5),
        (Population(model="new", stops=True), 1024, 5),
        (Population(model="new", stops=True), 5000, 17),
        (Population(model="other", route="chat"), 1024, 20),
        (Population(model="other"), 1024, 14),
    ],
)
def test_the_most_specific_that_is_known_tells(population: Population, cap: int | None, expected: int) -> None:
    """Ten answers each; more general populations know those of all that belong to them, and the larger half decides."""
    lengths = OutputLengths(LengthPolicy(quantile=0.5, min_answers=10, half_life_answers=10**18))
    taught(lengths, CHAT, 10)
    taught(lengths, Population(model="m", route="chat", caller="silver"), 12, times=12)
    taught(lengths, Population(model="m", route="completions"), 13, times=24)
    taught(lengths, Population(model="other", route="chat"), 20, times=10)
    taught(lengths, Population(model="other", route="completions"), 14, times=60)
    taught(lengths, Population(model="m", route="completions"), 16, cap=None)
    taught(lengths, Population(model="other", route="completions"), 17, cap=None, times=30)
    taught(lengths, Population(model="other", route="chat", stops=True), 5)
    assert lengths.expected(population, cap=cap, produced=0) == expected


def test_one_that_outlived_its_own_kind_is_forecast_by_the_next() -> None:
    """As long as anybody got that far; a histogram that has seen too few is no help."""
    lengths = OutputLengths(POLICY)
    taught(lengths, CHAT, 10, times=20)
    taught(lengths, Population(model="m", route="completions"), 100)
    taught(lengths, Population(model="other"), 500, times=9)
    assert lengths.expected(CHAT, cap=1024, produced=9) == 10
    assert lengths.expected(CHAT, cap=1024, produced=10) == 100
    assert lengths.expected(CHAT, cap=1024, produced=100) == 512
    assert lengths.expected(CHAT, cap=1024, produced=512) is None


def test_a_population_speaks_for_itself_from_its_least_number_on() -> None:
    """One short of it the next more general one speaks, even when it was asked a moment ago."""
    lengths = OutputLengths(POLICY)
    taught(lengths, Population(model="m", route="completions"), 100, times=50)
    for _ in range(10):
        assert lengths.expected(CHAT, cap=1024, produced=0) == 100
        taught(lengths, CHAT, 10, times=1)
    assert lengths.expected(CHAT, cap=1024, produced=0) == 10


def test_memory_is_bounded_and_what_is_taught_least_recently_goes_first() -> None:
    """However many populations there are; the one dropped is forgotten at once."""
    lengths = OutputLengths(POLICY)
    taught(lengths, CHAT, 10)
    taught(lengths, Population(model="m"), 20, times=1)
    assert lengths.expected(CHAT, cap=1024, produced=0) == 10
    for number in range(MAX_HISTOGRAMS):
        lengths.observe(30, Population(model=f"m{number}", caller=f"c{number % 7}"), cap=1024)
        lengths.expected(Population(model=f"m{number}"), cap=1024, produced=0)
        assert len(lengths) <= MAX_HISTOGRAMS
    assert len(lengths) == MAX_HISTOGRAMS
    assert lengths.expected(CHAT, cap=1024, produced=0) == 30


def test_asking_about_many_populations_keeps_nothing_for_ever() -> None:
    """Whoever is asked about, the answer stays that of everybody."""
    lengths = OutputLengths(POLICY)
    taught(lengths, CHAT, 10)
    for number in range(MAX_HISTOGRAMS + 2):
        assert lengths.expected(Population(model=f"m{number}"), cap=1024, produced=0) == 10
    assert len(lengths) == 4


def counted(*buckets: tuple[float, float]) -> UsageSample:
    return UsageSample(engines=(EngineUsage(engine="0", generation_lengths=buckets or None),))


FULL: LengthBuckets = ((8.0, 0.0), (16.0, 40.0), (float("inf"), 40.0))


@pytest.mark.parametrize(
    ("pages", "expected"),
    [
        ([], None),
        ([()], None),
        ([((16.0, 0.0),)], None),
        ([((16.0, 9.0),)], None),
        # Of sixteen lengths a share of nine tenths, half-way from what is wanted to all.
        ([((16.0, 10.0),)], 15),
        ([FULL], 16),
        # It grows while little is known here, and a restarted engine says nothing until it has counted enough.
        ([((16.0, 10.0),), FULL], 16),
        ([FULL, ((2.0, 9.0),)], 16),
        ([FULL, ()], 16),
        ([FULL, ((2.0, 10.0),)], 2),
    ],
)
def test_the_engines_histogram_stands_in_while_nothing_is_known(
    pages: list[LengthBuckets], expected: int | None
) -> None:
    """Only one that has counted enough answers counts, whatever population and cap are asked about."""
    lengths = OutputLengths(POLICY)
    for page in pages:
        lengths.observe_engine(counted(*page))
    for cap in (1024, None):
        assert lengths.expected(CHAT, cap=cap, produced=0) == expected


def test_what_was_seen_here_wins_over_the_engines_histogram() -> None:
    """Even where it says nothing of an answer that outlived it; the engine's is used where nothing is known."""
    lengths = OutputLengths(POLICY)
    lengths.observe_engine(counted(*FULL))
    assert lengths.known(CHAT, cap=1024, produced=0) == (16, LengthSource.PRIOR)
    assert lengths.learned(CHAT, cap=1024, produced=0) is None
    assert lengths.known(CHAT, cap=1024, produced=16) is None
    taught(lengths, CHAT, 10)
    assert lengths.known(CHAT, cap=1024, produced=0) == (10, LengthSource.LEARNED)
    assert lengths.known(CHAT, cap=1024, produced=10) is None
    assert lengths.known(CHAT, cap=None, produced=10) == (16, LengthSource.PRIOR)


def test_the_engines_histogram_is_read_until_enough_is_known_here() -> None:
    """After that a page changes nothing; before, only one that counts other answers does."""
    lengths = OutputLengths(POLICY)
    versions = [lengths.version]
    for page in (FULL, FULL, ((16.0, 41.0),)):
        lengths.observe_engine(counted(*page))
        versions.append(lengths.version)
    assert versions == [0, 1, 1, 2]
    taught(lengths, CHAT, 10)
    lengths.observe_engine(counted((2.0, 1000.0)))
    assert lengths.known(CHAT, cap=None, produced=0) == (15, LengthSource.PRIOR)


def restored(saved: tuple[SavedHistogram, ...], policy: LengthPolicy = POLICY) -> OutputLengths:
    lengths = OutputLengths(policy)
    lengths.restore(saved)
    return lengths


def test_what_is_saved_makes_the_same_forecasts() -> None:
    """By population, class of caps and what is produced; what is learned after a copy was made is not in it."""
    rng, policy = random.Random(5), LengthPolicy(quantile=0.777, min_answers=10)
    lengths = OutputLengths(policy)
    populations = [CHAT, Population(model="m", route="completions"), Population(model="n", stops=True)]
    for _ in range(300):
        lengths.observe(round(rng.lognormvariate(4, 1)), rng.choice(populations), cap=rng.choice([64, 1024, None]))
    copied = lengths.copy()
    after = restored(lengths.saved(), policy)
    assert after.version > 0
    taught(lengths, CHAT, 1, times=500)
    for population in (*populations, Population(model="new"), Population(model="m", route="new")):
        for cap in (10, 64, 1024, None):
            for produced in (0, 30, 90, 5000):
                expected = copied.expected(population, cap=cap, produced=produced)
                assert after.expected(population, cap=cap, produced=produced) == expected


def test_what_was_saved_fades_within_a_half_life() -> None:
    """It counts at once, and once half a half-life of new answers has come, they decide."""
    policy = LengthPolicy(quantile=0.5, min_answers=10, half_life_answers=100)
    old = OutputLengths(policy)
    taught(old, CHAT, 500, times=10_000)
    new = restored(old.saved(), policy)
    assert new.expected(CHAT, cap=1024, produced=0) == 512
    taught(new, CHAT, 20, times=25)
    assert new.expected(CHAT, cap=1024, produced=0) == 512
    taught(new, CHAT, 20, times=25)
    assert new.expected(CHAT, cap=1024, produced=0) == 20


def test_saved_histograms_are_bounded_too() -> None:
    """A file that holds more than there is room for leaves the last ones."""
    one = {"route": "", "caller": "", "stops": False, "cap_class": 11, "answers": 50}
    saved = tuple(
        SavedHistogram(model=f"m{number}", weights=((number + 1, 50.0),), **one) for number in range(MAX_HISTOGRAMS + 1)
    )
    lengths = restored(saved)
    assert len(lengths) == MAX_HISTOGRAMS
    assert lengths.expected(Population(model="m0"), cap=1024, produced=0) is None
    assert lengths.expected(Population(model="m1"), cap=1024, produced=0) == 2


populations = st.builds(
    Population,
    model=st.sampled_from(("", "m", "n")),
    route=st.sampled_from(("", "r")),
    caller=st.sampled_from(("", "c")),
    stops=st.booleans(),
)
caps = st.none() | st.integers(1, 2000)


@deterministic
@given(
    seen=st.lists(st.tuples(populations, st.integers(0, 3000), caps), max_size=60),
    pages=st.lists(st.lists(st.integers(0, 20), min_size=3, max_size=3), max_size=2),
    asked=populations,
    cap=caps,
    produced=st.integers(0, 3000) | st.just(LONGEST),
)
def test_a_forecast_is_always_further_than_what_is_produced(
    seen: list[tuple[Population, int, int | None]],
    pages: list[list[int]],
    asked: Population,
    cap: int | None,
    produced: int,
) -> None:
    """Whoever taught what, and whatever the engine counted."""
    lengths = OutputLengths(LengthPolicy(min_answers=3, half_life_answers=20))
    for few, more, rest in pages:
        lengths.observe_engine(counted((10.0, few), (100.0, few + more), (float("inf"), few + more + rest)))
    for population, length, under in seen:
        lengths.observe(length, population, cap=under)
    forecast = lengths.expected(asked, cap=cap, produced=produced)
    assert forecast is None or forecast > produced


@pytest.mark.parametrize(
    ("change", "few", "many"),
    [
        ({}, 512, 512),
        ({"quantile": 0.3}, 10, 10),
        ({"min_answers": 5}, 30, 512),
        ({"min_answers": 20}, 512, 512),
        ({"min_answers": 21}, 512, 512),
        ({"min_answers": 26}, None, None),
    ],
)
def test_another_policy_asks_other_things_of_the_same_answers(
    change: dict[str, float], few: int | None, many: int | None
) -> None:
    """What was learned stays, whatever was said of it a moment ago; the same policy changes nothing."""
    lengths, asked = OutputLengths(POLICY), (Population(model="few"), Population(model="many"))
    taught(lengths, asked[0], 30, times=5)
    taught(lengths, asked[1], 10, times=10)
    taught(lengths, asked[1], 500, times=10)
    before = [lengths.expected(each, cap=1024, produced=0) for each in asked]
    assert before == [512, 512]
    version = lengths.version
    lengths.follow(replace(POLICY, **change))
    assert (lengths.version > version) is bool(change)
    assert [lengths.expected(each, cap=1024, produced=0) for each in asked] == [few, many]
    assert len(lengths) == 3
    lengths.follow(POLICY)
    assert [lengths.expected(each, cap=1024, produced=0) for each in asked] == before


def test_another_half_life_forgets_at_its_own_pace() -> None:
    """What was added weighs what it weighed; the answers that come decide sooner."""
    lengths = OutputLengths(POLICY)
    taught(lengths, CHAT, 500, times=20)
    lengths.follow(replace(POLICY, half_life_answers=1))
    taught(lengths, CHAT, 10, times=3)
    assert lengths.expected(CHAT, cap=1024, produced=0) == 512
    taught(lengths, CHAT, 10, times=4)
    assert lengths.expected(CHAT, cap=1024, produced=0) == 10


@pytest.mark.parametrize(
    ("change", "expected"),
    [({}, 15), ({"quantile": 0.5}, 12), ({"min_answers": 16}, 15), ({"min_answers": 17}, None)],
)
def test_another_policy_holds_for_the_engines_histogram_too(change: dict[str, float], expected: int | None) -> None:
    """Half-way between the new quantile and all; too few answers say nothing until fewer are enough again."""
    lengths = OutputLengths(POLICY)
    lengths.observe_engine(counted((16.0, 16.0)))
    lengths.follow(replace(POLICY, **change))
    assert lengths.expected(CHAT, cap=1024, produced=0) == expected
    lengths.follow(POLICY)
    assert lengths.expected(CHAT, cap=1024, produced=0) == 15
