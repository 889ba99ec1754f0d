"""What is sent: three shapes of traffic, Poisson or in bursts, the same requests for every arm of a round.

Lengths are in tokens and scaled to a cache of 4064 of them and a context of 2048.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

Count = Callable[[str], int]

# Each is one token of the tiny model with a space in front.
_WORDS = (
    "the be is are was to of and a in that have it for not on with as you do at this but by from they we say or an will"
    " one all would there their what so up out if about who get which go me when make can like time no just know take"
).split()
_TOKENS_IN_FRONT = 7  # of the word that makes each prompt unlike all others, in the mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens of prompts or answers: log-normal between bounds."""

    median: float
    sigma: float
    least: int
    most: int

    def draw(self, rng: random.Random) -> int:
        return round(min(max(self.median * rng.lognormvariate(0.0, self.sigma), self.least), self.most))

    def mean(self, draws: int = 4000) -> float:
        """What draws come to in the mean, bounds included; the same every time."""
        rng = random.Random(0)
        return sum(self.draw(rng) for _ in range(draws)) / draws


@dataclass(frozen=True, slots=True, kw_only=True)
class Bursts:
    """A Markov-modulated Poisson process of two phases: `factor` times the mean rate for this share of the time.

    The other phase is slower by as much as keeps the mean. Both last exponentially distributed times.
    """

    factor: float = 3.0
    share: float = 0.25
    period_seconds: float = 2.0

    def rate(self, mean: float, *, bursting: bool) -> float:
        """Arrivals a second in one of the phases."""
        return mean * (self.factor if bursting else (1 - self.factor * self.share) / (1 - self.share))

    def seconds(self, *, bursting: bool) -> float:
        """Mean duration of one of the phases."""
        return self.period_seconds * (self.share if bursting else 1 - self.share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A kind of traffic, and what its clients expect.

    `caps` are what clients declare as `max_tokens`, far above what answers use. `clients` saturate the engine in a
    closed loop. `native_limits` are the values of vLLM's own limit worth trying, the middle one the first guess.
    """

    name: str
    prompt: Lengths
    output: Lengths
    caps: tuple[int, ...]
    clients: int
    native_limits: tuple[int, ...]
    patience_seconds: float = 10.0
    bursts: Bursts | None = None

    def in_bursts(self) -> "Shape":
        return replace(self, name=f"{self.name}-bursts", bursts=Bursts())


CHAT = Shape(
    name="chat",
    prompt=Lengths(median=150, sigma=0.6, least=16, most=800),
    output=Lengths(median=100, sigma=0.7, least=8, most=500),
    caps=(512, 1024),
    clients=16,
    native_limits=(12, 18, 24),
)
RAG = Shape(
    name="rag",
    prompt=Lengths(median=700, sigma=0.4, least=200, most=1300),
    output=Lengths(median=60, sigma=0.5, least=8, most=240),
    caps=(256, 512),
    clients=6,
    native_limits=(6, 9),
)
REASONING = Shape(
    name="reasoning",
    prompt=Lengths(median=60, sigma=0.5, least=16, most=200),
    output=Lengths(median=220, sigma=0.6, least=40, most=600),
    caps=(1024, 1536),
    clients=16,
    native_limits=(12, 18, 24),
    patience_seconds=20.0,
)
SHAPES = {shape.name: shape for plain in (CHAT, RAG, REASONING) for shape in (plain, plain.in_bursts())}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request: when it comes (seconds into the slice), what it asks and how long its answer will be.

    The number tells it from the others of its schedule. `prefix` has the hashes of the full blocks of prompt and answer
    where they are what matters, in simulation.
    """

    number: int
    at: float
    prompt: str
    prompt_tokens: int
    cap: int
    length: int
    prefix: tuple[int, ...] = ()

    def body(self) -> dict[str, object]:
        """The request as every arm receives it."""
        return {
            "model": "tiny",
            "prompt": self.prompt,
            "max_tokens": self.cap,
            "stream": True,
            "stream_options": {"include_usage": True},
            "vllm_xargs": {"length": self.length},
        }


def arrivals(shape: Shape, *, rate: float, seconds: float, seed: str, count: Count) -> list[Arrival]:
    """Open-loop arrivals at `rate` a second in the mean; the same seed gives the same requests."""
    rng = random.Random(seed)
    made = requests(shape, random.Random(f"{seed}:requests"), count)
    return [replace(next(made), at=at) for at in _moments(shape.bursts, rate, seconds, rng)]


def requests(shape: Shape, rng: random.Random, count: Count) -> Iterator[Arrival]:
    """An endless supply of requests."""
    number = 0
    while True:
        words = rng.choices(_WORDS, k=max(shape.prompt.draw(rng) - _TOKENS_IN_FRONT, 1))
        # A word of its own in front keeps the prefix cache from serving one request's blocks to another.
        prompt = " ".join([f"{rng.getrandbits(32):08x}", *words])
        yield Arrival(
            number=number,
            at=0.0,
            prompt=prompt,
            prompt_tokens=count(prompt),
            cap=rng.choice(shape.caps),
            length=shape.output.draw(rng),
        )
        number += 1


def _moments(bursts: Bursts | None, rate: float, seconds: float, rng: random.Random) -> Iterator[float]:
    if bursts is None:
        yield from _poisson(rate, 0.0, seconds, rng)
        return
    at, bursting = 0.0, rng.random() < bursts.share
    while at < seconds:
        until = min(at + rng.expovariate(1 / bursts.seconds(bursting=bursting)), seconds)
        yield from _poisson(bursts.rate(rate, bursting=bursting), at, until, rng)
        at, bursting = until, not bursting


def _poisson(rate: float, begin: float, end: float, rng: random.Random) -> Iterator[float]:
    if rate <= 0:
        return
    at = begin + rng.expovariate(rate)
    while at < end:
        yield at
        at += rng.expovariate(rate)
