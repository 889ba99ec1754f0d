"""The benchmark's traffic: reproducible, within what the engine takes, and as fast in bursts as without."""

import random

import pytest

from bench.overload.workload import CHAT, SHAPES, Arrival, Bursts, Lengths, Shape, arrivals, requests

CONTEXT_TOKENS = 2048


def words(text: str) -> int:
    """Stands in for a tokenizer."""
    return len(text.split())


def sent(shape: Shape, *, rate: float = 20.0, seconds: float = 10.0, seed: str = "a") -> list[Arrival]:
    return arrivals(shape, rate=rate, seconds=seconds, seed=seed, count=words)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_what_clients_declare_fits_the_context_and_lies_above_every_answer(shape: Shape) -> None:
    """No request is too large for the model, and no answer ends at its client's own cap."""
    assert shape.prompt.most + max(shape.caps) < CONTEXT_TOKENS
    assert shape.output.most < min(shape.caps)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_same_seed_gives_the_same_requests(shape: Shape) -> None:
    """Every arm of a round meets the same traffic, another seed other traffic."""
    assert sent(shape) == sent(shape)
    assert sent(shape) != sent(shape, seed="b")


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_arrivals_come_in_order_within_the_slice_each_with_a_number_of_its_own(shape: Shape) -> None:
    """A schedule can be sent as it stands."""
    schedule = sent(shape)
    assert [arrival.number for arrival in schedule] == list(range(len(schedule)))
    assert sorted(arrival.at for arrival in schedule) == [arrival.at for arrival in schedule]
    assert all(0 < arrival.at < 10 for arrival in schedule)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_offered_rate_is_met_in_the_mean_with_bursts_as_without(shape: Shape) -> None:
    """Bursts move arrivals, they add none."""
    assert len(sent(shape, rate=10, seconds=400)) == pytest.approx(4000, rel=0.1)


def test_bursts_crowd_arrivals() -> None:
    """Arrivals a second vary more than the Poisson process's, whose variance is its mean."""

    def dispersion(shape: Shape) -> float:
        seconds = [0] * 400
        for arrival in sent(shape, rate=10, seconds=400):
            seconds[int(arrival.at)] += 1
        mean = sum(seconds) / len(seconds)
        return sum((n - mean) ** 2 for n in seconds) / len(seconds) / mean

    assert dispersion(CHAT) < 1.3
    assert dispersion(CHAT.in_bursts()) > 2


@pytest.mark.parametrize(
    ("bursts", "bursting", "resting"),
    [
        (Bursts(factor=3, share=0.25), 30.0, 10 / 3),
        (Bursts(factor=4, share=0.25), 40.0, 0.0),
        (Bursts(factor=1), 10, 10),
    ],
)
def test_both_phases_together_have_the_mean_rate(bursts: Bursts, bursting: float, resting: float) -> None:
    """The slow phase makes up for the fast one, down to silence."""
    assert bursts.rate(10, bursting=True) == pytest.approx(bursting)
    assert bursts.rate(10, bursting=False) == pytest.approx(resting)
    assert bursts.seconds(bursting=True) + bursts.seconds(bursting=False) == bursts.period_seconds


def test_a_silent_phase_sends_nothing() -> None:
    """On and off, where the fast phase has all arrivals."""
    on_and_off = Shape(
        **{name: getattr(CHAT, name) for name in CHAT.__slots__} | {"bursts": Bursts(factor=4, share=0.25)}
    )
    assert len(sent(on_and_off, rate=10, seconds=400)) == pytest.approx(4000, rel=0.15)


@pytest.mark.parametrize(("median", "drawn"), [(1.0, 5), (1e6, 9), (7.0, 7)])
def test_lengths_stay_within_their_bounds(median: float, drawn: int) -> None:
    """However long the tail."""
    assert Lengths(median=median, sigma=0.0, least=5, most=9).draw(random.Random(0)) == drawn


def test_the_mean_of_lengths_is_that_of_their_draws() -> None:
    """The bounds cut the tail of a log-normal, whose own mean is 100 * exp(0.7**2 / 2) = 128."""
    rng = random.Random(1)
    drawn = [CHAT.output.draw(rng) for _ in range(4000)]
    assert CHAT.output.mean() == pytest.approx(sum(drawn) / len(drawn), rel=0.03)
    assert 115 < CHAT.output.mean() < 128


def test_prompts_are_counted_when_they_are_made_and_begin_unlike_each_other() -> None:
    """Gates know the tokens without waiting, and no prompt finds another's blocks in the prefix cache."""
    supply = requests(CHAT, random.Random(0), words)
    made = [next(supply) for _ in range(50)]
    assert all(arrival.prompt_tokens == words(arrival.prompt) for arrival in made)
    assert len({arrival.prompt.split()[0] for arrival in made}) == 50


def test_the_body_declares_the_cap_and_hides_the_length_from_everyone_but_the_engine() -> None:
    """kvguard sees what a client would say, no more."""
    arrival = Arrival(number=0, at=0.0, prompt="a b", prompt_tokens=2, cap=512, length=7)
    body = arrival.body()
    assert body["max_tokens"] == 512
    assert body["vllm_xargs"] == {"length": 7}
