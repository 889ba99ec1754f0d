"""More clients than the embedded engine has room for, each asking again as soon as it has its answer."""

import contextlib
import threading
from collections.abc import Iterator, Mapping

import httpx

PROMPT = "Once upon a time there was a cache. " * 20
AGAIN_SECONDS = 0.3
PATH = "/v1/completions"


def ask(url: str, *, max_tokens: int, timeout: float = 60.0) -> int:
    """One completion; the status it was answered with."""
    body = {"model": "sim-tiny", "prompt": PROMPT, "max_tokens": max_tokens}
    return httpx.post(url + PATH, json=body, timeout=timeout, trust_env=False).status_code


@contextlib.contextmanager
def overload(
    url: str, *, clients: int = 24, max_tokens: int = 400, headers: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Load on kvguard at `url` while the context lasts. Who is refused comes back after a moment, whatever
    `Retry-After` says. `headers` say who asks.
    """
    over = threading.Event()

    def insist() -> None:
        body = {"model": "sim-tiny", "prompt": PROMPT, "max_tokens": max_tokens, "ignore_eos": True}
        with httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False) as client:
            while not over.is_set():
                with contextlib.suppress(httpx.TransportError):
                    if client.post(PATH, json=body).is_success:
                        continue
                over.wait(AGAIN_SECONDS)

    threads = [threading.Thread(target=insist) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
