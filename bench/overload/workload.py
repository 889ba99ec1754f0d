"""What is sent: Poisson arrivals of mixed prompts and answers, the same for every arm of a round."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

# Tokens, roughly the shape of chat traffic scaled to a cache of 4064 tokens: (median, sigma, least, most).
PROMPT = (150.0, 0.6, 16, 800)
OUTPUT = (100.0, 0.7, 8, 600)
# What clients declare as max_tokens: far above what answers use.
CAPS = (512, 1024)

_WORDS = "the cache of a model holds every token that came before and frees them when its answer has ended".split()


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: when it comes (seconds into the slice), what it asks and how long its answer will be."""

    at: float
    prompt: str
    cap: int
    length: int

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


def arrivals(*, rate: float, seconds: float, seed: str) -> list[Arrival]:
    """Open-loop arrivals at `rate` a second; the same seed gives the same requests."""
    rng = random.Random(seed)
    made = requests(rng)
    at, list_of = 0.0, []
    while (at := at + rng.expovariate(rate)) < seconds:
        arrival = next(made)
        list_of.append(Arrival(at, arrival.prompt, arrival.cap, arrival.length))
    return list_of


def requests(rng: random.Random) -> Iterator[Arrival]:
    """An endless supply of requests."""
    while True:
        words = [rng.choice(_WORDS) for _ in range(_draw(rng, *PROMPT))]
        # A word of its own in front keeps the prefix cache from serving one request's blocks to another.
        prompt = " ".join([f"{rng.getrandbits(32):08x}", *words])
        yield Arrival(0.0, prompt, rng.choice(CAPS), _draw(rng, *OUTPUT))


def _draw(rng: random.Random, median: float, sigma: float, least: int, most: int) -> int:
    return round(min(max(median * rng.lognormvariate(0.0, sigma), least), most))
