"""Clients as they are: each reads a stream to its end, thinks, asks again, and comes back when it is told to."""

import contextlib
import random
import threading
from collections.abc import Iterator, Mapping

import httpx

from tests.monitoring.overload import PATH, PROMPT

THINKING_SECONDS = 2.0
MAX_PATIENCE_SECONDS = 4.0
LONGEST = 400


@contextlib.contextmanager
def asking(url: str, *, clients: int, headers: Mapping[str, str], seed: int = 0) -> Iterator[None]:
    """So many clients of one kind at kvguard's `url`, while the context lasts. Leaving it breaks their streams off."""
    over = threading.Event()

    def ask_on(rng: random.Random) -> None:
        with httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False) as client:
            wait = rng.uniform(0, THINKING_SECONDS)
            while not over.wait(wait):
                with contextlib.suppress(httpx.TransportError):
                    wait = _ask(client, over, rng)

    threads = [threading.Thread(target=ask_on, args=(random.Random(seed + number),)) for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _ask(client: httpx.Client, over: threading.Event, rng: random.Random) -> float:
    """One stream; seconds until the next."""
    words = PROMPT[: rng.randint(100, len(PROMPT))]
    body = {"model": "sim-tiny", "prompt": words, "max_tokens": LONGEST, "stream": True}
    with client.stream("POST", PATH, json=body) as answer:
        for _ in answer.iter_raw():
            if over.is_set():
                break
    if answer.is_success:
        return rng.uniform(0, THINKING_SECONDS)
    return min(float(answer.headers.get("retry-after", "1")), MAX_PATIENCE_SECONDS) * rng.uniform(0.5, 1.0)
