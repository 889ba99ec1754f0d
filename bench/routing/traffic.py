"""What many engines are asked: three kinds of traffic, two of which say the same again and again.

Prompts have no text here, only the hashes of their blocks, which is all the engine's prefix cache looks at.
"""

import heapq
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, count, takewhile

from bench.overload.workload import Arrival, Lengths
from kvguard.simulator.config import SimConfig

BLOCK_SIZE = 32
ENGINE = SimConfig(
    num_gpu_blocks=256,
    block_size=BLOCK_SIZE,
    max_model_len=2048,
    max_num_seqs=64,
    enable_prefix_caching=True,
    step_base_seconds=0.03,
    prefill_seconds_per_token=0.0001,
)
TOKEN_SECONDS = 0.04  # about what a token of an answer takes on this engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginnings:
    """What prompts begin with: so many texts for each engine and so many besides, the n-th asked for 1/n as often."""

    tokens: Lengths
    number: int = 0
    per_engine: int = 0

    def drawn(self, engines: int, rng: random.Random) -> list[int]:
        """The lengths of them all, the most popular first."""
        return [self.tokens.draw(rng) for _ in range(self.number + self.per_engine * engines)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """A kind of traffic, and what its clients expect.

    A conversation has up to `turns` of them, all lengths equally often; each prompt is all that was said before and
    `asks` more tokens. `clients` saturate one engine in a closed loop; `lead_seconds` is how long the engines take to
    fill and their caches to hold something. For the first `calm_seconds` of them no more comes than they can finish:
    where answers are long, those that begin together would end together, and a slice would see one beat of that.
    """

    name: str
    asks: Lengths
    output: Lengths
    caps: tuple[int, ...]
    clients: int
    patience_seconds: float
    lead_seconds: float
    beginnings: Beginnings | None = None
    turns: int = 1
    think_seconds: float = 0.0
    calm_seconds: float = 0.0


CHAT = Traffic(
    name="chat",
    beginnings=Beginnings(tokens=Lengths(median=200, sigma=0.4, least=100, most=400), number=6),
    asks=Lengths(median=80, sigma=0.6, least=8, most=250),
    output=Lengths(median=90, sigma=0.6, least=8, most=300),
    caps=(512,),
    turns=8,
    think_seconds=1.5,
    clients=20,
    patience_seconds=10.0,
    lead_seconds=5.0,
)
RAG = Traffic(
    name="rag",
    beginnings=Beginnings(tokens=Lengths(median=700, sigma=0.4, least=200, most=1300), per_engine=10),
    asks=Lengths(median=40, sigma=0.4, least=8, most=100),
    output=Lengths(median=60, sigma=0.5, least=8, most=240),
    caps=(256, 512),
    clients=20,
    patience_seconds=10.0,
    lead_seconds=3.0,
)
REASONING = Traffic(
    name="reasoning",
    asks=Lengths(median=120, sigma=0.6, least=16, most=400),
    output=Lengths(median=200, sigma=0.6, least=40, most=450),
    caps=(1024, 1536),
    clients=28,
    patience_seconds=20.0,
    lead_seconds=12.0,
    calm_seconds=6.0,
)
TRAFFIC = {traffic.name: traffic for traffic in (CHAT, RAG, REASONING)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn(Arrival):
    """A request that may follow another: then it comes when that is over and thought about, though not before `at`.

    What became of the other does not matter: whoever was refused or lost patience goes on all the same, so that every
    arm is asked the same.
    """

    follows: int | None = None
    think_seconds: float = 0.0


def schedule(traffic: Traffic, *, engines: int, rate: float, seconds: float, seed: str) -> list[Turn]:
    """What comes in this time; the same seed gives the same requests."""
    return list(takewhile(lambda turn: turn.at < seconds, turns(traffic, engines=engines, rate=rate, seed=seed)))


def calmed(offered: Iterable[Turn], calm_seconds: float, load: float, rng: random.Random) -> list[Turn]:
    """Without what would be more than the engines can finish in the first `calm_seconds`; for requests of their own."""
    return [turn for turn in offered if turn.at >= calm_seconds or rng.random() * load < 1]


def turns(traffic: Traffic, *, engines: int, rate: float, seed: str) -> Iterator[Turn]:
    """An endless supply in order of time, `rate` of them a second in the mean, as if it had begun long ago."""
    talks, numbers, spoken = _Talks(traffic, engines, seed), count(), dict[tuple[int, int], int]()
    pending: list[tuple[float, int, int, Turn]] = []
    for talk, began in enumerate(talks.moments(rate)):
        while pending and pending[0][0] < began:
            at, speaker, index, turn = heapq.heappop(pending)
            if at >= 0:
                spoken[speaker, index] = number = next(numbers)
                yield replace(turn, number=number, follows=spoken.pop((speaker, index - 1), None))
        for index, turn in enumerate(talks.turns(talk, began)):
            heapq.heappush(pending, (turn.at, talk, index, turn))


class _Talks:
    """Conversations one after the other; what they begin with is drawn once."""

    def __init__(self, traffic: Traffic, engines: int, seed: str) -> None:
        self._traffic = traffic
        self._rng = random.Random(seed)
        begin = traffic.beginnings
        self._shared = begin.drawn(engines, random.Random(f"{seed}:beginnings")) if begin else [0]
        self._popularity = list(accumulate(1 / rank for rank in range(1, len(self._shared) + 1)))

    def moments(self, rate: float) -> Iterator[float]:
        """When they begin: before 0 as well, so that some are under way then."""
        traffic = self._traffic
        at = -traffic.turns * (_MOST_THINKING * traffic.think_seconds + traffic.output.most * TOKEN_SECONDS)
        while True:
            at += self._rng.expovariate(2 * rate / (1 + traffic.turns))
            yield at

    def turns(self, talk: int, at: float) -> Iterator[Turn]:
        """The turns of one, as far as the context has room; each comes a usual answer after the one before."""
        traffic, rng, think = self._traffic, self._rng, 0.0
        text = rng.choices(range(len(self._shared)), cum_weights=self._popularity)[0]
        said = self._shared[text]
        for _ in range(rng.randint(1, traffic.turns)):
            prompt, cap, length = said + traffic.asks.draw(rng), rng.choice(traffic.caps), traffic.output.draw(rng)
            if prompt + cap > ENGINE.max_model_len:
                return
            said = prompt + length
            yield Turn(
                number=-1,
                at=at,
                prompt="",
                prompt_tokens=prompt,
                cap=cap,
                length=length,
                prefix=self._hashes(text, talk, said),
                think_seconds=think,
            )
            think = traffic.think_seconds * min(rng.expovariate(1.0), _MOST_THINKING)
            at += think + length * TOKEN_SECONDS

    def _hashes(self, text: int, talk: int, tokens: int) -> tuple[int, ...]:
        """Of the full blocks of so many tokens: those within the beginning are everybody's, the others the talk's."""
        shared = self._shared[text] // BLOCK_SIZE
        return tuple(hash((0, text, i) if i < shared else (1, talk, i)) for i in range(tokens // BLOCK_SIZE))


_MOST_THINKING = 3.0
