"""Forecasts held against answers: what counts, and that they hold for traffic of known lengths."""

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvguard.admission.calibration import Calibration, LengthForecast, forecast_of
from kvguard.admission.footprint import Demand
from kvguard.admission.lengths import LengthPolicy, LengthSource, OutputLengths
from kvguard.admission.population import ANYBODY, Population
from kvguard.admission.usage import EngineUsage, UsageSample
from tests.admission.build import answers, demand, demands, learned, learned_from
from tests.kit.properties import deterministic

LEARNED, PRIOR, CAP = LengthSource
STOPPED = Population(model="m", route="r", stops=True)


@pytest.mark.parametrize(
    ("asked", "seen", "tokens", "source"),
    [
        (demand(cap=1000), (), 1000, CAP),
        (demand(cap=None, expected=512), (), 512, CAP),
        (demand(cap=1000), (100,), 100, LEARNED),
        (demand(cap=101), (100,), 100, LEARNED),
        # The cap is the bound, or the least length the client wants.
        (demand(cap=100), (100,), 100, CAP),
        (demand(cap=99), (100,), 99, CAP),
        (demand(cap=1000, min_tokens=100), (100,), 100, LEARNED),
        (demand(cap=1000, min_tokens=101), (100,), 101, CAP),
        (demand(cap=1000, fixed_length=True), (100,), 1000, CAP),
    ],
)
def test_where_a_forecast_comes_from(asked: Demand, seen: tuple[int, ...], tokens: int, source: LengthSource) -> None:
    """Answers seen decide only between the least length and the cap."""
    assert forecast_of(asked, learned(*seen)) == LengthForecast(tokens=tokens, source=source)


def test_the_engines_histogram_is_a_source_too() -> None:
    """While nothing was seen here."""
    lengths = learned()
    engine = EngineUsage(engine="0", generation_lengths=((1.0, 0.0), (2.0, 100.0)))
    lengths.observe_engine(UsageSample(engines=(engine,)))
    assert forecast_of(demand(cap=1000), lengths) == LengthForecast(tokens=2, source=PRIOR)


@pytest.mark.parametrize(
    ("forecast", "cap", "got", "counted"),
    [
        (100, 1000, 99, (1, 0)),
        (100, 1000, 100, (1, 0)),
        (100, 1000, 101, (1, 1)),
        # Cut off by its cap, but it had outgrown the forecast before.
        (100, 1000, 1000, (1, 1)),
        # Cut off before it could.
        (100, 100, 100, (0, 0)),
        (100, 100, 99, (1, 0)),
        (512, None, 512, (1, 0)),
        (512, None, 513, (1, 1)),
    ],
)
def test_what_is_counted(forecast: int, cap: int | None, got: int, counted: tuple[int, int]) -> None:
    """An answer counts once it is known whether it outgrew its forecast, under that forecast's source."""
    calibration = Calibration()
    calibration.note(LengthForecast(tokens=forecast, source=PRIOR), demand(cap=cap), got)
    assert (calibration.answers[PRIOR], calibration.exceeded[PRIOR]) == counted
    assert (calibration.answers.total(), calibration.exceeded.total()) == counted


@pytest.mark.parametrize("asked", [demand(16, 16, cap=1000), demand(16, cap=1000, copies=2)])
def test_answers_of_several_sequences_are_not_counted(asked: Demand) -> None:
    """Only their sum is known."""
    calibration = Calibration()
    calibration.note(LengthForecast(tokens=100, source=LEARNED), asked, 300)
    assert not calibration.answers


@deterministic
@given(asked=demands(), seen=answers, counted=st.integers(0, 50), population=st.sampled_from((ANYBODY, STOPPED)))
def test_no_forecast_is_above_the_cap(
    asked: Demand, seen: list[tuple[int, int | None]], counted: int, population: Population
) -> None:
    """Nor below the least length where the cap allows it, whoever knows what; fixed lengths are the cap."""
    lengths = learned_from(seen)
    engine = EngineUsage(engine="0", generation_lengths=((100.0, float(counted)), (math.inf, 2.0 * counted)))
    lengths.observe_engine(UsageSample(engines=(engine,)))
    tokens = forecast_of(replace(asked, population=population), lengths).tokens
    cap = math.inf if asked.output_cap is None else asked.output_cap
    assert min(asked.min_tokens, cap) <= tokens <= cap
    if asked.fixed_length and asked.expected_output == cap:
        assert tokens == cap


# Closed loop: forecast, answer, learn, as the proxy does.

Draw = Callable[[random.Random], int]
CAPPED = 4096


def short(rng: random.Random) -> int:
    return max(1, round(60 * rng.lognormvariate(0, 0.5)))


def long(rng: random.Random) -> int:
    return max(1, round(600 * rng.lognormvariate(0, 0.6)))


def mixed(rng: random.Random) -> int:
    return (short if rng.random() < 0.6 else long)(rng)


def served(
    draw: Draw, lengths: OutputLengths, *, answers: int, seed: int, population: Population = ANYBODY
) -> tuple[Calibration, list[int]]:
    """Answers of lengths drawn one after the other, cut at the cap; what was forecast of each."""
    rng, calibration, forecasts = random.Random(seed), Calibration(), []
    asked = demand(cap=CAPPED, population=population)
    for _ in range(answers):
        forecast = forecast_of(asked, lengths)
        length = min(draw(rng), CAPPED)
        calibration.note(forecast, asked, length)
        lengths.observe(length, population, cap=CAPPED)
        forecasts.append(forecast.tokens)
    return calibration, forecasts


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("quantile", [0.5, 0.7, 0.9])
@pytest.mark.parametrize("draw", [short, long, mixed])
def test_the_share_that_exceeds_its_forecast_is_the_one_chosen(draw: Draw, quantile: float, seed: int) -> None:
    """Over 2000 answers within five hundredths of one minus the quantile, the first thirty aside."""
    calibration, _ = served(draw, OutputLengths(LengthPolicy(quantile=quantile)), answers=2000, seed=seed)
    assert calibration.answers[CAP] == 30
    assert calibration.answers[LEARNED] == 1970
    assert calibration.exceeded[LEARNED] / 1970 == pytest.approx(1 - quantile, abs=0.05)


@pytest.mark.parametrize("seed", range(3))
def test_populations_are_forecast_apart(seed: int) -> None:
    """Two routes of one model, served in turn: each one's forecasts hold, though neither is like the mixture."""
    lengths = OutputLengths(LengthPolicy(quantile=0.7))
    for turn in range(4):
        last = [
            served(draw, lengths, answers=500, seed=10 * seed + turn, population=Population(model="m", route=route))
            for draw, route in ((short, "a"), (long, "b"))
        ]
    for calibration, _ in last:
        assert calibration.exceeded[LEARNED] / 500 == pytest.approx(0.3, abs=0.07)
    (_, shorter), (_, longer) = last
    assert max(shorter) < 200 < 500 < min(longer)


def engine_after(draw: Draw, answers: int, seed: int) -> UsageSample:
    """The page of an engine that has answered others before."""
    rng = random.Random(seed)
    seen = [min(draw(rng), CAPPED) for _ in range(answers)]
    ladder = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, math.inf)
    buckets = tuple((float(bound), float(sum(length <= bound for length in seen))) for bound in ladder)
    return UsageSample(engines=(EngineUsage(engine="0", generation_lengths=buckets),))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("draw", [short, long, mixed])
def test_a_cold_start_with_the_engines_histogram_wastes_little(draw: Draw, seed: int) -> None:
    """Without it the first thirty answers count with their whole cap; with it with at most a third, and it holds."""
    cold, warm = (OutputLengths(LengthPolicy(quantile=0.7)) for _ in range(2))
    warm.observe_engine(engine_after(draw, 5000, seed + 100))
    _, without = served(draw, cold, answers=30, seed=seed)
    calibration, forecasts = served(draw, warm, answers=30, seed=seed)
    assert without == [CAPPED] * 30
    assert max(forecasts) < CAPPED / 3
    assert calibration.answers == {PRIOR: 30}
    assert calibration.exceeded[PRIOR] <= 0.3 * 30


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("before", "after"), [(short, long), (long, short), (mixed, long), (long, mixed)])
def test_a_change_of_lengths_is_followed_within_two_half_lives(before: Draw, after: Draw, seed: int) -> None:
    """From then on forecasts are quantiles of what is answered now, if not yet quite the one chosen."""
    lengths = OutputLengths(LengthPolicy(quantile=0.7, half_life_answers=200))
    served(before, lengths, answers=2000, seed=seed)
    served(after, lengths, answers=400, seed=seed + 10)
    calibration, _ = served(after, lengths, answers=600, seed=seed + 20)
    assert calibration.exceeded[LEARNED] / 600 == pytest.approx(0.3, abs=0.15)
    calibration, _ = served(after, lengths, answers=1000, seed=seed + 30)
    assert calibration.exceeded[LEARNED] / 1000 == pytest.approx(0.3, abs=0.05)
